"""The warehouse: a folder of immutable files, and commit objects that say which of them count.

Readers see only what a commit object names. Data files come first (synced, renamed), the commit object last, created
only if absent: whoever commits a shard first wins, killed or not. Knows files and schemas, no proposer and no SQL.
"""

import contextlib
import json
import os
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import filelock
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import commit, parquet, remote, removal, tracefiles
from pipeline.tracefiles import TraceInfo
from schemas.errors import EnvironmentProblem, InputError, LockedError
from schemas.tables import ROLLUP_HISTOGRAM, ROLLUP_STEPS, RUN_TABLES, SCHEMA_VERSION

_ORDER = {  # requests first: decode steps follow their order
    "requests": ("proposer", "concurrency", "workload", "session_id", "request"),
    "decode_steps": ("proposer", "concurrency", "request", "step"),
    "engine_steps": ("proposer", "concurrency", "engine_step"),
    "dispatches": ("proposer", "concurrency", "request"),
    "outputs": ("proposer", "concurrency", "request"),
    "output_differences": ("proposer", "concurrency", "request"),
    "rollup_steps": tuple(ROLLUP_STEPS.names),
    "rollup_histogram": tuple(ROLLUP_HISTOGRAM.names),
    "rollup_groups": ("proposer", "concurrency", "scope", "workload", "tenant"),
}
_DELTA = {"request", "step", "engine_step"}
_GROUP_ROWS = 1 << 20


@dataclass(frozen=True)
class RunRecord:
    """A run: what was planned (`plan.json`) and what came of it (`done.json`, None while unfinished)."""

    run: str
    plan: dict
    done: dict | None

    @property
    def status(self) -> str:
        """complete, failed or unfinished."""
        return self.done["status"] if self.done else "unfinished"


