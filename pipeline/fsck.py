"""Checks a warehouse file by file against its commit objects, names what is wrong, and mends what can be mended.

A run and its two kinds of record (commit objects, done.json) can stand in for each other; data files cannot: a damaged
shard is taken back, so that the same replay computes it again. A damaged trace needs its logs again, so nothing of it
is deleted. The same in a folder and in an object store, whose every file then comes down once. Knows bytes, hashes and
row counts; whether the numbers in a file are right, it does not know.
"""

import contextlib
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline import commit, places, remote, removal
from pipeline.findings import Finding, FsckReport
from pipeline.integrity import Examiner, files_of, is_done, left_in, stale_in, traces_of, units_of
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem, InputError, LockedError
from schemas.tables import RUN_TABLES

_AGAIN = "run the same replay again"
_IMPORT = "import it again under the same name"
_SETTLED = timedelta(days=1)
"""Longer than any writer leaves a file in an object store without its commit object."""


def fsck(warehouse: Warehouse, repair: bool = False, now: datetime | None = None) -> FsckReport:
    """Check every committed file (sha256 and rows), every record, and look for what nobody names.

    Args:
        warehouse: may be in use; what other processes hold locked is not repaired and not searched for leftovers.
            Locks hold on one machine: in an object store, files that nobody names count from a day of age on, and a run
            that another machine works on must not be repaired.
        repair: mend what can be mended: remove leftovers, write a lost commit object again from done.json or the other
            way round, finish a removal, and take back damaged shards so that the same replay computes them again.
        now: the moment ages are counted from, with its zone; None = now, by the store's clock if it deletes there.

    Raises:
        InputError: there is no warehouse.
        EnvironmentProblem: the disk refuses, or the store.
    """
    root = warehouse.root
    if not root.is_dir():
        raise InputError(f"no warehouse at {root}")
    remote.pull_records(root, anew=True)
    work = _Check(root, repair, (now or (remote.now(root) if repair else None) or datetime.now(UTC)) - _SETTLED)
    try:
        _check_all(work, warehouse)
    except OSError as error:  # not damage: nothing may be taken back because of it
        raise EnvironmentProblem(f"{error.filename or root}: {error.strerror or error}") from None
    work.report.files, work.report.bytes = work.examiner.files, work.examiner.bytes
    return work.report


def _check_all(work: "_Check", warehouse: Warehouse) -> None:
    root, repair = warehouse.root, work.repair
    there = {parent: places.folders(root, parent) for parent in (*RUN_TABLES, "_commits", "runs", "traces", "rejects")}
    runs = [f for table in (*RUN_TABLES, "_commits") for f in there[table] if f.name.startswith("run=")]
    for run in work.names(runs + there["runs"], "run="):
        base = re.sub(r"-r\d+$", "", run)  # a repeat runs under its first run's lock
        with _alone(warehouse, [run] if base == run else [base, run], repair) as alone:
            work.run(run, alone)
        if not alone:
            work.report.in_use.append(f"run {run}")
    traces = [f for parent in ("_commits", "rejects") for f in there[parent] if f.name.startswith("trace=")]
    for trace in work.names(traces + there["traces"], "trace="):
        with _alone(warehouse, [f"trace-{trace}"], repair) as alone:
            work.trace(trace, alone)
        if not alone:
            work.report.in_use.append(f"trace {trace}")


@contextmanager
def _alone(warehouse: Warehouse, names: list[str], repair: bool) -> Generator[bool]:
    """Hold the locks; False where another process has one. Looking only, a disk that takes no lock will do."""
    with contextlib.ExitStack() as stack:
        alone = True
        try:
            for name in names:
                stack.enter_context(warehouse.lock(name))
        except LockedError:
            alone = False
        except (OSError, EnvironmentProblem):
            if repair:
                raise
        yield alone


