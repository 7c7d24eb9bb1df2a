"""One unit of work from trace rows to committed tables: read, replay, count, commit.

Runs wherever the executor puts it; needs the warehouse's folder and nothing else. The tables depend on the unit alone,
not on who ran it or when (live times excepted).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.plan import Unit
from pipeline.rollups import rollups
from pipeline.selection import arrivals
from pipeline.warehouse import Warehouse
from replay.recorded.engine import NGRAM
from replay.requests import Requests, Tokens
from replay.steps import StepLog
from schemas.config import ReplayConfig
from schemas.tables import DISPATCHES, NO_GROUP, OUTPUTS, REQUESTS

_FROM_TRACE = ("request_id", "session_id", "turn", "tenant", "workload", "arrival", "prompt_tokens")
_COLUMNS = (
    "request_id session_id turn sample tenant workload arrival prompt_token_ids output_token_ids tail_token_ids "
    "prompt_tokens output_tokens sampling finish_reason arrival_offset_us"
).split()

Progress = Callable[[int], None]
"""Called with how many of the unit's requests are done."""

Made = tuple[dict[str, pa.Table], dict[str, Any]]
"""A unit's tables, and the facts committed with them."""


@dataclass(frozen=True)
class Job:
    """A unit and where it belongs: all that a worker process is told.

    `also` are units over the same requests that share one index with `unit` (n-gram lookups) or its trees (suffix).
    """

    root: str
    run: str
    trace: str
    config: ReplayConfig
    unit: Unit
    also: tuple[Unit, ...] = ()
    device: str | None = None
    """Where its engine runs, an entry of [run] devices; None = anywhere, or without an engine."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units of the job, in the order they are done."""
        return self.unit, *self.also


def shared(units: Sequence[Unit], live: bool) -> list[tuple[Unit, ...]]:
    """The units in order, those together that can share an index or the trees of suffix decoding."""
    groups: dict[object, list[Unit]] = {}
    for unit in units:
        key: object = unit.shard
        if not live and unit.proposer.method in NGRAM:
            key = unit.rows.tobytes()
        elif not live and unit.proposer.method == "suffix":
            config = suffix_config(unit)
            trees = config["suffix_decoding_max_tree_depth"], config["suffix_decoding_max_cached_requests"]
            key = *trees, unit.warm_trace, unit.warm.tobytes(), unit.rows.tobytes()
        groups.setdefault(key, []).append(unit)
    return [tuple(group) for group in groups.values()]


def perform(job: Job, progress: Progress) -> dict[str, Any]:
    """Replay the job's units and commit each; returns the facts committed with the last one (live: engine and
    reconciliation).

    A unit that someone else committed meanwhile is left as it is, and its facts are returned. `progress` counts the
    requests of all units.

    Raises:
        InputError: the config or a request is refused.
        EnvironmentProblem: no engine, no disk, a missing package.
        ReconciliationError: the engine's record cannot be made into a step log.
    """
    warehouse = Warehouse(job.root)
    requests = Requests.from_table(warehouse.read_trace(job.trace, _COLUMNS, job.unit.rows))
    work = _lookups if job.also else _recorded
    if job.config.engine.kind == "vllm":
        work = _live
    elif job.unit.proposer.method == "suffix":
        work = _suffix
    facts: dict[str, Any] = {}
    for unit, (tables, facts) in zip(job.units, work(job, requests, progress), strict=True):
        if not warehouse.commit_shard(job.run, unit.shard, tables | rollups(tables), facts):
            facts = warehouse.committed(job.run)[unit.shard]["facts"]
    return facts


def _limit(config: ReplayConfig) -> int | None:
    return None if config.trace.max_model_len == "none" else config.trace.max_model_len


