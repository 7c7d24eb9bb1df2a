"""What a tree of earlier outputs costs: time to build, time to keep up to date when it is full, bytes per token.

    python tests/benchmarks/suffix_trees.py [--requests 600] [--depth 24]

Ours and arctic-inference's tree take the same outputs of generated traffic, without any proposal. Building: one output
after the other into an empty tree. Updating: the tree holds as many requests as it may, so that each output that comes
in puts the oldest one out. Prints one JSON object; CPU time, medians of three.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from arctic_inference.suffix_decoding._C import SuffixTree
from numba import njit

from replay.recorded import suffix_sequences, suffix_tree
from replay.recorded.suffix_walk import SuffixCache

sys.path.insert(0, str(Path(__file__).parent))
from corpus import mixed


@njit
def put(tree, ids, offsets, low, high, cap):
    """Outputs low to high into the tree; returns it, and how many were put out."""
    evicted = 0
    for i in range(low, high):
        if tree.size[suffix_tree.CACHED] >= cap:
            suffix_sequences.evict(tree)
            evicted += 1
        if suffix_tree.short_of_room(tree):
            tree = suffix_tree.grown(tree)
        suffix_sequences.open_sequence(tree)
        tree = suffix_sequences.fed(tree, ids, offsets[i], offsets[i + 1])
        suffix_sequences.close_sequence(tree)
    return tree, evicted


def ours(outputs, depth, half):
    largest = int(outputs.flat.max())
    tree = suffix_tree.new_tree(depth, largest)
    start = time.process_time()
    tree, _ = put(tree, outputs.flat, outputs.offsets, 0, half, half)
    built = time.process_time()
    memory = SuffixCache(depth, half, tree).memory()
    before = time.process_time()
    tree, evicted = put(tree, outputs.flat, outputs.offsets, half, len(outputs), half)
    return built - start, time.process_time() - before, memory.used_bytes, memory.nodes, evicted


def arctic(outputs, depth, half):
    tree = SuffixTree(depth)
    sequences = [outputs[i] for i in range(len(outputs))]
    start = time.process_time()
    for i in range(half):
        tree.extend_ndarray(i, sequences[i])
    built = time.process_time()
    held = tree.estimate_memory()
    before = time.process_time()
    for i in range(half, len(outputs)):
        tree.remove(i - half)
        tree.extend_ndarray(i, sequences[i])
    return built - start, time.process_time() - before, held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--depth", type=int, default=24)
    options = parser.parse_args()
    share = options.requests // 4
    outputs = mixed(dict.fromkeys(("edit", "agent", "extract", "fresh"), share)).outputs
    half = len(outputs) // 2
    first, second = int(outputs.offsets[half]), int(outputs.offsets[-1] - outputs.offsets[half])
    ours(outputs, options.depth, half)  # compiled
    mine = [ours(outputs, options.depth, half) for _ in range(3)]
    theirs = [arctic(outputs, options.depth, half) for _ in range(3)]
    build, update = ([statistics.median(run[i] for run in runs) for runs in (mine, theirs)] for i in (0, 1))
    answer = {
        "depth": options.depth,
        "requests": len(outputs),
        "tokens_cached": first,
        "evictions": mine[0][4],
        "nodes": mine[0][3],
        "build_ns_per_token": [round(s / first * 1e9) for s in build],
        "update_ns_per_token": [round(s / second * 1e9) for s in update],
        "bytes_per_cached_token": [round(runs[0][2] / first, 1) for runs in (mine, theirs)],
        "arctic_over_ours": {
            "build": round(build[1] / build[0], 1),
            "update": round(update[1] / update[0], 1),
            "bytes": round(theirs[0][2] / mine[0][2], 1),
        },
    }
    print(json.dumps(answer | {"order": "ours, arctic-inference"}))


if __name__ == "__main__":
    main()
