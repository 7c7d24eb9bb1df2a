"""How much faster the recorded n-gram walk is than vLLM's function, both in one run and in compiled code.

    python tests/benchmarks/recorded_ngram.py [--scale 0.2] [--repeats 5]

Prints one JSON object:

- shapes: tokens put out per second on both sides, their ratio (medians of processor time), nanoseconds per history
  token of ours, and whether every step's drafted and accepted are equal.
- grid: 96 settings over about 50 requests of all shapes, vLLM's function setting by setting against one index for all.
- v2: the V2 runner's rule over the mix; vLLM's side of it is a GPU kernel, so there is no ratio.
- two_processes: how much more two processes that run at once replay than one, per second of processor time each;
  `spin` is the same for a bare loop, which is what the machine had to give.
- memory: growth of the peak resident size from few shards to many (Linux).

Rates depend on the machine and on what else runs on it; the ratios much less.
"""

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numba import njit

from replay.recorded.engine import replay_ngram_grid, replay_recorded
from replay.recorded.ngram import replay_with_sources
from replay.recorded.walk import Limits
from replay.requests import Requests
from schemas.speculative import effective

sys.path.insert(0, str(Path(__file__).parent))
from corpus import corpus, mixed, share

CONFIG = effective({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 5})


@cache
def vllm_walk():
    """vLLM's function in a compiled walk: at every round of every request; the walk returns the number of steps."""
    # Here and not above: the processes measured in memory must not load vLLM.
    from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens as find

    @njit
    def walk(prompts, prompt_at, outputs, output_at, min_n, max_n, k, drafted, accepted):
        row = 0
        for i in range(len(prompt_at) - 1):
            prompt = prompts[prompt_at[i] : prompt_at[i + 1]]
            output = outputs[output_at[i] : output_at[i + 1]]
            ids = np.concatenate((prompt, output))
            history = len(prompt) + 1
            while history < len(ids):
                draft = find(ids[:history], min_n, max_n, 2**31 - 1, k)
                hit = 0
                while hit < len(draft) and history + hit < len(ids) and draft[hit] == ids[history + hit]:
                    hit += 1
                drafted[row], accepted[row] = len(draft), hit
                row += 1
                history += hit + 1
        return row

    return walk


GRID = [
    effective({"method": "ngram", "prompt_lookup_min": low, "prompt_lookup_max": top, "num_speculative_tokens": k})
    for low in (1, 2, 3)
    for top in range(low, 6)
    for k in (1, 2, 3, 4, 5, 6, 8, 10)
]


def vllm_side(requests, config, drafted, accepted):
    """Steps of one walk by vLLM's function, and the processor time it took."""
    arrays = requests.prompts.flat, requests.prompts.offsets, requests.outputs.flat, requests.outputs.offsets
    settings = [config[key] for key in ("prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens")]
    walk = vllm_walk()
    start = time.process_time()
    steps = walk(*arrays, *settings, drafted, accepted)
    return steps, time.process_time() - start


def timed(work: Callable, repeats: int) -> tuple[float, object]:
    """Median processor time of `work`, and what it gave last."""
    times, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        times.append(time.process_time() - start)
    return statistics.median(times), result


def equal(log, steps, drafted, accepted):
    """Whether every step is the same; without a tail our accepted is cut at the end as theirs is."""
    return bool(
        steps == len(log)
        and np.array_equal(drafted[:steps], log.drafted)
        and np.array_equal(accepted[:steps], log.accepted)
    )


def measure(requests, repeats):
    drafted, accepted = np.zeros((2, len(requests.outputs.flat)), np.int16)
    ours, (log, _) = timed(lambda: replay_with_sources(requests, CONFIG, Limits()), repeats)
    runs = [vllm_side(requests, CONFIG, drafted, accepted) for _ in range(max(1, min(2, repeats)))]
    steps, theirs = runs[0][0], statistics.median(seconds for _, seconds in runs)
    tokens = len(requests.outputs.flat)
    return {
        "requests": len(requests),
        "prompt_tokens": len(requests.prompts.flat),
        "output_tokens": tokens,
        "steps": steps,
        "coverage": round(float(np.mean(log.drafted > 0)), 3),
        "vllm_tokens_per_s": round(tokens / theirs),
        "ours_tokens_per_s": round(tokens / ours),
        "ratio": round(theirs / ours, 1),
        "ours_ns_per_history_token": round(1e9 * ours / (len(requests.prompts.flat) + tokens), 1),
        "equal": equal(log, steps, drafted, accepted),
    }


