"""What logging costs per engine iteration, over plain `LLM.generate` on the same prompts.

    python tests/benchmarks/live_overhead.py

One engine in one process, two sides taking turns: vLLM's own `LLM.generate` without the recorder, and our loop with the
recorder around the model runner's methods. Prints one JSON object: both sides' processor time per iteration (logging is
work of the processor alone, and a busy machine blurs the wall clock more than it costs), their difference, and the
recorder's own time per iteration, timed inside the running engine.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "replay" / "live")]
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "NUMBA_NUM_THREADS": "1"}
os.environ.setdefault("OMP_NUM_THREADS", "1")

import live_material as material  # noqa: E402

from replay.live import engine as live_engine  # noqa: E402
from replay.live import record, settings  # noqa: E402
from replay.requests import Tokens  # noqa: E402
from schemas.speculative import effective  # noqa: E402

CONCURRENCY, REQUESTS, TOKENS, TURNS = 8, 16, 48, 20
WRAPPED = ("execute_model", "sample_tokens", "propose_draft_token_ids")


def main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import RequestOutputKind

    spec = {
        "model": material.TARGET,
        "engine_args": {},
        "speculative": effective(material.NGRAM),
        "proposer": "ngram",
        "sampling": {},
        "concurrency": CONCURRENCY,
        "max_model_len": None,
        "tail_tokens": 0,
        "seed": 0,
    }
    prompts = Tokens.of(material.prompts(REQUESTS, 150))
    rows = [{"sampling": None, "output_tokens": TOKENS}] * REQUESTS
    names = [str(i) for i in range(REQUESTS)]
    config = settings.engine_config(spec)
    params = settings.sampling_params(rows, names, prompts, spec, config)
    limit = config.model_config.max_model_len
    settings.size_kv_cache(config, [len(prompts[i]) + TOKENS for i in range(REQUESTS)], CONCURRENCY)
    with mock.patch.object(EngineArgs, "create_engine_config", lambda *args, **kwargs: config):
        llm = LLM(material.TARGET, disable_log_stats=False)
    engine = llm.llm_engine
    engine.collective_rpc("start_step_log")
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    logged = {name: vars(runner).pop(name) for name in WRAPPED}

    own: list[float] = []
    launched = record.Record.launched

    def timed(*args) -> None:
        start = time.perf_counter()
        launched(*args)
        own.append(time.perf_counter() - start)

    record.Record.launched = timed
    final = [p.clone() for p in params]
    for p in final:
        p.output_kind = RequestOutputKind.FINAL_ONLY
    asked = [{"prompt_token_ids": prompts[i].tolist()} for i in range(REQUESTS)]
    seconds: dict[str, list[float]] = {"generate": [], "logged": []}
    iterations = 0
    for turn in range(2 * TURNS + 2):
        side = "logged" if turn % 2 else "generate"
        for name in WRAPPED:
            setattr(runner, name, logged[name]) if side == "logged" else vars(runner).pop(name, None)
        start = time.process_time()
        if side == "generate":
            llm.generate(asked, final, use_tqdm=False)
        else:
            loop = live_engine._Loop(engine, prompts, params, names, limit, 0)
            _, steps = loop.run(CONCURRENCY, lambda done: None, lambda: None)
            iterations = len(steps)
        if turn > 1:  # the first of each compiles
            seconds[side].append(time.process_time() - start)
    own_us = sorted(1e6 * s for s in own)
    plain, with_log = (1e6 * statistics.median(seconds[side]) / iterations for side in ("generate", "logged"))
    more = [b - a for a, b in zip(seconds["generate"], seconds["logged"], strict=True)]  # neighbours in time
    result = {
        "iterations_per_turn": iterations,
        "turns_per_side": TURNS,
        "sequences": CONCURRENCY,
        "recorder_us_median": round(statistics.median(own_us), 1),
        "recorder_us_p95": round(own_us[int(0.95 * len(own_us))], 1),
        "generate_us_per_iteration": round(plain, 1),
        "logged_us_per_iteration": round(with_log, 1),
        "difference_us": round(1e6 * statistics.median(more) / iterations, 1),
    }
    print(json.dumps(result), file=report, flush=True)
    engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
