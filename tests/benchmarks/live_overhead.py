"""What logging costs per engine iteration, against the same engine's plain `LLMEngine.step` on the same prompts.

    python tests/benchmarks/live_overhead.py

One engine, two sides taking turns: with the recorder around the model runner's methods and signs of life after every
step, and without either. Prints one JSON object: the logging's own time per iteration (recorder and signs of life),
timed inside the running engine, and both sides' median step.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "replay" / "live")]
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "NUMBA_NUM_THREADS": "1"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

import live_material as material  # noqa: E402

from replay.live import engine as live_engine  # noqa: E402
from replay.live import settings  # noqa: E402
from replay.live.child import signs_of_life  # noqa: E402
from replay.live.record import Record  # noqa: E402
from replay.requests import Tokens  # noqa: E402
from schemas.speculative import effective  # noqa: E402

CONCURRENCY, REQUESTS, TOKENS, TURNS = 8, 16, 48, 6
WRAPPED = ("execute_model", "sample_tokens", "propose_draft_token_ids")


def main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints
    spec = {
        "model": material.TARGET,
        "engine_args": {},
        "speculative": effective(material.NGRAM),
        "proposer": "ngram",
        "sampling": {},
        "concurrency": CONCURRENCY,
        "max_model_len": None,
        "tail_tokens": 0,
    }
    prompts = Tokens.of(material.prompts(REQUESTS, 150))
    rows = [{"sampling": None, "output_tokens": TOKENS}] * REQUESTS
    names = [str(i) for i in range(REQUESTS)]
    config = settings.engine_config(spec)
    params = settings.sampling_params(rows, names, prompts, spec, config)
    limit = config.model_config.max_model_len
    settings.size_kv_cache(config, [len(prompts[i]) + TOKENS for i in range(REQUESTS)], CONCURRENCY)
    engine, _ = live_engine._start(config)
    live_engine._warm_up(engine, CONCURRENCY, limit, lambda: None)
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    logged = {name: vars(runner).pop(name) for name in WRAPPED}

    own: list[float] = []
    launched, beat = Record.launched, signs_of_life(os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", 1), 1.0)

    def timed(*args) -> None:
        start = time.perf_counter()
        launched(*args)
        own.append(time.perf_counter() - start)

    def timed_beat() -> None:
        start = time.perf_counter()
        beat()
        own[-1] += time.perf_counter() - start

    Record.launched = timed
    medians: dict[str, list[float]] = {"plain": [], "logged": []}
    iterations = 0
    for turn in range(2 * TURNS):
        side = "logged" if turn % 2 else "plain"
        for name in WRAPPED:
            setattr(runner, name, logged[name]) if side == "logged" else vars(runner).pop(name, None)
        loop = live_engine._Loop(engine, prompts, params, names, limit, 0)
        _, steps = loop.run(CONCURRENCY, lambda done: None, timed_beat if side == "logged" else lambda: None)
        iterations = len(steps)
        medians[side].append(statistics.median((steps[:, 1] - steps[:, 0]).tolist()) * 1e6)
    own_us = sorted(1e6 * s for s in own)
    plain, with_log = (statistics.median(medians[side]) for side in ("plain", "logged"))
    result = {
        "iterations_per_turn": iterations,
        "turns_per_side": TURNS,
        "sequences": CONCURRENCY,
        "logging_us_median": round(statistics.median(own_us), 1),
        "logging_us_p95": round(own_us[int(0.95 * len(own_us))], 1),
        "plain_step_us_median": round(plain, 1),
        "logged_step_us_median": round(with_log, 1),
        "difference_us": round(with_log - plain, 1),
    }
    print(json.dumps(result), file=report, flush=True)
    engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