def measure_grid(requests, repeats):
    drafted, accepted = np.zeros((2, len(requests.outputs.flat)), np.int16)
    ours, rows = timed(lambda: sum(len(log) for log in replay_ngram_grid(requests, GRID)), repeats)
    one, _ = timed(lambda: replay_recorded(requests, CONFIG), repeats)
    theirs, same = 0.0, True
    for config, log in zip(GRID, replay_ngram_grid(requests, GRID), strict=True):
        steps, seconds = vllm_side(requests, config, drafted, accepted)
        theirs += seconds
        same = same and equal(log, steps, drafted, accepted)
    return {
        "settings": len(GRID),
        "requests": len(requests),
        "steps": rows,
        "vllm_s": round(theirs, 3),
        "ours_s": round(ours, 4),
        "ratio": round(theirs / ours, 1),
        "times_one_setting": round(ours / one, 2),
        "equal": same,
    }


def measure_v2(requests, repeats):
    ours, log = timed(lambda: replay_recorded(requests, CONFIG, runner="v2"), repeats)
    tokens = len(requests.outputs.flat)
    return {
        "ours_tokens_per_s": round(tokens / ours),
        "ours_ns_per_history_token": round(1e9 * ours / (len(requests.prompts.flat) + tokens), 1),
        "coverage": round(float(np.mean(log.drafted > log.filler)), 3),
    }


def _replayed(scale):
    requests = mixed(share(scale))

    def work():
        replay_with_sources(requests, CONFIG, Limits())
        return len(requests.outputs.flat)

    return work


def _spun(_):
    return lambda: sum(1 for _ in range(100_000))


def _contend(make, scale, seconds, barrier, results):
    work = make(scale)
    work()
    barrier.wait()
    until, start, done = time.perf_counter() + seconds, time.process_time(), 0
    while time.perf_counter() < until:
        done += work()
    results.put(done / (time.process_time() - start))


def throughput(make, processes, scale, seconds=3.0):
    """What `processes` of them, started at once when all are ready, do together per second of processor time each."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    crew = [context.Process(target=_contend, args=(make, scale, seconds, barrier, results)) for _ in range(processes)]
    for process in crew:
        process.start()
    done = sum(results.get() for _ in crew)
    for process in crew:
        process.join()
    return done


def measure_processes(scale):
    return {
        name: round(throughput(work, 2, scale) / throughput(work, 1, scale), 2)
        for name, work in (("ratio", _replayed), ("spin", _spun))
    }


def _peak_after(shards, results):
    """Replay so many shards of 64 requests, each made when its turn comes, with a few settings; peak size in KiB."""
    for seed in range(shards):
        for log in replay_ngram_grid(corpus("edit", 64, seed), GRID[::12]):
            log.counts()
    status = Path("/proc/self/status").read_text()  # ru_maxrss would hold the parent's peak from before exec
    results.put(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]))


def measure_memory():
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for shards in (4, 40):
        results = context.Queue()
        process = context.Process(target=_peak_after, args=(shards, results))
        process.start()
        peaks[shards] = results.get()
        process.join()
    few, many = peaks.values()
    return {f"peak_mib_{n}_shards": round(kib / 1024, 1) for n, kib in peaks.items()} | {"ratio": round(many / few, 3)}


def some(shapes, number):
    """About so many requests, of all shapes."""
    every = max(1, sum(map(len, shapes.values())) // number)
    pairs = [(part.prompts[i], part.outputs[i]) for part in shapes.values() for i in range(0, len(part), every)]
    return Requests.from_lists(*zip(*pairs, strict=True))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--scale", type=float, default=0.2, help="share of the mix of 2,000 requests")
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    small = corpus("fresh", 1)
    measure(small, 1)  # compile
    measure_grid(small, 1)
    measure_v2(small, 1)
    shapes = {shape: corpus(shape, number) for shape, number in share(given.scale).items()}
    result = {shape: measure(requests, given.repeats) for shape, requests in shapes.items()}
    mix = mixed(share(given.scale))
    result["mix"] = measure(mix, given.repeats)
    out = {
        "config": CONFIG,
        "shapes": result,
        "grid": measure_grid(some(shapes, 50), given.repeats),
        "v2": measure_v2(mix, given.repeats),
        "two_processes": measure_processes(min(0.05, given.scale)),
        "memory": measure_memory(),
    }
    print(json.dumps(out))


if __name__ == "__main__":
    main()
