"""Ingest of rows written on the spot, for the tests."""

import json
from pathlib import Path
from typing import Any

from pipeline.ingest.report import IngestReport
from pipeline.ingest.run import ingest
from pipeline.warehouse import Warehouse


def jsonl(path: Path, rows: list[Any]) -> Path:
    """Write rows as JSON lines; bytes are written as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows))
    return path


def rows_of(
    *sources: Path, house: Path, name: str = "t", columns: list[str] | None = None, **how
) -> tuple[list[dict], IngestReport]:
    """(rows of the trace, report) of an ingest."""
    report = ingest(list(sources), Warehouse(house), name, **how)
    if report.trace is None:
        return [], report
    return Warehouse(house).read_trace(name, columns).to_pylist(), report