def _recorded(job: Job, requests: Requests, progress: Progress) -> Iterator[Made]:
    # Here and not above: a live run's parent process never loads numba, which breaks vLLM's start.
    from replay.recorded.engine import replay_recorded

    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        progress(done)

    log = replay_recorded(
        requests,
        job.unit.proposer.config,
        runner=job.config.engine.runner,
        max_model_len=_limit(job.config),
        progress=more,
        dtype=job.config.engine.dtype or "float32",
        target=job.config.engine.model,
    )
    yield _walked(job.unit, requests, log)


def _lookups(job: Job, requests: Requests, progress: Progress) -> Iterator[Made]:
    from replay.recorded.engine import replay_ngram_grid  # not above: see _recorded

    configs = [unit.proposer.config for unit in job.units]
    logs = replay_ngram_grid(requests, configs, runner=job.config.engine.runner, max_model_len=_limit(job.config))
    for number, (unit, log) in enumerate(zip(job.units, logs, strict=True), 1):
        yield _walked(unit, requests, log)
        progress(number * len(requests))


def suffix_config(unit: Unit) -> dict[str, Any]:
    """A suffix proposer's settings as its history has them: with nobody to share with, nothing is kept."""
    history, config = unit.proposer.history, unit.proposer.config
    alone = history is not None and history.scope == "none"
    return config | {"suffix_decoding_max_cached_requests": 0} if alone else config


def _suffix(job: Job, requests: Requests, progress: Progress) -> Iterator[Made]:
    from replay.recorded.engine import replay_suffix_grid  # not above: see _recorded

    done, warm = 0, None
    if job.unit.warm_trace is not None and len(job.unit.warm):
        before = Warehouse(job.root).read_trace(job.unit.warm_trace, _COLUMNS, job.unit.warm)
        warm = Requests.from_table(before)

    def more(count: int) -> None:
        nonlocal done
        done += count
        progress(done)

    configs = [suffix_config(unit) for unit in job.units]
    walked = replay_suffix_grid(requests, configs, warm=warm, max_model_len=_limit(job.config), progress=more)
    for unit, (log, memory) in zip(job.units, walked, strict=True):
        made, facts = _walked(unit, requests, log)
        if configs[0]["suffix_decoding_max_cached_requests"]:
            facts["tree"] = asdict(memory) | {"warm_requests": len(unit.warm)}
        yield made, facts


def _walked(unit: Unit, requests: Requests, log: StepLog) -> Made:
    columns = {"finish_reason": requests.meta.column("finish_reason")}
    return tables(unit, requests, log, requests.outputs.lengths, columns), {}


def _live(job: Job, requests: Requests, progress: Progress) -> Iterator[Made]:
    from replay.live.launch import run_live

    engine, run, proposer = job.config.engine.at(job.unit.concurrency), job.config.run, job.unit.proposer
    scheduled = None
    if engine.pace == "arrival":
        scheduled = np.rint(arrivals(requests.meta, job.trace) / engine.speed).astype(np.int64)
    result = run_live(
        requests,
        engine,
        proposer,
        max_model_len=_limit(job.config),
        seed=job.config.trace.seed,
        scheduled_us=scheduled,
        device=job.device,
        hang_after_s=run.hang_after_s,
        progress=progress,
    )
    columns = {
        "finish_reason": result.finish_reason,
        "first_token_us": result.first_token_us,
        "finished_us": result.finished_us,
        "prefix_cache_hit_tokens": result.prefix_cache_hit_tokens,
        "output_digest": [
            digest if greedy else None
            for digest, greedy in zip(digests(result.outputs, job.run), result.greedy, strict=True)
        ],
    }
    made = tables(job.unit, requests, result.log, result.outputs.lengths, columns)
    made["engine_steps"] = result.engine_steps
    made["outputs"] = _outputs(job.unit, result.outputs, result.cuts)
    if scheduled is not None:
        made["dispatches"] = _dispatches(job.unit, scheduled, result.dispatched_us)
    where = {"engines_at_once": max(1, len(run.devices))} | ({} if job.device is None else {"devices": job.device})
    yield made, {"engine": result.engine | where, "reconciliation": result.reconciliation}


