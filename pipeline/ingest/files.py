"""Which files there are to read, what they are by content, and their bytes, decompressed. Knows no log format.

A path is taken literally first, and as a pattern only when nothing has that name. Folders are walked in order of name;
`key=value` folders are partitions, their values text as written.
"""

import io
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from schemas.errors import InputError

BUFFER = 1 << 20

LIMIT = 256 * 1024 * 1024
"""Largest single record (a line, an element, a file that is one object), in bytes."""

_DATA = frozenset(".jsonl .ndjson .json .csv .tsv .parquet .txt .log .yaml .yml .traj .chunks .sse".split())
_PACKED = frozenset({".gz", ".zst", ".zstd", ".gzip"})
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Source:
    """A file to read: where it lies, what it is called in the trace, and the partition folders above it."""

    path: Path
    label: str
    partitions: dict[str, str] = field(default_factory=dict)
    named: bool = True
    """Given by name: a file that is no trace ends the ingest. (In a folder it is reported and passed over.)"""


def sources(given: Sequence[Path]) -> tuple[list[Source], int]:
    """(files in the order they are read, how many files of folders were passed over for their name).

    Raises:
        InputError: nothing has this name, or a folder holds no file that could be a log.
    """
    out: list[Source] = []
    passed = 0
    for path in given:
        matched = [path] if path.exists() else _matching(path)
        if not matched:
            raise InputError(f"{path}: no such file or folder")
        for one in matched:
            if not one.is_dir():
                out.append(Source(one, one.name))
                continue
            inside, others = _inside(one)
            if not inside:
                raise InputError(
                    f"{one}: no file in this folder could be a log ({', '.join(sorted(_DATA))}, .gz, .zst)"
                )
            out += inside
            passed += others
    return _with_unique_labels(out), passed


def _matching(pattern: Path) -> list[Path]:
    parts = pattern.parts
    first = next((i for i, part in enumerate(parts) if any(c in part for c in "*?[")), None)
    if first is None:
        return []
    return sorted(Path(*parts[:first]).glob("/".join(parts[first:])))


def _inside(folder: Path) -> tuple[list[Source], int]:
    found, others = [], 0
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        relative = path.relative_to(folder)
        if any(part.startswith((".", "_")) for part in relative.parts):
            continue
        if _ending(path) not in _DATA:
            others += 1
            continue
        pairs = (part.partition("=") for part in relative.parts[:-1] if "=" in part)
        partitions = {key: value for key, _, value in pairs if value != _NO_PARTITION}
        found.append(Source(path, relative.as_posix(), partitions, named=False))
    return found, others


def _ending(path: Path) -> str:
    suffixes = [s.lower() for s in path.suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _with_unique_labels(found: list[Source]) -> list[Source]:
    seen: dict[str, int] = {}
    out = []
    for source in found:
        count = seen[source.label] = seen.get(source.label, 0) + 1
        label = source.label if count == 1 else f"{source.label}~{count}"
        out.append(Source(source.path, label, source.partitions, source.named))
    return out


@contextmanager
def opened(path: Path) -> Generator[io.BufferedReader]:
    """The file's bytes, decompressed where it is gzip or zstd by content.

    Raises:
        InputError: it cannot be read, is empty, cut, damaged, or a pointer to a file that was not fetched.
    """
    try:
        with path.open("rb") as file:
            head = file.read(512)
            file.seek(0)
            _refuse_pointers(path, head)
            with _decompressed(file, head) as stream:
                yield stream
    except IsADirectoryError:
        raise InputError(f"{path}: a folder inside a list of files") from None
    except OSError as error:
        if error.errno is None:  # pyarrow's
            raise InputError(f"{path}: compressed file is cut or damaged ({str(error).splitlines()[0]})") from None
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _refuse_pointers(path: Path, head: bytes) -> None:
    if not head:
        raise InputError(f"{path}: empty file (0 bytes)")
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path}: a Git LFS pointer, not the file itself; fetch it with git lfs pull")
    if b"/annex/objects/" in head[:300]:
        raise InputError(f"{path}: a git-annex pointer, not the file itself; fetch it with git annex get")
    if head.startswith((b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")):
        raise InputError(f"{path}: an archive; unpack it, or compress it with gzip or zstd")


@contextmanager
def _decompressed(file: BinaryIO, head: bytes) -> Generator[io.BufferedReader]:
    codec = "gzip" if head[:2] == b"\x1f\x8b" else "zstd" if head[:4] == b"\x28\xb5\x2f\xfd" else None
    if codec is None:
        yield io.BufferedReader(file, BUFFER)  # ty: ignore[invalid-argument-type]
        return
    with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec) as native:
        yield io.BufferedReader(_Raw(native), BUFFER)


class _Raw(io.RawIOBase):
    """A pyarrow stream as Python reads one. (pyarrow's notices a file whose end is missing, and takes many members.)"""

    def __init__(self, native: pa.NativeFile):
        super().__init__()
        self._native = native

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # ty: ignore[incompatible-method-override]
        data = self._native.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
