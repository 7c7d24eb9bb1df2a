"""A replay from plan to done.json: skip what is committed, run the rest, say what came of it.

The same call again resumes what is unfinished or says that it is done. What a run comes to follows from its commit
objects, so that a run killed at any moment ends like one that was not.
"""

import logging
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pipeline.equality import compare, shard_of
from pipeline.executor import run_jobs
from pipeline.history import total
from pipeline.labels import labels
from pipeline.plan import Plan, plan
from pipeline.preflight import Warn, before_replay
from pipeline.units import Job, perform, shared
from pipeline.warehouse import RunRecord, Warehouse
from replay.live.process import check_devices
from schemas.config import ReplayConfig
from schemas.errors import EnvironmentProblem, GateError, ReconciliationError, SpecreplayError, UnitsFailedError
from schemas.tables import SCHEMA_VERSION

log = logging.getLogger(__name__)

Report = Callable[[str, int, int], None]
"""(proposer, requests done, requests in all)."""


@dataclass(frozen=True)
class RunOutcome:
    """What came of a replay. `already_done`: nothing had to run."""

    run: str
    status: str
    already_done: bool
    failed: dict[str, str]
    """Why each failed unit failed, by shard."""
    mismatches: list[str]
    """What does not reconcile, one line each."""
    unequal: list[str]
    """Where fewer outputs equal those of none than the config's gate asks for, one line each."""

    def raise_for_status(self) -> None:
        """Do nothing for a complete run.

        Raises:
            ReconciliationError: the step log does not add up to the engine's counters; names the first counter.
            UnitsFailedError: some units failed; the same command tries them again.
            GateError: too few outputs equal those of none.
        """
        if self.mismatches:
            more = f" (and {len(self.mismatches) - 1} more)" if len(self.mismatches) > 1 else ""
            raise ReconciliationError(f"run {self.run} does not reconcile: {self.mismatches[0]}{more}")
        if self.failed:
            shard, reason = next(iter(self.failed.items()))
            raise UnitsFailedError(
                f"run {self.run}: {len(self.failed)} units failed, the others are committed; "
                f"{shard}: {reason}; run the same command again to finish"
            )
        if self.unequal:
            more = f" (and {len(self.unequal) - 1} more)" if len(self.unequal) > 1 else ""
            raise GateError(f"run {self.run}: {self.unequal[0]}{more}")


def replay(
    config: ReplayConfig,
    warehouse: Warehouse,
    *,
    again: bool = False,
    progress: Report | None = None,
    warn: Warn | None = None,
) -> RunOutcome:
    """Replay the config's trace with each of its proposers.

    Args:
        config: what to replay.
        warehouse: holds the trace; takes the results.
        again: measure once more, as run `…-r2`, `…-r3`, …, although the run is done.
        progress: told (proposer, requests done, requests in all).
        warn: told each warning of a live replay's preflight, before the first engine starts.

    Returns:
        RunOutcome; call `raise_for_status` once its numbers are shown.

    Raises:
        InputError: the config or the trace is wrong.
        EnvironmentProblem: the disk is full, or no unit could run here.
        UnitsFailedError: every unit failed.
        LockedError: another process runs this replay.
    """
    planned = plan(config, warehouse)
    with warehouse.lock(planned.run):
        run, record = _choose(warehouse, planned.run, again)
        if record is not None and record.done is not None and _settled(record.done):
            warehouse.write_plan(run, record.plan)  # nothing, unless it was lost
            return _outcome(run, record.done, config.run.min_equal_outputs, already_done=True)
        warehouse.sweep_run(run)
        started: dict[str, Any] = {"run": run, "started": _now(), "hardware": _hardware()}
        if planned.live and not {unit.shard for unit in planned.units} <= warehouse.committed(run).keys():
            started["preflight"] = before_replay(planned, warehouse, warn or (lambda finding: None))
        document = warehouse.write_plan(run, planned.as_dict() | started)
        try:
            failed = _work(planned, warehouse, run, progress or (lambda proposer, done, total: None))
        except BaseException:
            if not warehouse.committed(run):
                warehouse.discard_plan(run)
            raise
        done = _summary(planned, warehouse, run, failed) | {"plan": document}
        warehouse.write_done(run, done)
        return _outcome(run, done, config.run.min_equal_outputs, already_done=False)


def _choose(warehouse: Warehouse, base: str, again: bool) -> tuple[str, RunRecord | None]:
    """The run to work on: the base, or with `again` the latest repeat if it is unfinished, else the next one."""
    run, repeat = base, 1
    record = warehouse.find_run(run)
    while again and record is not None and _settled(record.done):
        repeat += 1
        run = f"{base}-r{repeat}"
        record = warehouse.find_run(run)
    return run, record


def _settled(done: dict | None) -> bool:
    """True when running again would change nothing: complete, or failed to reconcile. Failed units are tried again."""
    return done is not None and not any(not unit["mismatch"] for unit in done["failed"].values())


