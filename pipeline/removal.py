"""Takes a run out of a warehouse so that readers see all of it or nothing, killed in between or not.

done.json decides what readers see of a finished run, and of any run once it says "removed": replacing it is the one
moment at which the run is gone. Files follow; whoever comes next under the run's lock finishes what a kill cut short.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

from pipeline import commit, places
from schemas.tables import RUN_TABLES, SCHEMA_VERSION

_REMOVED = "removed"


def folders(root: Path, run: str) -> list[Path]:
    """Every folder that may hold files of the run: data, commit objects, plan and done (last)."""
    data = [root / table / f"run={run}" for table in RUN_TABLES]
    return [*data, root / "_commits" / f"run={run}", root / "runs" / run]


def is_removed(done: dict | None) -> bool:
    """Whether this done.json says that the run is on its way out."""
    return done is not None and done.get("status") == _REMOVED


def remove(root: Path, run: str, named: Collection[str] = ()) -> None:
    """Remove a run. Call it under the run's lock.

    Args:
        root: folder of the warehouse.
        run: its name.
        named: paths below the warehouse that other runs name; they stay.

    Raises:
        EnvironmentProblem: the disk refuses; the run is whole, or gone with some of its files left.
    """
    if (done := commit.read_json(root / "runs" / run / "done.json")) and not is_removed(done):
        # Nobody reads a finished run's commit objects, and on a full disk the next write needs a block.
        places.empty(root, root / "_commits" / f"run={run}")
    document = {"schema_version": SCHEMA_VERSION, "run": run, "status": _REMOVED, "shards": {}}
    commit.replace_json(root, f"runs/{run}/done.json", document)
    finish(root, run, named)


def finish(root: Path, run: str, named: Collection[str] = ()) -> None:
    """Delete the files of a run whose done.json says that it is removed; done.json goes last."""
    *data, last = folders(root, run)
    kept = {root / name for name in named}
    with commit.disk_errors(root / "runs" / run):
        for folder in data:
            places.empty(root, folder, kept)
        places.empty(root, last, {last / "done.json"})
        places.delete(root, last / "done.json")
        with contextlib.suppress(OSError):
            last.rmdir()
