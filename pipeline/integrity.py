"""What is wrong with the data files that a record names, and which files no record names. Looks; changes nothing.

A record is a commit object, or what done.json and the commit object of a trace hold of the same shape.
"""

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import commit, places, remote

_STAGED = re.compile(r".*\.json#\d+")  # what a kill leaves of an object that was being created


class Examiner:
    """Reads each data file once, however often it is named. `files` and `bytes`: how much was read."""

    def __init__(self, root: Path) -> None:
        self.root, self.files, self.bytes = root, 0, 0
        self._known: dict[tuple, str | None] = {}

    def problems(self, record: dict, places: Collection[str]) -> dict[str, str]:
        """{path: what is wrong} for the files of a record; they must lie in the folders `places` (below the root).

        A record that lists no files has its problem under the path "".

        Raises:
            OSError: a file is there and cannot be read; that is no damage.
        """
        files = files_of(record)
        if not isinstance(record.get("files"), list) or len(files) != len(record["files"]):
            return {"": "does not list its files"}
        found = {}
        for file in files:
            if file["path"].rpartition("/")[0] not in places:
                found[file["path"]] = "is no file of this run or trace"
            elif problem := self._file(file["path"], file.get("sha256"), file.get("rows")):
                found[file["path"]] = problem
        return found

    def _file(self, name: str, sha256: Any, rows: Any) -> str | None:
        key = (name, str(sha256), str(rows))
        if key not in self._known:
            self._known[key] = self._examine(self.root / name, sha256, rows)
        return self._known[key]

    def _examine(self, path: Path, sha256: Any, rows: Any) -> str | None:
        with contextlib.ExitStack() as stack:
            try:
                data = stack.enter_context(places.opened(self.root, path))
            except FileNotFoundError:
                return "is missing"
            digest = hashlib.file_digest(data, "sha256").hexdigest()
            self.files += 1
            self.bytes += data.tell()
            try:
                there = pq.read_metadata(data).num_rows
            except (OSError, pa.ArrowException):
                return "is torn"
        if digest != sha256:
            return "is another file than was committed (sha256 differs)"
        return None if there == rows else f"has {there} rows, {rows} were committed"


def files_of(record: dict) -> list[dict]:
    """What a record names, as far as it names anything."""
    files = record.get("files")
    files = files if isinstance(files, list) else []
    return [file for file in files if isinstance(file, dict) and isinstance(file.get("path"), str)]


def traces_of(plan: dict) -> set[str]:
    """Traces that a run was planned over: the one it replays and those that warmed a proposer up."""
    trace, warm = plan.get("trace"), plan.get("warm")
    names = {*(warm if isinstance(warm, dict) else ()), trace.get("name") if isinstance(trace, dict) else None}
    return {name for name in names if isinstance(name, str)}


def units_of(plan: dict) -> set[str]:
    """Shards that a run was planned to have, as far as its plan says."""
    units = plan.get("units")
    named = [unit.get("shard") for unit in units if isinstance(unit, dict)] if isinstance(units, list) else []
    return {name for name in named if isinstance(name, str)}


def is_done(done: dict) -> bool:
    """Whether a done.json says what readers ask it, in the types that they expect."""
    proposers, failed = done.get("proposers", {}), done.get("failed", {})
    return (
        isinstance(done.get("status"), str)
        and isinstance(done.get("shards"), dict)
        and moment(done.get("ended")) is not None
        and isinstance(done.get("reconciled"), bool | None)
        and all(
            isinstance(each, dict) and all(isinstance(v, dict) for v in each.values()) for each in (proposers, failed)
        )
    )


def moment(text: Any) -> datetime | None:
    """A moment that a record names, in UTC where it has no zone; None where it is none."""
    try:
        when = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def left_in(root: Path, folder: Path, named: Collection[Path], before: datetime) -> Iterator[tuple[Path, str]]:
    """(file, what it is) for temporary files of dead processes and data files that are not in `named`.

    Call it under the lock of whoever writes there: a data file is there before its commit object. Locks hold on one
    machine, so an object counts only if it was written before `before`.
    """
    for path in commit.left_behind(folder):
        yield path, "is a temporary file of a process that is gone"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _STAGED.fullmatch(path.name):
            yield path, "is a staging file of a process that is gone"
    far = remote.store_of(root) is not None
    there = {file.path: file.written for file in places.files(root, folder)}
    for path in sorted(there.keys() | (set(folder.glob("*")) if far and folder.is_dir() else set())):
        if path.suffix == ".parquet" and path not in named and not (far and there.get(path, before) > before):
            yield path, "is named by no commit object"


def stale_in(root: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """(file, what it is) for files of the mirror that are not what their name says; they can come down again."""
    for path in sorted(folder.glob("*.parquet")) if remote.store_of(root) is not None else ():
        with path.open("rb") as data:
            if not path.stem.endswith(hashlib.file_digest(data, "sha256").hexdigest()[:16]):
                yield path, "is torn in the mirror on this machine"