def _work(planned: Plan, warehouse: Warehouse, run: str, report: Report) -> dict[str, dict]:
    """Run the units that are not committed; returns {shard: {reason, mismatch}} of those that failed."""
    committed = warehouse.committed(run)
    counts = {unit.shard: len(unit.rows) if unit.shard in committed else 0 for unit in planned.units}
    shards: dict[str, list[str]] = {}
    each = {unit.concurrency for unit in planned.units}
    for unit in planned.units:
        shards.setdefault(unit.proposer.name, []).append(unit.shard)

    def tell(proposer: str) -> None:
        report(proposer, sum(counts[shard] for shard in shards[proposer]), planned.requests * len(each))

    def advance(job: Job, count: int) -> None:
        for unit in job.units:  # done one after the other
            before, counts[unit.shard] = counts[unit.shard], min(count, len(unit.rows))
            count -= counts[unit.shard]
            if counts[unit.shard] != before:
                tell(unit.proposer.name)

    failed: dict[str, dict] = {}
    errors: list[Exception] = []

    def give_up(job: Job, error: Exception) -> None:
        mismatch = isinstance(error, ReconciliationError)
        reason = str(error) if isinstance(error, SpecreplayError | RuntimeError) else f"{type(error).__name__}: {error}"
        there = warehouse.committed(run) if job.also else {}
        for unit in job.units:
            if unit.shard not in there:
                failed[unit.shard] = {"reason": reason, "mismatch": mismatch}
                errors.append(error)
                log.warning("unit %s failed: %s", unit.shard, reason)

    for proposer in shards:
        tell(proposer)
    left = [unit for unit in planned.units if unit.shard not in committed]
    jobs = [
        Job(str(warehouse.root), run, planned.trace.name, planned.config, first, tuple(also))
        for first, *also in shared(left, planned.live)
    ]
    devices = planned.config.run.devices if planned.live else ()
    check_devices(devices)
    run_jobs(
        jobs,
        perform,
        max(1, len(devices)) if planned.live else planned.config.run.workers,  # live: an engine per device
        devices=devices,
        done=lambda job, facts: advance(job, sum(len(unit.rows) for unit in job.units)),
        failed=give_up,
        progress=advance,
    )
    if errors and len(errors) == len(planned.units) and not any(isinstance(e, ReconciliationError) for e in errors):
        if all(isinstance(error, EnvironmentProblem) for error in errors):
            raise errors[0]
        shard, first = next(iter(failed.items()))
        raise UnitsFailedError(f"run {run}: all {len(errors)} units failed; {shard}: {first['reason']}")
    if planned.live:
        failed |= {shard: {"reason": why, "mismatch": False} for shard, why in compare(planned, warehouse, run).items()}
    return failed


def _summary(planned: Plan, warehouse: Warehouse, run: str, failed: dict[str, dict]) -> dict[str, Any]:
    """done.json, but for the plan: a function of the plan, the commit objects and what failed (and of the clock)."""
    committed = warehouse.committed(run)
    names = [name for unit in planned.units for name in (unit.shard, shard_of(unit))]
    mine = {name: committed[name] for name in names if name in committed}
    known = labels(planned, warehouse)
    proposers: dict[str, dict] = {p.name: {"key": p.key} | known[p.name] for p in planned.config.proposer}
    trees: dict[str, list[dict]] = {}
    several = len({unit.concurrency for unit in planned.units}) > 1
    for unit in planned.units:
        entry = proposers[unit.proposer.name]
        if several:
            entry = entry.setdefault("concurrencies", {}).setdefault(str(unit.concurrency), {})
        if unit.shard in mine:
            facts = mine[unit.shard]["facts"]
            entry |= facts.get("engine", {})
            entry |= {key: value for key, value in facts.items() if key not in ("engine", "tree")}
            if "tree" in facts:
                trees.setdefault(unit.proposer.name, []).append(facts["tree"])
        if shard_of(unit) in mine:
            entry |= mine[shard_of(unit)]["facts"]
    for name, found in trees.items():
        proposers[name]["tree"] = total(found)
    checked = [entry["reconciliation"]["ok"] for _, entry in _engines(proposers) if "reconciliation" in entry]
    reconciled = not any(unit["mismatch"] for unit in failed.values()) and all(checked)
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "status": "complete" if reconciled and not failed else "failed",
        "reconciled": reconciled if planned.live else None,
        "ended": _now(),
        "requests": planned.requests,
        "proposers": proposers,
        "failed": failed,
        "shards": mine,
    }


def _engines(proposers: dict[str, dict]) -> list[tuple[str, dict]]:
    """What done.json says of each engine that ran: (which one, facts)."""
    out = []
    for name, entry in proposers.items():
        for concurrency, facts in entry.get("concurrencies", {"": entry}).items():
            out.append((f"{name!r}" + (f" at concurrency {concurrency}" if concurrency else ""), facts))
    return out


def _outcome(run: str, done: dict, least_equal: float | None, already_done: bool) -> RunOutcome:
    mismatches = [unit["reason"] for unit in done["failed"].values() if unit["mismatch"]]
    for name, entry in _engines(done["proposers"]):
        for wrong in entry.get("reconciliation", {}).get("mismatches", ()):
            of = f" of request {wrong['request']!r}" if "request" in wrong else ""
            mismatches.append(
                f"proposer {name}: {wrong['counter']}{of} is {wrong['engine']} in the engine, "
                f"{wrong['step_log']} in the step log"
            )
    failed = {shard: unit["reason"] for shard, unit in done["failed"].items() if not unit["mismatch"]}
    return RunOutcome(run, done["status"], already_done, failed, mismatches, _unequal(done, least_equal))


def _unequal(done: dict, least: float | None) -> list[str]:
    if not least:
        return []
    out = []
    for name, entry in _engines(done["proposers"]):
        if (said := entry.get("outputs")) is None:
            continue
        compared, equal = said["compared"], said["equal"]
        if not compared:
            out.append(f"proposer {name}: no request was sampled greedily, so [run] min_equal_outputs cannot hold")
        elif equal < least * compared:
            out.append(
                f"proposer {name}: {equal:,} of {compared:,} outputs equal those of none "
                f"({equal / compared:.1%}); [run] min_equal_outputs = {least:g}"
            )
    return out


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _hardware() -> dict[str, Any]:
    return {"machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count()}