class _Check:
    """One check under way."""

    def __init__(self, root: Path, repair: bool, before: datetime) -> None:
        self.root, self.repair, self.before, self.report = root, repair, before, FsckReport()
        self.examiner = Examiner(root)
        self.again = _AGAIN
        """What brings back the run that is looked at."""
        self.traces: set[str] = set()
        """Traces that some run was planned over."""

    def say(self, path: Path | str, problem: str, action: str, repaired: bool = False) -> None:
        name = path if isinstance(path, str) else path.relative_to(self.root).as_posix()
        self.report.findings.append(Finding(name, problem, action, repaired))

    def mend(self, path: Path | str, problem: str, action: str) -> bool:
        """Note what can be mended; True when it is to be done now."""
        self.say(path, problem, action if self.repair else f"--repair: {action}", self.repair)
        return self.repair

    def names(self, folders: list[Path], prefix: str) -> list[str]:
        """What the folders are called, once each; a folder whose name we would never give is left alone."""
        found = set()
        for folder in folders:
            name = folder.name.removeprefix(prefix)
            if commit.is_safe(name):
                found.add(name)
            else:
                self.say(folder, "is no folder of a run or trace", "left alone; move it out of the warehouse")
        return sorted(found)

    # Runs

    def run(self, run: str, alone: bool) -> None:
        folder, commits = self.root / "runs" / run, self.root / "_commits" / f"run={run}"
        objects = {path.stem: self.record(path) for path in sorted(commits.glob("*.json"))}
        plan, done = self.record(folder / "plan.json"), self.record(folder / "done.json")
        if "new" in (plan, done, *objects.values()):
            return  # said already; whoever wrote it knows what is right
        known = plan if isinstance(plan, dict) else done.get("plan") if isinstance(done, dict) else None
        self.again = _IMPORT if isinstance(known, dict) and known.get("label") == "imported" else _AGAIN
        if isinstance(plan, dict):
            self.traces |= traces_of(plan)
        if isinstance(done, dict) and removal.is_removed(done):
            if alone and self.mend(folder / "done.json", "says that the run is removed, but files are left", "deleted"):
                removal.finish(self.root, run)
            return
        done = done if _is_of(done, run=run) else "torn"
        shards = done["shards"] if isinstance(done, dict) and is_done(done) else {}
        good, lost = self.shards(run, objects, shards, alone)
        if not alone:
            return
        if isinstance(done, dict) and "plan" in done:
            plan, done = self.both_plans(run, plan, done)
        elif not isinstance(plan, dict) and (objects or shards):
            self.say(folder / "plan.json", f"is {plan or 'missing'}", self.again + ", it writes it again")
        elif plan == "torn" and self.mend(folder / "plan.json", "is torn", "removed"):
            places.delete(self.root, folder / "plan.json")
        self.done(folder / "done.json", done, plan, good, lost)
        for shard, document in lost.items():
            self.take_back(run, shard, document)
        kept = good if self.repair else good | lost
        named = {self.root / file["path"] for document in kept.values() for file in files_of(document)}
        for place in removal.folders(self.root, run):
            self.leftovers(place, named)

    def both_plans(self, run: str, plan: dict | str | None, done: dict) -> tuple[dict | str | None, dict]:
        """(plan, done.json): a finished run has its plan in both, and readers go by done.json; each mends the other."""
        folder, held = self.root / "runs" / run, done["plan"]
        if isinstance(held, dict) and held.get("run", run) == run:
            if plan != held:
                what = "disagrees with done.json" if isinstance(plan, dict) else f"is {plan or 'missing'}"
                if self.mend(folder / "plan.json", what, "written again from done.json"):
                    commit.replace_json(self.root, f"runs/{run}/plan.json", held)
            return held, done
        if isinstance(plan, dict):
            done = done | {"plan": plan}
            if self.mend(folder / "done.json", "holds no plan of this run", "written again with that of plan.json"):
                commit.replace_json(self.root, f"runs/{run}/done.json", done)
        else:
            self.say(folder / "done.json", "holds no plan of this run", self.again + ", it writes it again")
        return plan, done

    def shards(self, run: str, objects: dict, shards: dict, alone: bool) -> tuple[dict[str, dict], dict[str, dict]]:
        """(sound shards, damaged shards) by name; records that are lost are written again from the other kind."""
        good, lost, places = {}, {}, _places(run)
        for shard in sorted(objects.keys() | shards.keys()):
            path = self.root / "_commits" / f"run={run}" / f"{shard}.json"
            ours, theirs = objects.get(shard, "missing"), shards.get(shard)
            ours = ours if _is_of(ours, run=run, shard=shard) else "torn"
            theirs = theirs if _is_of(theirs, run=run, shard=shard) else None
            problems = self.examiner.problems(ours, places) if isinstance(ours, dict) else {}
            if isinstance(ours, dict) and not problems:
                good[shard] = ours
            elif isinstance(theirs, dict) and theirs != ours and not self.examiner.problems(theirs, places):
                good[shard] = theirs
                what = f"is {ours}" if isinstance(ours, str) else "names " + (next(iter(problems)) or "no files")
                if alone and self.mend(path, what, "written again from done.json"):
                    commit.replace_json(self.root, str(path.relative_to(self.root)), theirs)
            else:
                lost[shard] = ours if isinstance(ours, dict) else theirs if isinstance(theirs, dict) else {}
                if isinstance(ours, str):
                    problems = {path.relative_to(self.root).as_posix(): f"is {ours}"} | (
                        self.examiner.problems(theirs, places) if isinstance(theirs, dict) else {}
                    )
                for name, problem in problems.items():
                    action = f"shard {shard} taken back: {self.again}"
                    if alone:
                        self.mend(name or path, problem, action)
                    else:
                        self.say(name or path, problem, "in use: check again later")
        return good, lost

    def done(self, path: Path, done: Any, plan: Any, good: dict[str, dict], lost: dict[str, dict]) -> None:
        """done.json must name the shards as their commit objects do, and all that were planned."""
        if done is None:
            return
        if done == "torn" or not is_done(done):
            if self.mend(path, "is torn", f"removed: {self.again}, nothing is computed twice"):
                places.delete(self.root, path)
            return
        units = units_of(plan) if isinstance(plan, dict) else set()
        whole = not lost and not done.get("failed") and units <= good.keys()
        if done["shards"] == good and (whole or done["status"] != "complete"):
            return
        if whole:
            if self.mend(path, "disagrees with the commit objects", "written again from them"):
                commit.replace_json(self.root, path.relative_to(self.root).as_posix(), done | {"shards": good})
        elif lost and self.repair:
            places.delete(self.root, path)  # part of taking the shards back
        elif not lost:
            missing = ", ".join(sorted((units or good.keys()) ^ done["shards"].keys())) or "a failed unit"
            if self.mend(path, f"disagrees with the commit objects ({missing})", f"removed: {self.again} to finish"):
                places.delete(self.root, path)

    def take_back(self, run: str, shard: str, document: dict) -> None:
        """Uncommit a shard, then delete its files. done.json is gone by now: readers go by commit objects."""
        if not self.repair:
            return
        places.delete(self.root, self.root / "_commits" / f"run={run}" / f"{shard}.json")
        for file in files_of(document):
            if file["path"].rpartition("/")[0] in _places(run):
                places.delete(self.root, self.root / file["path"])

    # Traces

    def trace(self, trace: str, alone: bool) -> None:
        again = "ingest its logs again under the same name"
        for kind, place in (("trace", self.root / "traces" / trace), ("rejects", self.root / f"rejects/trace={trace}")):
            path = self.root / "_commits" / f"trace={trace}" / f"{kind}.json"
            document = self.record(path)
            if document == "new":
                continue
            document = document if _is_of(document, **{"name" if kind == "trace" else "trace": trace}) else "torn"
            named = set()
            if isinstance(document, dict):
                named = {self.root / file["path"] for file in files_of(document)}
                for name, problem in self.examiner.problems(
                    document, {place.relative_to(self.root).as_posix()}
                ).items():
                    self.say(name or path, problem, again)
            elif document == "torn" or (kind == "trace" and trace in self.traces and places.files(self.root, place)):
                self.say(path, f"is {document or 'missing'}", again)
                named = {file.path for file in places.files(self.root, place)}
            if alone:
                self.leftovers(place, named)
        if alone:
            self.leftovers(self.root / "_commits" / f"trace={trace}", set())

    # Files

    def record(self, path: Path) -> dict | str | None:
        """The document; None where there is none, "torn", or "new" (of a version not known here; says so)."""
        document = commit.read_json(path)
        if not isinstance(document, dict):
            return "torn" if path.exists() else None
        version = document.get("schema_version", 1)
        if not commit.is_known(version):
            self.say(path, f"has schema version {version!r}, which is not known here", "upgrade specreplay")
            return "new"
        return document

    def leftovers(self, place: Path, named: set[Path]) -> None:
        """Temporary files of dead processes, and data files that nothing names."""
        for path, what in left_in(self.root, place, named, self.before):
            if self.mend(path, what, "removed"):
                places.delete(self.root, path)
        for path, what in stale_in(self.root, place):
            if path in named and self.mend(path, what, "removed, it comes down again"):
                path.unlink(missing_ok=True)


def _places(run: str) -> set[str]:
    """Folders below the warehouse that hold a run's data files."""
    return {f"{table}/run={run}" for table in RUN_TABLES}


def _is_of(record: Any, **keys: str) -> bool:
    """Whether a record is the one its place says; a record that is missing or torn is nobody's."""
    return not isinstance(record, dict) or all(record.get(key) == value for key, value in keys.items())
