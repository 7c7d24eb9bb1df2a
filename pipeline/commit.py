"""Files that survive a kill: temporary name, sync, rename, and objects that are created only if absent.

A reader sees a file whole or not at all. Knows folders and bytes, not runs, traces or shards.
"""

import errno
import json
import os
import re
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from pipeline import remote
from schemas.errors import EnvironmentProblem, InputError
from schemas.tables import SCHEMA_VERSION

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_TEXT = re.compile(r"no space left|disk quota exceeded|file too large", re.IGNORECASE)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
LONGEST_NAME = 200
"""Characters; a run's name, made of its trace's, has 60 more at most, and file systems take 255 bytes."""
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class DiskFullError(EnvironmentProblem):
    """No room for another byte: whatever comes next would fail too."""


def safe_name(kind: str, name: str) -> str:
    """The name, if it can be part of a path on any disk or object store.

    Raises:
        InputError: empty, too long, or something besides ASCII letters, digits, dot, dash and underscore.
    """
    if not is_safe(name):
        shown = f"{name[:40]}…" if len(name) > LONGEST_NAME else name
        raise InputError(
            f"{kind} {shown!r}: use letters, digits, '.', '-' and '_', starting with a letter or digit, "
            f"{LONGEST_NAME} at most"
        )
    return name


def is_safe(name: str) -> bool:
    """What `safe_name` asks."""
    return len(name) <= LONGEST_NAME and _SAFE.fullmatch(name) is not None


@contextmanager
def disk_errors(target: Path) -> Generator[None]:
    """Turn what a full or refusing disk makes of a write into one line.

    Raises:
        DiskFullError: no space, quota reached, or file size limit, however the library words it.
        EnvironmentProblem: not allowed, read-only, or an I/O error.
    """
    try:
        yield
    except (OSError, BaseError) as error:
        number = getattr(error, "errno", None)
        if number in _FULL or is_full(str(error)):
            raise full(target) from None
        if number in _REFUSED or isinstance(error, obstore.exceptions.PermissionDeniedError):
            raise EnvironmentProblem(f"{target}: cannot be written ({os.strerror(number or errno.EACCES)})") from None
        raise


def is_full(message: str) -> bool:
    """Whether a library's message says that there is no room left."""
    return _FULL_TEXT.search(message) is not None


def full(target: Path) -> DiskFullError:
    """The one line for it."""
    return DiskFullError(f"no space left on disk while writing {target}; free some and run the same command again")


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, each durable in its own parent."""
    missing = [folder]
    while not missing[-1].exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for new in reversed(missing[:-1]):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


def to_json(document: Any) -> bytes:
    """The one spelling of a document: keys sorted, so that equal documents are equal bytes."""
    return (json.dumps(document, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()


def read_json(path: Path) -> Any | None:
    """The document, or None where there is none or a power loss tore it (an empty or cut file)."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def read_known(path: Path) -> dict | None:
    """`read_json` for plan, done and commit objects: what is no object counts as torn.

    Raises:
        InputError: a version of specreplay that this one does not know wrote it.
    """
    document = read_json(path)
    if not isinstance(document, dict):
        return None
    version = document.get("schema_version", 1)
    if not is_known(version):
        raise InputError(
            f"{path}: schema version {version!r} is not known here (newest: {SCHEMA_VERSION}); upgrade specreplay"
        )
    return document


def is_known(version: object) -> bool:
    """Whether this code reads files of that schema version."""
    return type(version) is int and 1 <= version <= SCHEMA_VERSION


def create_json(root: Path, name: str, document: Any) -> Any | None:
    """Create `root/name` unless it exists, and make it durable.

    Returns None when this call created it, else the document that was there first. A torn object counts as absent.

    Raises:
        EnvironmentProblem: the disk is full or refuses.
    """
    target = root / name
    with disk_errors(target):
        make_folder(target.parent)
        if not _put_new(root, name, document):
            first = read_json(target)
            if first is not None:
                return first
            with filelock.FileLock(root / ".repair.lock"):
                first = read_json(target)  # another process may have mended it meanwhile
                if first is not None:
                    return first
                remote.delete(root, name)
                target.unlink(missing_ok=True)
                if not _put_new(root, name, document):
                    return read_json(target)
        _sync(target)
    return None


def replace_json(root: Path, name: str, document: Any) -> None:
    """Write `root/name`, whole or not at all, over what was there.

    Raises:
        EnvironmentProblem: the disk is full or refuses.
    """
    target = root / name
    with disk_errors(target), temporary_file(target.parent, target.name) as (fd, temporary):
        write_all(fd, to_json(document))
        os.fsync(fd)
        remote.put(root, target, to_json(document))
        temporary.replace(target)
        sync_folder(target.parent)


def drop(root: Path, files: Iterable[dict], committed: dict | None) -> None:
    """Remove the data files (by their `path`) that the commit object does not name.

    Equal content has an equal name, so a file of ours may well be one that another writer committed.
    """
    kept = {file["path"] for file in committed["files"]} if committed else set()
    for file in files:
        if file["path"] not in kept:
            (root / file["path"]).unlink(missing_ok=True)
            if committed is not None:  # else a writer elsewhere may have committed it a moment ago
                remote.delete(root, file["path"])


def sweep(folder: Path) -> None:
    """Remove temporary files of processes that are gone. Call it under the lock of whoever writes there."""
    for temporary in left_behind(folder):
        temporary.unlink(missing_ok=True)


def left_behind(folder: Path) -> list[Path]:
    """Temporary files in `folder` whose process is gone."""

    def gone(temporary: Path) -> bool:
        pid = temporary.name.split(".")[-3]
        return not (pid.isdigit() and _alive(int(pid)))

    return [temporary for temporary in sorted(folder.glob(".*.*.*.tmp")) if gone(temporary)]


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # a number used again: whoever wrote this under our number is gone
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def temporary_file(folder: Path, stem: str) -> Generator[tuple[int, Path]]:
    """(descriptor, path) of a new file that `sweep` knows by its name; removed when the block raises."""
    make_folder(folder)
    path = folder / f".{stem}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        yield fd, path
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _put_new(root: Path, name: str, document: Any) -> bool:
    if (ours := remote.create(root, name, to_json(document))) is not None:
        return ours
    try:
        obstore.put(LocalStore(root), name, to_json(document), mode="create")
    except AlreadyExistsError:
        return False
    return True


def _sync(target: Path) -> None:
    # obstore writes without fsync
    fd = os.open(target, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(target.parent)


def write_all(fd: int, data: bytes | bytearray) -> None:
    """All of the bytes, however few the system takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
