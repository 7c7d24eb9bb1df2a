"""Ingest: sources in, one canonical trace out, and a count of what was refused and why. Nothing is guessed."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.ingest import FORMATS
from pipeline.ingest.generation import Generation, RowRefused
from pipeline.ingest.tokenise import fingerprint, tokeniser
from pipeline.warehouse import TraceInfo, Warehouse
from schemas.errors import InputError
from schemas.tables import TRACE

_BATCH = 4096


@dataclass
class IngestReport:
    """What came of an ingest: the trace, and refused rows counted by (column, reason without its numbers)."""

    trace: TraceInfo | None = None
    rows: int = 0
    refused: list[dict[str, Any]] = field(default_factory=list)

    @property
    def reasons(self) -> Counter:
        """How often each column was at fault."""
        return Counter(r["column"] for r in self.refused)


def ingest(
    sources: list[Path], warehouse: Warehouse, name: str, *, tokenizer: Path | None = None, strict: bool = False
) -> IngestReport:
    """Read `sources` (JSONL or Parquet files, or folders of them) into the canonical trace `name`.

    Args:
        tokenizer: folder of the target's tokenizer; needed for text only.
        strict: stop at the first row that cannot be taken.

    Raises:
        InputError: a source is missing or no trace, no row could be taken, or (strict) a row is refused.
    """
    report = IngestReport()
    rows = _rows(_files(sources), report, tokenizer, strict)
    first = next(rows, None)
    if first is None:
        raise InputError(_nothing_taken(sources, report))
    report.trace = warehouse.write_trace(name, _batches(first, rows))
    return report


def _nothing_taken(sources: list[Path], report: IngestReport) -> str:
    names = ", ".join(str(s) for s in sources)
    if report.refused:
        bad = report.refused[0]
        return f"{names}: none of {report.rows} rows could be taken; row {bad['row']}: {bad['column']}: {bad['reason']}"
    return f"{names}: holds no rows"


def _files(sources: list[Path]) -> Iterator[Path]:
    for source in sources:
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if p.suffix in (".jsonl", ".parquet"))
            if not inside:
                raise InputError(f"{source}: no .jsonl or .parquet file in this folder")
            yield from inside
        elif source.exists():
            yield source
        else:
            raise InputError(f"{source}: no such file or folder")


def _records(file: Path) -> Iterator[tuple[int, Any]]:
    """(row from 1, record) of a JSONL or Parquet file, told apart by content."""
    with file.open("rb") as f:
        magic = f.read(4)
    if not magic:
        raise InputError(f"{file}: empty file (0 bytes)")
    if magic == b"PAR1":
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            row = 0
            for batch in parquet.iter_batches(_BATCH):
                for record in batch.to_pylist():
                    row += 1
                    yield row, record
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
        return
    with file.open("rb") as f:
        for row, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                yield row, json.loads(line)
            except ValueError:
                yield row, None


def _rows(files: Iterator[Path], report: IngestReport, tokenizer: Path | None, strict: bool) -> Iterator[dict]:
    fill = print_of = None
    seen: set[str] = set()
    for file in files:
        for row, record in _records(file):
            report.rows += 1
            try:
                if not isinstance(record, dict):
                    raise RowRefused("(row)", "not a JSON object")
                module = next((m for m in FORMATS.values() if m.matches(record)), None)
                if module is None:
                    raise RowRefused("(row)", f"none of the known formats ({', '.join(FORMATS)})")
                for generation in module.generations(record, f"{file.stem}:{row}"):
                    if generation.prompt_token_ids is None:
                        if fill is None:
                            if tokenizer is None:
                                raise InputError(
                                    f"{file}: row {row} holds text: pass --tokenizer with the target model's folder"
                                )
                            fill, print_of = tokeniser(tokenizer), fingerprint(tokenizer)
                        fill(generation)
                    if generation.request_id in seen:
                        raise RowRefused("request_id", "told before in this trace")
                    seen.add(generation.request_id)
                    yield _row(generation, file.name, row, print_of if generation.messages else None)
            except RowRefused as refused:
                if strict:
                    raise InputError(f"{file}: row {row}: {refused.column}: {refused.reason}") from None
                report.refused.append(
                    {"file": file.name, "row": row, "column": refused.column, "reason": refused.reason}
                )


def _row(g: Generation, file: str, row: int, tokenizer: str | None) -> dict[str, Any]:
    prompt, output = g.prompt_token_ids or [], g.output_token_ids
    return {
        **{name: getattr(g, name) for name in TRACE.names if hasattr(g, name)},
        "prompt_tokens": len(prompt),
        "output_tokens": None if output is None else len(output),
        "sampling": json.dumps(g.sampling, sort_keys=True) if g.sampling else None,
        "tokenizer": tokenizer,
        "source_file": file,
        "source_row": row,
        "extra": json.dumps(g.extra, sort_keys=True),
    }


def _batches(first: dict, rest: Iterator[dict]) -> Iterator[pa.Table]:
    batch = [first]
    for row in rest:
        batch.append(row)
        if len(batch) == _BATCH:
            yield pa.Table.from_pylist(batch, schema=TRACE)
            batch = []
    if batch:
        yield pa.Table.from_pylist(batch, schema=TRACE)
