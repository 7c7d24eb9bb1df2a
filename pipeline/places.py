"""What lies in a warehouse, where it really lies: in its folder, or in the object store that the folder mirrors.

For those who look for what nobody names, and delete it. A path is always one below the root; that of an object is its
place in the mirror. Knows folders and bytes, not runs, traces or shards.
"""

import contextlib
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedRandom, BufferedReader
from pathlib import Path

import obstore

from pipeline import commit, remote


@dataclass(frozen=True)
class File:
    """A file or object: its path, size in bytes, and when it was written (by the clock of disk or store)."""

    path: Path
    bytes: int
    written: datetime


def files(root: Path, folder: Path) -> list[File]:
    """The files right in a folder, by name; none where there is no such folder. What only the mirror has is left out.

    Raises:
        EnvironmentProblem: the store does not answer or refuses.
    """
    if (store := remote.store_of(root)) is not None:
        with remote.errors(root):
            found = obstore.list_with_delimiter(store, _name(root, folder))["objects"]
        listed = [File(root / each["path"], each["size"], each["last_modified"]) for each in found]
        return sorted(listed, key=lambda file: file.path)
    if not folder.is_dir():
        return []
    found = [(path, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    return [File(path, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC)) for path, stat in found]


def folders(root: Path, parent: str) -> list[Path]:
    """The folders right in a folder of the warehouse, by name.

    Raises:
        EnvironmentProblem: the store does not answer or refuses.
    """
    if (store := remote.store_of(root)) is not None:
        with remote.errors(root):
            return sorted(root / name for name in obstore.list_with_delimiter(store, parent)["common_prefixes"])
    return sorted(path for path in (root / parent).glob("*/") if path.is_dir())


@contextmanager
def opened(root: Path, path: Path) -> Generator[BufferedReader | BufferedRandom]:
    """The file's bytes, to read and seek in; an object comes down whole, to where nobody else sees it.

    Raises:
        FileNotFoundError: it is not there.
        EnvironmentProblem: the store does not answer or refuses.
    """
    if (store := remote.store_of(root)) is None:
        with path.open("rb") as data:
            yield data
        return
    with tempfile.TemporaryFile(dir=root) as data, commit.disk_errors(root):
        with remote.errors(root):
            for piece in obstore.get(store, _name(root, path)).stream():
                data.write(piece)
        data.seek(0)
        yield data


def delete(root: Path, path: Path) -> None:
    """Delete a file for good, here and in the store: after a power loss it does not come back.

    Raises:
        EnvironmentProblem: the store does not answer or refuses.
    """
    remote.delete(root, _name(root, path))
    if path.exists():
        path.unlink(missing_ok=True)
        commit.sync_folder(path.parent)


def empty(root: Path, folder: Path, kept: Collection[Path] = ()) -> None:
    """Delete the files right in a folder, here and in the store, and the folder when none is left; `kept` stay.

    Raises:
        EnvironmentProblem: the store does not answer or refuses.
    """
    if remote.store_of(root) is not None:
        remote.delete(root, *(_name(root, file.path) for file in files(root, folder) if file.path not in kept))
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path not in kept and not path.is_dir():
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    commit.sync_folder(folder if folder.is_dir() else folder.parent)


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()
