"""How much faster the compiled suffix engine is than arctic-inference's cache driven from Python, in one run.

    python tests/benchmarks/recorded_suffix.py [--scale 1.0] [--repeats 5] [--rounds 100000]

Two peers walk the same requests: `simulator`, the core loop of arctic-inference's own simulator as shipped, and
`tight`, the fewest Python steps over its cache that vLLM's rules allow. Prints one JSON object: per shape the ratios
(CPU time, medians; the peers run once) and whether each step's drafted and accepted equal the tight loop's; the growth
with the prompt; 24 settings in one pass against one; memory; how many random proposals were compared id for id and
score for score; and two processes against one on the same two replicas' requests (`two_against_one`; `spin` is the
same of a bare loop, which is what the machine had to give). Rates depend on the machine and on what else runs on it;
ratios much less.
"""

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache
from arctic_inference.suffix_decoding.simulator import suffix_decode

from pipeline.history import parts
from replay.recorded.suffix_walk import Setting, SuffixCache, proposals, walk_suffix
from replay.requests import Requests
from schemas.history import History

sys.path.insert(0, str(Path(__file__).parent))
from corpus import SHAPES, corpus, mixed

SETTING = Setting()
DEPTH, CACHED = 24, 10000
MIX = {"edit": 120, "agent": 96, "extract": 80, "fresh": 84, "long": 20}
GRID = [Setting(k, f, p) for k in (8, 24) for f in (0.5, 1.0, 2.0, 4.0) for p in (0.05, 0.1, 0.3)]


def timed(function, *args):
    """CPU seconds and result. All sides are single-threaded; CPU time leaves out who else is waiting."""
    start = time.process_time()
    result = function(*args)
    return time.process_time() - start, result


def ours(requests, settings=(SETTING,)):
    return walk_suffix(requests, list(settings), SuffixCache(DEPTH, CACHED))


def simulator(requests):
    cache = SuffixDecodingCache(DEPTH, CACHED)
    k, factor, prob = SETTING
    for i in range(len(requests)):
        suffix_decode(cache, i, requests.prompts[i], requests.outputs[i], k, factor, prob, False, True)


def tight(requests, setting=SETTING, depth=DEPTH, cached=CACHED, drafts=None):
    """(drafted, accepted) of every step; with a list for `drafts`, the ids and scores too."""
    cache = SuffixDecodingCache(depth, cached)
    k, factor, prob = setting
    steps = []
    for i in range(len(requests)):
        start = len(requests.prompts[i])
        ids = np.concatenate([requests.prompts[i], requests.outputs[i]])
        record, end, at = ids.tolist(), len(ids), start + 1
        if end == start:
            continue
        cache.start_request(i, ids[:start])
        cache.add_active_response(i, ids[start:at])
        while at < end:
            context = ids[max(0, at - depth) : at]
            draft = cache.speculate(i, context, max_spec_tokens=k, max_spec_factor=factor, min_token_prob=prob)
            accepted = 0
            for candidate, token in zip(draft.token_ids, record[at : at + k], strict=False):
                if candidate != token:
                    break
                accepted += 1
            if drafts is not None:
                drafts.append((draft.token_ids, np.float32(draft.score).tobytes()))
            steps.append((len(draft.token_ids), accepted))
            new = at + accepted + 1
            cache.add_active_response(i, ids[at:new])
            at = new
        cache.stop_request(i)
    return steps


def compared(requests, repeats):
    """One shape: all three sides."""
    seconds = statistics.median(timed(ours, requests)[0] for _ in range(repeats))
    (log,) = ours(requests)
    simulated, _ = timed(simulator, requests)
    looped, steps = timed(tight, requests)
    tokens = int(requests.outputs.lengths.sum())
    return {
        "requests": len(requests),
        "prompt_tokens": int(requests.prompts.lengths.sum()),
        "output_tokens": tokens,
        "steps": len(log),
        "ours_tokens_per_s": round(tokens / seconds),
        "over_simulator": round(simulated / seconds, 1),
        "over_tight_loop": round(looped / seconds, 1),
        "steps_equal": steps == list(zip(log.drafted.tolist(), log.accepted.tolist(), strict=True)),
    }


def random_parity(rounds, seed=0):
    """Proposals compared id for id and score for score (float32, every bit) on small alphabets and odd settings."""
    draw = random.Random(seed)
    done = mismatches = 0
    while done < rounds:
        symbols = draw.choice([1, 2, 3, 5, 20, 200])

        def text(most, symbols=symbols):
            out = []
            while len(out) < most:
                at = draw.randrange(len(out) + 1)
                out += out[at : at + draw.randrange(30)] + [
                    draw.randrange(symbols) for _ in range(draw.randrange(1, 5))
                ]
            return out[: draw.randrange(1, most + 1)]

        prompts, outputs = [], []
        for _ in range(draw.randrange(1, 30)):
            longer = prompts and draw.random() < 0.4
            prompts.append((prompts[-1] + outputs[-1] + text(8)) if longer else text(120))
            outputs.append(text(120))
        requests = Requests.from_lists(prompts, outputs)
        depth, cached = draw.choice([1, 2, 5, 16, 24, 64]), draw.choice([0, 1, 3, 10000])
        setting = Setting(draw.choice([1, 8, 24, 100]), draw.choice([0.4, 1.0, 3.0]), draw.choice([0.0, 0.1, 0.5]))
        theirs = []
        tight(requests, setting, depth, cached, theirs)
        _, ids, scores = proposals(requests, setting, SuffixCache(depth, cached))
        mine = list(zip(ids, (score.tobytes() for score in scores), strict=True))
        mismatches += sum(a != b for a, b in zip(theirs, mine, strict=True))
        done += len(mine)
    return {"proposals": done, "mismatches": mismatches}


