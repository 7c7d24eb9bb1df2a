"""Counts that another tool logged become a run of the warehouse, whole or not at all, labelled `imported`.

What a source does not say is NULL in every view, for all requests of the proposer: a sum over some of them would pass
for one over all. No decode steps come with it, so there are no positions, draft lengths or miss reasons.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from pipeline import commit, remote
from pipeline.counters import ServerCounters
from pipeline.imports import spec_bench, vllm_metrics
from pipeline.imports.counted import SUMMED, Counted
from pipeline.ingest.files import sources
from pipeline.ingest.generation import RowRefused
from pipeline.ingest.records import records
from pipeline.output import plain
from pipeline.warehouse import Warehouse
from schemas.errors import InputError
from schemas.tables import NO_GROUP, REQUESTS, SCHEMA_VERSION

FORMATS: dict[str, ModuleType] = {"spec-bench": spec_bench, "vllm": vllm_metrics}

_ENDINGS = re.compile(r"(\.(jsonl|ndjson|json|csv|parquet|txt|log|sse))?(\.(gz|gzip|zst|zstd))?$", re.IGNORECASE)
_REASONS = {
    "spec-bench": "Spec-Bench logs tokens per step and not what was proposed, and at most one step per turn too many",
    "vllm": "vLLM logs no step without candidates and does not tell filler from candidates",
}


@dataclass(frozen=True)
class Imported:
    """What came of an import. `requests` by proposer; `already_done`: the run was there."""

    run: str
    requests: dict[str, int]
    already_done: bool


def import_counts(given: Sequence[Path], warehouse: Warehouse, run: str) -> Imported:
    """Make a run of logged counts.

    Args:
        given: files or folders, each file of one format (told by its first row); all of them make one run. A proposer
            is called as the file says, else like the file.
        warehouse: takes the run; nothing is written before every row was read.
        run: name of the run.

    Raises:
        InputError: a file or a row cannot be taken (names file, row and key), two rows are the same request, or the
            run exists with other counts.
        EnvironmentProblem: the disk is full or refuses.
        LockedError: another process writes this run.
    """
    commit.safe_name("run", run)
    proposers, facts = _read(given)
    numbered = json.dumps({name: [asdict(one) for one in ones] for name, ones in proposers.items()}, sort_keys=True)
    fingerprint = hashlib.sha256(numbered.encode()).hexdigest()[:16]
    counts = {name: len(ones) for name, ones in proposers.items()}
    with warehouse.lock(run):
        remote.pull_records(warehouse.root)
        record = warehouse.find_run(run)
        if record is not None and record.plan.get("fingerprint") != fingerprint:
            raise InputError(f"run {run} exists with other content: take another name")
        if record is not None and record.done is not None:
            return Imported(run, counts, already_done=True)
        warehouse.sweep_run(run)
        plan = warehouse.write_plan(
            run,
            {
                "schema_version": SCHEMA_VERSION,
                "run": run,
                "label": "imported",
                "engine": {"kind": "imported"},
                "fingerprint": fingerprint,
                "sources": facts,
                "requests": max(counts.values()),
                "proposers": [{"name": name, "key": _key(name), "config": {}} for name in proposers],
                "units": [{"shard": f"{number:04d}", "proposer": name} for number, name in enumerate(proposers)],
                "started": _now(),
            },
        )
        try:
            for number, (name, ones) in enumerate(proposers.items()):
                warehouse.commit_shard(run, f"{number:04d}", {"requests": _table(name, facts[name][0]["format"], ones)})
        except BaseException:
            if not warehouse.committed(run):
                warehouse.discard_plan(run)
            raise
        warehouse.write_done(
            run,
            {
                "schema_version": SCHEMA_VERSION,
                "run": run,
                "status": "complete",
                "reconciled": None,
                "ended": _now(),
                "requests": max(counts.values()),
                "proposers": {name: _facts(name, ones, facts[name]) for name, ones in proposers.items()},
                "failed": {},
                "shards": warehouse.committed(run),
                "plan": plan,
            },
        )
        return Imported(run, counts, already_done=False)


def _read(given: Sequence[Path]) -> tuple[dict[str, list[Counted]], dict[str, list[dict]]]:
    """(outputs by proposer, its files and their formats by proposer), in order of files and rows."""
    found, _ = sources(given)
    proposers: dict[str, list[Counted]] = {}
    facts: dict[str, list[dict]] = {}
    seen: dict[tuple[str, str], str] = {}
    files: set[Path] = set()
    for source in found:
        if source.path.resolve() in files:
            raise InputError(f"{source.path}: is named twice; nothing was imported")
        files.add(source.path.resolve())
        reader, before = None, len(seen)
        for row, record in records(source.path):
            where = f"{source.path} row {row}"
            try:
                if isinstance(record, RowRefused):
                    raise record
                kind = reader or _kind(record)
                reader = kind
                if not isinstance(record, dict) or not FORMATS[kind].matches(record):
                    raise RowRefused("(row)", f"is no {kind} row, as the rows before it are")
                ones = list(FORMATS[kind].counted(record, row))
            except RowRefused as refused:
                raise InputError(f"{where}: {refused}; nothing was imported") from None
            for one in ones:
                name = one.proposer or _ENDINGS.sub("", Path(source.label).name)
                if not name.strip() or not name.isprintable():
                    raise InputError(
                        f"{where}: the proposer would be called {plain(name, 60)!r}, by its "
                        f"{'model_id' if one.proposer else 'file'}; that must be one line of printable text"
                    )
                first = seen.setdefault((name, one.request_id), where)
                if first != where:
                    raise InputError(
                        f"{where}: request {plain(one.request_id, 60)!r} of {plain(name, 60)} came before ({first}); "
                        "nothing was imported"
                    )
                proposers.setdefault(name, []).append(one)
                fact = {"file": source.label, "format": kind}
                if fact not in facts.setdefault(name, []):
                    facts[name].append(fact)
                if facts[name][0]["format"] != kind:
                    raise InputError(f"{where}: {plain(name, 60)} is of another format in {facts[name][0]['file']}")
        if len(seen) == before:
            raise InputError(f"{source.path}: holds no counts; nothing was imported")
    return proposers, facts


def _kind(record: Any) -> str:
    if isinstance(record, dict):
        for kind, module in FORMATS.items():
            if module.matches(record):
                return kind
    raise RowRefused("(row)", "is neither an answer of Spec-Bench nor a response of vLLM with metrics")


def _table(proposer: str, kind: str, ones: list[Counted]) -> pa.Table:
    """Rows of `requests`, in the order of the source."""
    columns: dict[str, list] = {name: [getattr(one, name) for one in ones] for name in Counted.__dataclass_fields__}
    for name, values in columns.items():
        if name in SUMMED and None in values:
            columns[name] = [None] * len(ones)
    if kind == "vllm":
        columns |= {f"engine_{name}": columns[name] for name in ("rounds", "drafted", "accepted")}
    n = len(ones)
    columns |= {
        "proposer": [proposer] * n,
        "concurrency": [1] * n,
        "proposer_key": [_key(proposer)] * n,
        "request": list(range(n)),
        "tenant": [NO_GROUP] * n,
    }
    return pa.table({field.name: pa.array(columns.get(field.name, [None] * n), field.type) for field in REQUESTS})


def _facts(name: str, ones: list[Counted], files: list[dict]) -> dict[str, Any]:
    """What done.json says of a proposer: its label and why, and between which bounds coverage lies if that is known."""
    kind = files[0]["format"]
    reasons = [_REASONS[kind]]
    out: dict[str, Any] = {"key": _key(name), "label": "imported", "sources": files}
    if kind == "vllm":
        unknown = sum(one.output_tokens is None for one in ones)
        if unknown:
            reasons.append(f"{unknown} of {len(ones)} responses do not say their usage.completion_tokens")
        else:
            bounds = _bounds(name, ones)
            if bounds.coverage is not None and bounds.tokens_per_step is not None:
                out["bounds"] = {"coverage": bounds.coverage, "tokens_per_step": bounds.tokens_per_step}
                (low, high), (least, most) = bounds.coverage, bounds.tokens_per_step
                reasons.append(
                    f"from its tokens, coverage is between {low:.1%} and {high:.1%} and tokens per step between "
                    f"{least:.2f} and {most:.2f}"
                )
    return out | {"reason": "; ".join(reasons)}


def _bounds(name: str, ones: list[Counted]) -> ServerCounters:
    """The same as one server's counters, for which the bounds are known."""

    def total(column: str) -> int:
        return sum(getattr(one, column) for one in ones)

    return ServerCounters(
        model=name,
        generated=total("output_tokens"),
        first_tokens=sum(bool(one.output_tokens) for one in ones),
        ended=len(ones),
        rounds=total("rounds"),
        drafted=total("drafted"),
        accepted=total("accepted"),
        positions=max(one.longest for one in ones),
    )


def _key(name: str) -> str:
    """Takes the place of the hash of a proposer's settings, which nobody logged."""
    return hashlib.sha256(f"imported {name}".encode()).hexdigest()[:12]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
