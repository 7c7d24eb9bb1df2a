"""A warehouse in an object store: a folder mirrors it, and what is written goes up before anyone may read it.

Data files are immutable and named by their hash, so that a file that came down once is right for ever and DuckDB reads
it as any other; commit objects are created in the store only if absent, which decides between writers on any number of
machines. Records that may change are asked for by their tag at every read. Locks hold on one machine only. The mirror
lies in the user's cache ($SPECREPLAY_CACHE) and may be deleted at any time; it holds token ids like the warehouse does.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import filelock
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from schemas.errors import EnvironmentProblem, InputError

_MARK = ".remote"
_TAGS = ".tags.json"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?:/+(.*))?")  # a Path makes one slash of two, and none at the end
_AT_ONCE = 16


def url_of(root: str | Path) -> str | None:
    """The canonical URL, or None for a folder.

    Raises:
        InputError: a scheme that is not supported, or no bucket.
    """
    match = _URL.fullmatch(str(root))
    if match is None:
        return None
    scheme, place = match.group(1), (match.group(2) or "").strip("/")
    if scheme != "s3" or not place:
        raise InputError(f"{root}: a warehouse is a folder or s3://bucket/prefix (endpoint and keys: AWS_… variables)")
    return f"s3://{place}"


def mirror(url: str) -> Path:
    """The folder that mirrors the store, made if need be."""
    cache = os.environ.get("SPECREPLAY_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "specreplay"
    where = f"{os.environ.get('AWS_ENDPOINT_URL', '')} {url}"
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", url.removeprefix("s3://")) + "-" + _hash(where.encode())[:8]
    folder = Path(cache).expanduser().absolute() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / _MARK).exists() or (folder / _MARK).read_bytes() != url.encode():
        _write(folder / _MARK, url.encode())
    return folder


def store_of(root: Path) -> S3Store | None:
    """The object store that this folder mirrors; None for a plain folder."""
    try:
        return _store((root / _MARK).read_text("utf-8"), os.environ.get("AWS_ENDPOINT_URL"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def create(root: Path, name: str, data: bytes) -> bool | None:
    """Create an object unless it exists, and have it in the mirror; None for a plain folder, else whether it is ours.

    Raises:
        EnvironmentProblem: the store does not answer or refuses.
    """
    if (store := store_of(root)) is None:
        return None
    ours = True
    with errors(root):
        try:
            obstore.put(store, name, data, mode="create")
        except AlreadyExistsError:
            ours = False
            data = bytes(obstore.get(store, name).bytes())
    _write(root / name, data)
    return ours


def put(root: Path, path: Path, data: bytes | None = None) -> None:
    """Send a file of the mirror (or `data` in its place) up, whole, over what was there; nothing for a plain folder."""
    if (store := store_of(root)) is not None:
        with errors(root):
            obstore.put(store, path.relative_to(root).as_posix(), path if data is None else data, mode="overwrite")


def delete(root: Path, *names: str) -> None:
    """Delete objects, those that are there; nothing for a plain folder."""
    if (store := store_of(root)) is not None and names:
        with errors(root):
            obstore.delete(store, names)


def now(root: Path) -> datetime | None:
    """The moment by the store's own clock, which writes an object for it; None for a plain folder."""
    if (store := store_of(root)) is None:
        return None
    name = f"clock-{os.urandom(8).hex()}"
    with errors(root):
        obstore.put(store, name, b"-")
        try:
            return obstore.head(store, name)["last_modified"]
        finally:
            obstore.delete(store, name)


def shown(root: Path, path: Path | None = None) -> str:
    """A path of the warehouse, or all of it, as its owner knows it: with the URL in place of the mirror's folder."""
    try:
        url = (root / _MARK).read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return str(root if path is None else path)
    return url if path is None else f"{url}/{path.relative_to(root).as_posix()}"


def pull_records(root: Path, anew: bool = False) -> None:
    """Bring plans, dones, commit objects and the user's views of the mirror up to date; nothing for a plain folder.

    Args:
        root: the mirror.
        anew: fetch all of them, whatever the mirror holds already.
    """
    if (store := store_of(root)) is None:
        return
    with filelock.FileLock(root / ".pull.lock"), errors(root):
        before = _tags(root)
        found_there = [
            found
            for prefix, ending in (("_commits/", ".json"), ("runs/", ".json"), ("views/", ".sql"))
            for page in obstore.list(store, prefix)
            for found in page
            if found["path"].endswith(ending)
        ]
        there = {found["path"]: f"{found['e_tag']} {found['size']}" for found in found_there}
        whole = {found["path"] for found in found_there if _size(root / found["path"]) == found["size"]}
        new = [name for name, tag in there.items() if anew or before.get(name) != tag or name not in whole]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            gone = {name for name in pool.map(lambda name: _fetch(store, root, name), new) if name}
        views = {path.relative_to(root).as_posix() for path in root.glob("views/*.sql")}
        for name in (before.keys() | views) - there.keys():
            (root / name).unlink(missing_ok=True)
        _write(root / _TAGS, json.dumps({k: v for k, v in there.items() if k not in gone}).encode())


def pull_files(root: Path, names: Iterable[str]) -> None:
    """Fetch the data files that the mirror lacks; nothing for a plain folder. One that is not there stays missing.

    Raises:
        EnvironmentProblem: the store does not answer, or a file is not the one that was committed.
    """
    if (store := store_of(root)) is None:
        return
    names = list(names)
    if astray := [name for name in names if ".." in name or name.startswith("/")]:
        raise EnvironmentProblem(f"a commit object names {astray[0]!r}, which is no file of a warehouse")
    missing = [name for name in names if not (root / name).exists()]
    with errors(root), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: _fetch(store, root, name), missing))


def _tags(root: Path) -> dict[str, str]:
    """What the mirror's records were when they came down; {} where nobody wrote it, or a power loss took it."""
    try:
        found = json.loads((root / _TAGS).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _fetch(store: S3Store, root: Path, name: str) -> str | None:
    """Fetch an object into the mirror; its name when it is not there (any more)."""
    try:
        data = bytes(obstore.get(store, name).bytes())
    except FileNotFoundError:
        return name
    if name.endswith(".parquet") and not name.endswith(f"-{_hash(data)[:16]}.parquet"):
        raise EnvironmentProblem(f"{name} in the object store is another file than was committed (sha256 differs)")
    _write(root / name, data)
    return None


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; without fsync: whatever a power loss takes comes down again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


@functools.cache
def _store(url: str, endpoint: str | None) -> S3Store:
    plain = endpoint is not None and endpoint.startswith("http://")
    return S3Store.from_url(url, client_options={"allow_http": plain})


@contextmanager
def errors(root: Path) -> Generator[None]:
    """Turn what a store answers, or that it does not, into one line.

    Raises:
        EnvironmentProblem: names the store.
    """
    try:
        yield
    except BaseError as error:
        first = str(error).split("\n")[0]
        raise EnvironmentProblem(f"{(root / _MARK).read_text('utf-8')}: {first}") from None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