def replica_work(scale):
    """What each of two replicas does: its share of the mix, round robin, from an empty tree of its own."""
    mix = mixed({shape: max(2, round(n * scale)) for shape, n in MIX.items()})
    replicas = parts(mix.meta, History(replicas=2, routing="round_robin"))
    return [partial(ours, mix.take(rows)) for rows in replicas.values()]


def spin_work(_):
    return [lambda: sum(1 for _ in range(2_000_000))] * 2


def worker(make, scale, orders):
    """Does the work of the replicas it is told, as often as it is told; answers with the processor time of each."""
    work = make(scale)
    for one in work:
        one()  # compile
    orders.send(None)
    for replicas, times in iter(orders.recv, None):
        orders.send([sum(timed(work[replica])[0] for _ in range(times)) for replica in replicas])


def two_against_one(make, scale, repeats, seconds=1.5):
    """How many times faster two processes with one replica each are than one with both; alternating, medians.

    `wall` by the clock; `cpu` as if each process had a core to itself and both shares were equal; `balance`, what the
    shares' sizes allow by the clock.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    crew = [context.Process(target=worker, args=(make, scale, there)) for _, there in pipes]
    for process in crew:
        process.start()
    orders = [here for here, _ in pipes]
    for here in orders:
        here.recv()

    def told(*shares, times):
        start = time.perf_counter()
        for here, replicas in zip(orders, shares, strict=False):
            here.send((replicas, times))
        spent = [seconds for here, _ in zip(orders, shares, strict=False) for seconds in here.recv()]
        return time.perf_counter() - start, np.array(spent)

    times = max(1, round(seconds / told([0, 1], times=1)[0]))
    runs = []
    for _ in range(repeats):
        alone, spent = told([0, 1], times=times)
        together, beside = told([0], [1], times=times)
        runs.append((alone / together, (spent / beside).sum(), spent.sum() / spent.max()))
    for here, process in zip(orders, crew, strict=True):
        here.send(None)
        process.join()
    return {
        name: round(float(x), 2) for name, x in zip(("wall", "cpu", "balance"), np.median(runs, axis=0), strict=True)
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--scale", type=float, default=1.0, help="share of the corpus' requests")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--rounds", type=int, default=100_000, help="random proposals to compare")
    options = arguments.parse_args()
    numbers = {shape: max(1, round(n * options.scale)) for shape, n in MIX.items()}
    ours(corpus("fresh", 1))  # compile
    report = {"shapes": {shape: compared(corpus(shape, numbers[shape]), options.repeats) for shape in SHAPES}}
    mix = mixed(numbers)
    report["mix"] = compared(mix, options.repeats)
    report["prompt_growth"] = {
        tokens: compared(corpus("long", max(1, round(3 * options.scale)), 1, tokens), options.repeats)
        for tokens in (1_000, 4_000, 16_000, 64_000)
    }
    one = statistics.median(timed(ours, mix)[0] for _ in range(options.repeats))
    grid = statistics.median(timed(ours, mix, GRID)[0] for _ in range(options.repeats))
    together = ours(mix, GRID)
    report["grid"] = {
        "settings": len(GRID),
        "times_one": round(grid / one, 2),
        "equal_to_single_runs": all(
            np.array_equal(log.drafted, alone.drafted) and np.array_equal(log.accepted, alone.accepted)
            for log, setting in zip(together, GRID, strict=True)
            for alone in ours(mix, [setting])
        ),
    }
    cache = SuffixCache(DEPTH, CACHED)
    walk_suffix(mix, [SETTING], cache)
    memory = cache.memory()
    report["memory"] = {
        "cached_tokens": memory.cached_tokens,
        "nodes": memory.nodes,
        "bytes_per_cached_token": round(memory.bytes_per_cached_token),
    }
    capped, held = SuffixCache(DEPTH, 20), []
    for _ in range(4):
        walk_suffix(mix, [SETTING], capped)
        held.append(capped.memory().allocated_bytes)
    report["memory_capped_at_20_requests"] = {"allocated_bytes": held, "evictions": capped.memory().evictions}
    report["two_processes"] = two_against_one(replica_work, options.scale, options.repeats) | {
        "spin": two_against_one(spin_work, options.scale, options.repeats)
    }
    report["random_parity"] = random_parity(options.rounds)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
