"""Capture: the trace's prompts through the engine without speculation; the ids it samples become a trace with a tail.

The tail is what the target would have said past the end. With it a recorded replay knows what verification would have
accepted there, so that even a request's last round agrees with a live one.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from pipeline import commit
from pipeline.plan import Plan, plan
from pipeline.tracefiles import TraceInfo
from pipeline.warehouse import Warehouse
from replay.live.launch import LiveResult, run_live
from replay.live.process import check_devices
from replay.requests import Requests
from schemas.config import Proposer, ReplayConfig
from schemas.errors import InputError, ReconciliationError
from schemas.speculative import proposer_key
from schemas.tables import TRACE

DEFAULT_TAIL = 32
"""Ids past the end, where the config names no proposer that would say how many are needed."""


def capture(
    config: ReplayConfig,
    warehouse: Warehouse,
    trace_name: str,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> TraceInfo:
    """Run the config's selection of requests without speculation and commit what comes out as `trace_name`.

    The tail is one longer than the longest draft of the config's proposers. The same capture again is a no-op.

    Args:
        config: [engine] kind = "vllm" with a model; [trace] says which prompts.
        warehouse: holds the prompts, takes the new trace.
        trace_name: of the new trace.
        progress: told ("capture", requests done, requests in all).

    Raises:
        InputError: the config is not live, the engine refuses a setting or request, or the name holds another trace.
        EnvironmentProblem: no engine here, it died, or the disk is full.
        ReconciliationError: what came out does not add up to the engine's own counters.
        LockedError: another process captures this trace.
    """
    if config.engine.kind != "vllm":
        raise InputError('capture needs an engine: [engine] kind = "vllm" and model = the folder of the target')
    commit.safe_name("trace", trace_name)
    settings = {"method": "none"}
    none = Proposer(name="none", config=settings, key=proposer_key(settings, config.engine.runner))
    tail = max((p.config.get("num_speculative_tokens", 0) for p in config.proposer), default=0) + 1
    tail = tail if tail > 1 else DEFAULT_TAIL
    engine = config.engine.at(max(config.engine.concurrencies)).model_copy(update={"pace": "closed", "speed": 1.0})
    config = config.model_copy(update={"engine": engine, "proposer": [none]})
    planned = plan(config, warehouse)
    origin = hashlib.sha256(f"capture {planned.run} tail {tail}".encode()).hexdigest()[:16]
    with warehouse.lock(f"capture-{trace_name}"):
        there = next((trace for trace in warehouse.traces() if trace.name == trace_name), None)
        if there is not None and there.origin == origin:
            return there
        if there is not None:
            raise InputError(f"trace {trace_name} exists and is no capture of this: take another name")
        check_devices(config.run.devices)
        requests = Requests.from_table(warehouse.read_trace(planned.trace.name, rows=planned.units[0].rows))
        result = run_live(
            requests,
            config.engine,
            none,
            max_model_len=None if config.trace.max_model_len == "none" else config.trace.max_model_len,
            tail_tokens=tail,
            seed=config.trace.seed,
            device=next(iter(config.run.devices), None),
            hang_after_s=config.run.hang_after_s,
            progress=None if progress is None else lambda done: progress("capture", done, len(requests)),
        )
        if not result.reconciliation["ok"]:
            wrong = result.reconciliation["mismatches"][0]
            raise ReconciliationError(
                f"capture does not reconcile: {wrong['counter']} is {wrong['engine']} in the engine, "
                f"{wrong['step_log']} in the record; nothing was written"
            )
        return warehouse.write_trace(trace_name, [_table(planned, requests, result)], origin)


def _table(planned: Plan, requests: Requests, result: LiveResult) -> pa.Table:
    engine = planned.config.engine
    n = len(requests)
    columns = {name: requests.meta.column(name) for name in requests.meta.column_names}
    said = zip(*(columns[name].to_pylist() for name in ("sampling", "output_tokens", "request_id")), strict=True)
    seed = planned.config.trace.seed
    columns |= {
        "prompt_token_ids": requests.prompts.column(),
        "output_token_ids": result.outputs.column(),
        "tail_token_ids": result.tails.column(),
        "output_tokens": pa.array(result.outputs.lengths, pa.int32()),
        "finish_reason": pa.array(result.finish_reason, pa.string()),
        "sampling": pa.array([_sampling(text, tokens, engine.sampling, seed, name) for text, tokens, name in said]),
        "model": pa.repeat(Path(str(engine.model)).name, n),  # its name; where it lies is nobody's business
        "extra": pa.repeat(json.dumps({"token_ids": "captured"}), n),
    }
    return pa.table({name: columns[name] for name in TRACE.names}).cast(TRACE)


def _sampling(text: str | None, output_tokens: int | None, overrides: dict, seed: int, request_id: str) -> str:
    """The settings that were in force, so that a replay of the captured trace samples the same way."""
    from replay.live.settings import DEFAULT_MAX_TOKENS, derived_seed

    recorded = {key: value for key, value in (json.loads(text) if text else {}).items() if value is not None}
    settings = {"temperature": 0.0} | recorded | overrides
    settings.setdefault("max_tokens", DEFAULT_MAX_TOKENS if output_tokens is None else max(1, output_tokens))
    if settings["temperature"] > 0:
        settings.setdefault("seed", derived_seed(seed, request_id))
    return json.dumps(settings, sort_keys=True)
