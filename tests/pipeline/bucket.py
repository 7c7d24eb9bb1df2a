"""A look into the bucket behind a warehouse, past the code under test."""

import json
from pathlib import Path

import obstore
from obstore.store import S3Store
from small_traces import without_clock


def store(url: str) -> S3Store:
    return S3Store.from_url(url, client_options={"allow_http": True})


def raw(url: str) -> dict[str, bytes]:
    """What is in the bucket, by key."""
    return {name: bytes(obstore.get(store(url), name).bytes()) for name in names(url)}


def objects(url: str) -> dict[str, bytes | dict]:
    """What is in the bucket, spelled like `contents` spells a folder."""
    clocked = ("plan.json", "done.json")
    return {
        name: without_clock(json.loads(data)) if Path(name).name in clocked else data for name, data in raw(url).items()
    }


def names(url: str) -> list[str]:
    """Keys below the prefix, in order."""
    return sorted(f["path"] for page in obstore.list(store(url)) for f in page)


def upload(root: Path, url: str) -> None:
    """Put every file of a warehouse's folder into the bucket, as it is."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith("."):
            obstore.put(store(url), name, path.read_bytes())
