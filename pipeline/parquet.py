"""Parquet files named by their hash: written aside, synced, renamed.

Their bytes depend on the rows alone, so that a run that was killed and resumed is byte-equal to one that was not.
"""

import hashlib
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import commit, remote

_PIECE = 1 << 20


@dataclass(frozen=True)
class Written:
    """A Parquet file under its final name. `sha256` is that of the whole file, in hex."""

    path: Path
    sha256: str
    rows: int


def write_parquet(folder: Path, stem: str, groups: Iterable[pa.Table], schema: pa.Schema, delta: set[str]) -> Written:
    """Write `folder/<stem>-<sha>.parquet`, one row group per table of `groups`; folder lies two below the root.

    Columns in `delta` are delta-encoded, all others by dictionary; zstd level 3. The bytes depend on rows and row
    groups alone (and on the pyarrow version, which Parquet files name).

    Raises:
        EnvironmentProblem: the disk is full or refuses; the temporary file is gone.
    """
    rows = 0
    with commit.disk_errors(folder), commit.temporary_file(folder, stem) as (fd, temporary):
        sink = _Sink(fd)
        with pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=[_leaf(field) for field in schema if field.name not in delta],
            column_encoding=dict.fromkeys(sorted(delta), "DELTA_BINARY_PACKED") or None,
            store_schema=False,  # our own schema is in the code; a copy in each file would outweigh small shards
        ) as writer:
            for group in groups:
                rows += group.num_rows
                # One chunk per column: page boundaries would follow the chunks otherwise.
                writer.write_table(group.cast(schema).combine_chunks(), row_group_size=max(group.num_rows, 1))
        sink.drain()
        os.fsync(fd)
        sha256 = sink.digest.hexdigest()
        target = folder / f"{stem}-{sha256[:16]}.parquet"
        temporary.replace(target)
        commit.sync_folder(folder)
    remote.put(folder.parents[1], target)
    return Written(target, sha256, rows)


def _leaf(field: pa.Field) -> str:
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


class _Sink(io.RawIOBase):
    """What pyarrow writes to: hashes while it writes, in few large pieces; by path it would neither hash nor sync."""

    def __init__(self, fd: int):
        super().__init__()
        self._fd, self._position, self._held = fd, 0, bytearray()
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._held += view
        self._position += view.nbytes
        if len(self._held) >= _PIECE:
            self.drain()
        return view.nbytes

    def drain(self) -> None:
        held, self._held = self._held, bytearray()
        self.digest.update(held)
        commit.write_all(self._fd, held)