class Warehouse:
    """A warehouse at a folder, which the first write makes, or in an object store (`pipeline.remote`)."""

    def __init__(self, root: str | Path):
        """Name the folder; nothing is read or made yet.

        Raises:
            InputError: the root is a file, or a URL other than s3://bucket/prefix.
        """
        url = remote.url_of(root)
        self.root = remote.mirror(url) if url else Path(root).expanduser().absolute()
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root}: a warehouse is a folder, this is a file")

    def __repr__(self) -> str:
        return f"Warehouse({str(self.root)!r})"

    # Shards of runs

    def commit_shard(self, run: str, shard: str, tables: Mapping[str, pa.Table], facts: Mapping | None = None) -> bool:
        """Write a shard's tables (one proposer at one concurrency) and commit them together.

        Args:
            run: name of the run (letters, digits, dot, dash, underscore).
            shard: name of the shard, likewise.
            tables: by name in `schemas.tables.RUN_TABLES`; an empty table makes no file.
            facts: small JSON that is committed with the shard (reconciliation, engine).

        Returns:
            False when someone else had committed the shard: theirs stays, ours is removed.

        Raises:
            EnvironmentProblem: the disk is full or refuses; nothing is committed.
        """
        commit.safe_name("run", run)
        commit.safe_name("shard", shard)
        name = f"_commits/run={run}/{shard}.json"
        files: list[dict] = []
        try:
            for table, rows in _sorted(tables).items():
                groups = (rows.slice(i, _GROUP_ROWS) for i in range(0, rows.num_rows, _GROUP_ROWS))
                delta = _DELTA & set(rows.column_names)
                written = parquet.write_parquet(
                    self.root / table / f"run={run}", shard, groups, RUN_TABLES[table], delta
                )
                path = str(written.path.relative_to(self.root))
                files.append({"table": table, "path": path, "sha256": written.sha256, "rows": written.rows})
            document = {
                "schema_version": SCHEMA_VERSION,
                "run": run,
                "shard": shard,
                "files": files,
                "facts": dict(facts or {}),
            }
            theirs = commit.create_json(self.root, name, document)
        except EnvironmentProblem:
            commit.drop(self.root, files, commit.read_json(self.root / name))
            raise
        if theirs is not None:
            commit.drop(self.root, files, theirs)
        return theirs is None

    def committed(self, run: str) -> dict[str, dict]:
        """Commit objects of a run by shard name, in order of name: {schema_version, run, shard, files, facts}."""
        self._must_exist()
        folder = self.root / "_commits" / f"run={run}"
        documents = ((path.stem, commit.read_known(path)) for path in sorted(folder.glob("*.json")))
        return {shard: document for shard, document in documents if document is not None}

    def files(self, table: str, runs: Sequence[str] | None = None) -> list[str]:
        """Paths of the committed files of a run table, in order of run and shard.

        A finished run is read through its done.json alone, an unfinished one through its commit objects.

        Args:
            table: a name in `schemas.tables.RUN_TABLES`.
            runs: names; None = all.
        """
        return [shard[table] for shard in self.shards(runs) if table in shard]

    def shards(self, runs: Sequence[str] | None = None) -> list[dict[str, str]]:
        """The committed shards in order of run and shard, each as {run table: path}; read as `files` says."""
        return self.snapshot(runs)[1]

    def snapshot(self, runs: Sequence[str] | None = None) -> tuple[list[RunRecord], list[dict[str, str]]]:
        """What `runs` and `shards` say, of the same moment: every done.json is read once, and says all of its run.

        Args:
            runs: only these; None = all.
        """
        self._must_exist()
        if runs is None:
            folders = [*self.root.glob("runs/*/"), *self.root.glob("_commits/run=*/")]
            runs = sorted({folder.name.removeprefix("run=") for folder in folders})
        records, found = [], []
        for run in runs:
            done = self._done(run)
            record = self._record(run, done)
            records += [] if record is None else [record]
            shards = done["shards"] if done else self.committed(run)
            found += [{f["table"]: f["path"] for f in shard["files"]} for shard in shards.values()]
        remote.pull_files(self.root, [path for shard in found for path in shard.values()])
        root = str(self.root)
        shards = [{table: f"{root}/{path}" for table, path in shard.items()} for shard in found]
        return sorted(records, key=_started), shards

    # Runs

    def write_plan(self, run: str, plan: Mapping) -> dict:
        """Create the run's plan.json if absent; returns the plan that holds (the first one written)."""
        commit.safe_name("run", run)
        return commit.create_json(self.root, f"runs/{run}/plan.json", plan) or dict(plan)

    def write_done(self, run: str, done: Mapping) -> None:
        """Write the run's done.json, the last file of a run.

        It must hold status ("complete" or "failed") and shards (as `committed` gives them), and should hold the plan
        (as `write_plan` gives it): a finished run then opens with this one read.
        """
        commit.safe_name("run", run)
        commit.replace_json(self.root, f"runs/{run}/done.json", done)

    def discard_plan(self, run: str) -> None:
        """Forget a run of which nothing was committed."""
        folder = self.root / "runs" / run
        (folder / "plan.json").unlink(missing_ok=True)
        remote.delete(self.root, f"runs/{run}/plan.json")
        with contextlib.suppress(OSError):
            folder.rmdir()

    def run(self, run: str) -> RunRecord:
        """One run.

        Raises:
            InputError: no such run; names the latest ones.
        """
        self._must_exist()
        record = self.find_run(run)
        if record is None:
            latest = ", ".join(record.run for record in self.runs()[-5:])
            raise InputError(
                f"no run {run!r} in {remote.shown(self.root)}; {f'the latest are: {latest}' if latest else 'none yet'}"
            )
        return record

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first (by the plan's `started`, as its writer's clock had it, then name)."""
        self._must_exist()
        records = (self.find_run(folder.name) for folder in self.root.glob("runs/*/"))
        return sorted((record for record in records if record is not None), key=_started)

    def find_run(self, run: str) -> RunRecord | None:
        """One run, or None where it was never planned."""
        return self._record(run, self._done(run))

    def _record(self, run: str, done: dict | None) -> RunRecord | None:
        if removal.is_removed(done):
            return None
        done = None if done is None else dict(done)
        # Older runs, and unfinished ones, say their plan in plan.json alone.
        plan = done.pop("plan", None) if done else None
        if not isinstance(plan, dict):
            plan = commit.read_known(self.root / "runs" / run / "plan.json")
        return None if plan is None else RunRecord(run, plan, done)

    def sweep_run(self, run: str) -> None:
        """Remove what killed processes left in the run, or left of it. Call it under the run's lock."""
        if removal.is_removed(self._done(run)):
            removal.finish(self.root, run)
        for folder in removal.folders(self.root, run):
            commit.sweep(folder)

    def _done(self, run: str) -> dict | None:
        path = self.root / "runs" / run / "done.json"
        done = commit.read_known(path)
        if done is not None and not {"status", "shards"} <= done.keys():
            raise InputError(f"{path} does not say what came of the run; specreplay fsck --repair mends it")
        return done

    # Locks

    @contextmanager
    def lock(self, name: str) -> Generator[None]:
        """Hold `name` (a run or trace) alone; the kernel frees it when the process ends, however it ends.

        Raises:
            LockedError: another process holds it; says which.
        """
        folder = self.root / ".locks"
        with commit.disk_errors(folder):
            commit.make_folder(folder)
        lock = filelock.FileLock(folder / f"{commit.safe_name('lock', name)}.lock")
        owner = folder / f"{name}.owner"
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            raise LockedError(f"{name} is in use by {_owner(owner)}; run the command again when it is done") from None
        try:
            with contextlib.suppress(OSError):  # who holds it is a courtesy, not needed on a full disk
                owner.write_text(json.dumps({"pid": os.getpid(), "command": Path(sys.argv[0]).name}), "utf-8")
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()

    # Traces

    def write_trace(self, name: str, batches: Iterable[pa.Table], origin: str | None = None) -> TraceInfo:
        """Commit canonical rows under `name`; the same rows again are a no-op. See `tracefiles.write`.

        Raises:
            InputError: other rows under that name, a request id twice, a needed value NULL, or no rows.
            LockedError: another process writes this trace.
            EnvironmentProblem: the disk is full or refuses.
        """
        with self.lock(f"trace-{commit.safe_name('trace', name)}"):
            return tracefiles.write(self.root, name, batches, origin)

    def trace(self, name: str) -> TraceInfo:
        """What is known of a trace without opening its files.

        Raises:
            InputError: no such trace; lists those that exist.
        """
        self._must_exist()
        return tracefiles.info(self.root, name)

    def traces(self) -> list[TraceInfo]:
        """All traces, by name."""
        self._must_exist()
        return tracefiles.infos(self.root)

    def read_trace(
        self, name: str, columns: Sequence[str] | None = None, rows: Sequence[int] | np.ndarray | None = None
    ) -> pa.Table:
        """Rows of a trace, all or those at the positions `rows`, in that order. See `tracefiles.read`.

        Raises:
            InputError: no such trace, or a file of it is missing or damaged.
        """
        self._must_exist()
        remote.pull_files(self.root, [file["path"] for file in tracefiles.info(self.root, name).files])
        return tracefiles.read(self.root, name, columns, rows)

    def _must_exist(self) -> None:
        if not self.root.is_dir():
            raise InputError(f"no warehouse at {remote.shown(self.root)}: ingest a trace first, or give --warehouse")
        remote.pull_records(self.root)


