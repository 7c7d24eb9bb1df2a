"""Do the recorded lookups propose what vLLM proposes, token for token? Millions of histories, and the mismatches.

    python tests/benchmarks/recorded_ngram_parity.py [--seconds 20]

Random histories over alphabets of 1 to 50 ids, periods, copies with edits, and long gaps; windows from 1 to 8, k from 1
to 12. At every output position of every history:

- v1: the index behind the grid against vLLM's own function.
- v1_walk: the walk of `ngram` (at the positions where its rounds start) against vLLM's own function.
- v2: the index of last matches against a compiled transcription of vLLM's kernels, which scans the whole history.

Prints one JSON object: proposals compared, how many of them were not empty, mismatches. Exits with 1 if there is one.
"""

import argparse
import json
import sys
import time

import numpy as np
from numba import njit
from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens as find

from replay.recorded.ngram import replay_with_sources
from replay.recorded.ngram_index import distance, index, window
from replay.recorded.walk import Limits
from replay.requests import Requests
from schemas.speculative import effective


@njit
def first_matches(prompt, output, entries, min_n, max_n, k, counts):
    """Compare every entry with vLLM's function; counts: proposals, not empty, mismatches."""
    ids = np.concatenate((prompt, output))
    for t in range(len(prompt) + 1, len(ids)):
        expected = find(ids[:t], min_n, max_n, 2**31 - 1, k)
        entry = entries[t - len(prompt)]
        away = distance(entry) if window(entry) >= min_n else 0
        counts[0] += 1
        counts[1] += len(expected) > 0
        counts[2] += not np.array_equal(expected, ids[t - away : t][:k])


@njit
def last_matches(prompt, output, entries, min_n, max_n, counts):
    """The same for the last match: longest window, then rightmost place, one token behind it at least."""
    ids = np.concatenate((prompt, output))
    for t in range(len(prompt) + 1, len(ids)):
        best_n, best_end = 0, 0
        for n in range(min_n, max_n + 1):
            for at in range(t - n):
                j = 0
                while j < n and ids[at + j] == ids[t - n + j]:
                    j += 1
                if j == n:
                    best_n, best_end = n, at + n
        entry = entries[t - len(prompt)]
        away = distance(entry) if window(entry) >= min_n else 0
        counts[0] += 1
        counts[1] += best_n > 0
        counts[2] += away != (t - best_end if best_n > 0 else 0)


@njit
def walked(prompt, output, sources, drafted, accepted, min_n, max_n, k, counts):
    """Every round's candidates, and how many of them were accepted."""
    ids = np.concatenate((prompt, output))
    t = len(prompt) + 1
    for row in range(len(sources)):
        expected = find(ids[:t], min_n, max_n, 2**31 - 1, k)
        given = ids[sources[row] : sources[row] + drafted[row]] if sources[row] >= 0 else ids[:0]
        hit = 0
        while hit < len(expected) and t + hit < len(ids) and expected[hit] == ids[t + hit]:
            hit += 1
        counts[0] += 1
        counts[1] += len(expected) > 0
        counts[2] += not np.array_equal(expected, given) or hit != accepted[row]
        t += hit + 1


def drawn(random):
    """One history as (prompt, output)."""
    symbols = int(random.choice([1, 2, 2, 3, 4, 8, 20, 50]))
    piece = random.integers(0, symbols, int(random.integers(1, 60)))
    parts = []
    for _ in range(int(random.integers(1, 12))):
        kind = random.random()
        if kind < 0.5:
            copy = piece.copy()
            copy[random.random(len(copy)) < 0.05] = random.integers(0, symbols)
            parts.append(copy[: int(random.integers(1, len(copy) + 1))])
        elif kind < 0.6:
            parts.append(np.tile(piece[:3], 20))
        else:
            parts.append(random.integers(0, symbols, int(random.integers(1, 60))))
    ids = np.concatenate(parts)
    cut = int(random.integers(0, len(ids)))
    return ids[:cut].tolist(), ids[cut:].tolist()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=20.0, help="how long to go on, in processor time")
    given = arguments.parse_args()
    random = np.random.default_rng(0)
    counts = {name: np.zeros(3, np.int64) for name in ("v1", "v1_walk", "v2")}
    until = None
    while until is None or time.process_time() < until:
        requests = Requests.from_lists(*zip(*(drawn(random) for _ in range(50)), strict=True))
        low = int(random.integers(1, 6))
        top, k = low + int(random.integers(0, 4)), int(random.integers(1, 13))
        config = effective(
            {"method": "ngram", "prompt_lookup_min": low, "prompt_lookup_max": top, "num_speculative_tokens": k}
        )
        base = 1 if low == 1 else 2
        tops = sorted({*random.integers(2, 9, 2).tolist(), top, 2} - ({1} if base == 2 else set()))
        first, last = (index(requests, tops, base=base, last=last, depth=k)[tops.index(top)] for last in (False, True))
        log, sources = replay_with_sources(requests, config, Limits())
        for i in range(len(requests)):
            said = slice(requests.outputs.offsets[i], requests.outputs.offsets[i + 1])
            ids = requests.prompts[i], requests.outputs[i]
            first_matches(*ids, first[said], low, top, k, counts["v1"])
            last_matches(*ids, last[said], low, top, counts["v2"])
            rows = log.request == i
            walked(*ids, sources[rows], log.drafted[rows], log.accepted[rows], low, top, k, counts["v1_walk"])
        until = until or time.process_time() + given.seconds  # the first round compiles
    names = ("proposals", "not_empty", "mismatches")
    print(json.dumps({kind: dict(zip(names, values.tolist(), strict=True)) for kind, values in counts.items()}))
    sys.exit(any(values[2] for values in counts.values()))


if __name__ == "__main__":
    main()