def _outputs(unit: Unit, outputs: Tokens, cuts: Tokens) -> pa.Table:
    columns = {
        "proposer": pa.repeat(unit.proposer.name, len(outputs)),
        "concurrency": pa.repeat(pa.scalar(unit.concurrency, pa.int32()), len(outputs)),
        "request": unit.positions.astype(np.int32),
        "output_token_ids": outputs.column(),
        "cut_token_ids": cuts.column(),
    }
    return pa.table(columns, schema=OUTPUTS)


def _dispatches(unit: Unit, scheduled_us: np.ndarray, dispatched_us: np.ndarray) -> pa.Table:
    n = len(unit.positions)
    columns = {
        "proposer": pa.repeat(unit.proposer.name, n),
        "concurrency": pa.repeat(pa.scalar(unit.concurrency, pa.int32()), n),
        "request": unit.positions.astype(np.int32),
        "scheduled_us": scheduled_us,
        "dispatched_us": dispatched_us,
    }
    return pa.table(columns, schema=DISPATCHES)


def tables(
    unit: Unit, requests: Requests, log: StepLog, output_tokens: np.ndarray, columns: dict[str, Any]
) -> dict[str, pa.Table]:
    """The unit's `requests` and `decode_steps` tables.

    Args:
        unit: whose proposer, concurrency and positions they carry.
        requests: what was replayed, in the order of `log.request`.
        log: every decode step; for "none" only its prefill filler is read: S = T - 1, and there are no rows.
        output_tokens: T per request, int.
        columns: further columns of `requests`, one entry per request.

    Raises:
        RuntimeError: the log does not put out T - 1 tokens for every request with T >= 1: our own fault.
    """
    expected = np.maximum(output_tokens - 1, 0).astype(np.int32)
    if unit.proposer.method == "none":
        log = replace(StepLog.of(len(requests), *([] for _ in range(6))), prefill_filler=log.prefill_filler)
        counts = log.counts() | {"steps": expected}
    else:
        counts = log.counts()
        if len(wrong := np.flatnonzero(counts["emitted"] != expected)):
            i = wrong[0]
            name = requests.meta.column("request_id")[int(i)].as_py()
            raise RuntimeError(
                f"{unit.proposer.name}: request {name!r} put out {output_tokens[i]} tokens, "
                f"its decode steps {counts['emitted'][i]}"
            )
    n = len(requests)
    given: dict[str, Any] = {name: requests.meta.column(name) for name in _FROM_TRACE}
    for name in ("tenant", "workload"):
        given[name] = given[name].fill_null(NO_GROUP)
    given |= {
        "proposer": pa.repeat(unit.proposer.name, n),
        "proposer_key": pa.repeat(unit.proposer.key, n),
        "concurrency": pa.repeat(pa.scalar(unit.concurrency, pa.int32()), n),
        "request": unit.positions.astype(np.int32),
        "output_tokens": output_tokens.astype(np.int32),
        **{name: counts[name] for name in counts if name in REQUESTS.names},
        **columns,
    }
    nothing = pa.nulls(n)
    made = pa.table({name: given.get(name, nothing) for name in REQUESTS.names}).cast(REQUESTS)
    steps = log.table(unit.proposer.name, unit.concurrency)
    at = steps.schema.get_field_index("request")
    position = pa.array(unit.positions.astype(np.int32)[log.request])
    return {"requests": made, "decode_steps": steps.set_column(at, steps.schema.field(at), position)}


def digests(outputs: Tokens, key: str) -> list[str]:
    """One digest per output, 16 hex digits, keyed by the run: tells equal outputs of one run apart from others."""
    return [
        hashlib.blake2b(outputs[i].astype("<i4").tobytes(), key=_key(key), digest_size=8).hexdigest()
        for i in range(len(outputs))
    ]


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=32).digest()