def _sorted(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The non-empty tables of one unit in their schemas, rows by workload, session, request and step.

    Neighbours alike compress best. Decode steps take their requests' order from the shard's requests.
    """
    typed = {name: table.select(RUN_TABLES[name].names).cast(RUN_TABLES[name]) for name, table in tables.items()}
    out = {}
    for name, columns in _ORDER.items():
        if name not in typed or not typed[name].num_rows:
            continue
        table = typed[name]
        if name == "decode_steps" and "requests" in out:
            request = table.column("request").to_numpy()
            in_order = out["requests"].column("request").to_numpy()
            place = np.zeros(max(request.max(), in_order.max()) + 1, np.int64)
            place[in_order] = np.arange(len(in_order))
            order = pa.array(np.lexsort((table.column("step").to_numpy(), place[request])))
        else:
            keys = [(column, "ascending") for column in columns]
            order = pc.call_function("sort_indices", [table], pc.SortOptions(sort_keys=keys))
        out[name] = table.take(order)
    return out


def _started(record: RunRecord) -> tuple[datetime, str]:
    """For the order of runs: the moment, whatever zone it is written in; first where the plan does not say."""
    try:
        when = datetime.fromisoformat(record.plan["started"])
    except (KeyError, TypeError, ValueError):
        when = datetime.min
    return when if when.tzinfo else when.replace(tzinfo=UTC), record.run


def _owner(path: Path) -> str:
    owner = commit.read_json(path)
    return f"process {owner['pid']} ({owner['command']})" if owner else "another process"
