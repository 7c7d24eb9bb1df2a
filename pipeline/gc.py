"""Housekeeping: which runs and traces go, how many bytes that frees, and (only when told to) their removal.

Runs go by age or by name; traces and rejects by name only, and a trace that a kept run was planned over stays. Readers
see a run whole or not at all at any moment (`pipeline.removal`). Locks hold on one machine: in an object store, what
another machine is writing is not known to be in use.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pipeline import commit, places, remote, removal
from pipeline.integrity import files_of, moment, traces_of
from pipeline.warehouse import RunRecord, Warehouse
from schemas.errors import InputError, LockedError


@dataclass(frozen=True)
class Item:
    """Something that goes. `bytes` and `files`: all that lies in its folders."""

    kind: Literal["run", "trace", "rejects"]
    name: str
    why: str
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.why}, {self.files} files, {self.bytes:,} bytes"


def choose(
    warehouse: Warehouse,
    *,
    keep_days: int | None = None,
    runs: Sequence[str] = (),
    traces: Sequence[str] = (),
    rejects: Sequence[str] = (),
    now: datetime | None = None,
) -> list[Item]:
    """What would go; deletes nothing.

    Args:
        warehouse: where to look.
        keep_days: finished runs that ended longer ago go; unfinished ones, and those that do not say when, never do.
            None = by name only.
        runs: these go, finished or not.
        traces: these go with their rejects, unless a run that stays was planned over them.
        rejects: the refused rows of these traces go, the traces stay.
        now: the moment ages are counted from, with its zone; None = now.

    Raises:
        InputError: nothing was asked for, an unknown name, a negative age, or a trace that a run which stays
            needs.
    """
    if keep_days is None and not (runs or traces or rejects):
        raise InputError("say what may go: --keep-days N, --run NAME, --trace NAME or --rejects NAME")
    if keep_days is not None and keep_days < 0:
        raise InputError(f"--keep-days {keep_days}: give 0 or more days")
    going = {name: f"{warehouse.run(name).status}, asked for by name" for name in runs}
    records = warehouse.runs()
    for record in records:
        ended = moment((record.done or {}).get("ended"))
        if keep_days is None or ended is None or record.run in going:
            continue
        if ((now or datetime.now(UTC)) - ended) / timedelta(days=1) > keep_days:
            going[record.run] = f"{record.status}, ended {ended.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    root = warehouse.root
    items = [_item(root, "run", name, why, removal.folders(root, name)) for name, why in going.items()]
    for name in dict.fromkeys(traces):
        _must_not_be_needed(records, going, name)
        if not places.files(root, _folder(root, "trace", name)):
            warehouse.trace(name)  # says which there are
        folders = [_folder(root, "trace", name), _folder(root, "rejects", name), root / f"_commits/trace={name}"]
        items.append(_item(root, "trace", name, "asked for by name", folders))
    for name in dict.fromkeys(rejects):
        if not places.files(root, _folder(root, "rejects", name)):
            raise InputError(f"trace {name!r} has no rejects in {remote.shown(root)}")
        if name not in traces:
            items.append(_item(root, "rejects", name, "asked for by name", [_folder(root, "rejects", name)]))
    return items


def remove(warehouse: Warehouse, items: Iterable[Item]) -> tuple[list[Item], list[str]]:
    """Remove what `choose` named; returns (what is gone, one line for each that is in use and stays).

    Raises:
        EnvironmentProblem: the disk refuses.
        InputError: a trace is needed by a run that was started meanwhile.
    """
    gone, busy = [], []
    items = list(items)
    for item in items:
        try:
            with ExitStack() as locks:
                for name in _locks(item):
                    locks.enter_context(warehouse.lock(name))
                if item.kind == "run":
                    left = {i.name for i in items if i.kind == "run"}
                    removal.remove(warehouse.root, item.name, _named(warehouse, left))
                else:
                    _remove_trace(warehouse, item)
        except LockedError as error:
            busy.append(str(error))
        else:
            gone.append(item)
    return gone, busy


def as_dict(items: Sequence[Item]) -> list[dict[str, Any]]:
    """JSON types only."""
    return [vars(item) for item in items]


def _must_not_be_needed(records: Sequence[RunRecord], going: Iterable[str], trace: str) -> None:
    needed = [r.run for r in records if r.run not in going and trace in traces_of(r.plan)]
    if needed:
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise InputError(
            f"trace {trace}: run {needed[0]}{more} was planned over it; remove those runs too (--run NAME)"
        )


def _folder(root: Path, kind: str, name: str) -> Path:
    commit.safe_name("trace", name)
    return root / "traces" / name if kind == "trace" else root / "rejects" / f"trace={name}"


def _item(root: Path, kind: Literal["run", "trace", "rejects"], name: str, why: str, folders: Iterable[Path]) -> Item:
    sizes = [file.bytes for folder in folders for file in places.files(root, folder)]
    return Item(kind, name, why, len(sizes), sum(sizes))


def _locks(item: Item) -> list[str]:
    if item.kind != "run":
        return [f"trace-{item.name}"]
    base = re.sub(r"-r\d+$", "", item.name)  # a repeat runs under its first run's lock
    return list(dict.fromkeys([base, item.name]))


def _named(warehouse: Warehouse, going: set[str]) -> set[str]:
    """Paths that the runs which stay name."""
    found: set[str] = set()
    for record in warehouse.runs():
        if record.run not in going:
            shards = record.done["shards"] if record.done else warehouse.committed(record.run)
            found |= {file["path"] for shard in shards.values() for file in files_of(shard)}
    return found


def _remove_trace(warehouse: Warehouse, item: Item) -> None:
    """The commit object first: without it a trace is not there, and fsck knows its files as leftovers."""
    root, name = warehouse.root, item.name
    commits = root / "_commits" / f"trace={name}"
    folders = [_folder(root, "rejects", name)]
    with commit.disk_errors(commits):
        if item.kind == "trace":
            _must_not_be_needed(warehouse.runs(), (), name)
            folders.append(_folder(root, "trace", name))
            places.delete(root, commits / "trace.json")
        places.delete(root, commits / "rejects.json")
        for folder in folders:
            places.empty(root, folder)
        if item.kind == "trace":
            places.empty(root, commits)
