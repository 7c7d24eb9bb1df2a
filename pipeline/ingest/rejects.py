"""Rows that were refused, as a file of the warehouse: file, row, column, reason. Never content.

While an ingest runs they lie in a temporary file, so that a log of nothing but bad rows takes no memory either.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from pipeline import commit, parquet
from pipeline.ingest.generation import RowRefused
from schemas.tables import REJECTS, SCHEMA_VERSION

_BATCH = 4096
_SHOWN = 20


class Rejects:
    """The refused rows of one ingest, in the order they were met."""

    def __init__(self) -> None:
        self.kinds: Counter[tuple[str, str]] = Counter()
        """How often, by column (without positions) and reason."""
        self.first: list[dict] = []
        """The first ones, to be shown."""
        self._held: list[dict] = []
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return sum(self.kinds.values())

    def add(self, file: str, row: int | None, refused: RowRefused) -> None:
        """Note one refusal; `row` None = the whole file."""
        self.kinds[refused.kind] += 1
        reason = refused.reason + (f" ({refused.detail})" if refused.detail else "")
        entry = {"file": file, "row": row, "column": refused.column, "reason": reason}
        if len(self.first) < _SHOWN:
            self.first.append(entry)
        self._held.append(entry)
        if len(self._held) == _BATCH:
            self._spill()

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            self._file.close()

    def commit(self, root: Path, trace: str) -> str | None:
        """Write the file and then its commit object; None when nothing was refused.

        Raises:
            EnvironmentProblem: the disk is full or refuses.
        """
        if not self.kinds:
            return None
        folder = root / "rejects" / f"trace={trace}"
        commit.sweep(folder)
        written = parquet.write_parquet(folder, "rejects", self._tables(), REJECTS, delta={"row"})
        file = {"path": str(written.path.relative_to(root)), "sha256": written.sha256, "rows": written.rows}
        document = {"schema_version": SCHEMA_VERSION, "trace": trace, "files": [file]}
        first = commit.create_json(root, f"_commits/trace={trace}/rejects.json", document)
        if first is not None and first["files"][0]["path"] != file["path"]:
            commit.drop(root, [file], first)  # the trace was there before, and so were its rejects
            return first["files"][0]["path"]
        return file["path"]

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as this object)
        with pa.ipc.new_stream(self._file, REJECTS) as writer:
            writer.write_table(pa.Table.from_pylist(self._held, schema=REJECTS))
        self._held = []

    def _tables(self) -> Iterator[pa.Table]:
        if self._file is not None:
            end = self._file.tell()
            self._file.seek(0)
            while self._file.tell() < end:
                with pa.ipc.open_stream(self._file) as stream:
                    yield stream.read_all()
        if self._held:
            yield pa.Table.from_pylist(self._held, schema=REJECTS)
