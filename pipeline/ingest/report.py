"""What came of an ingest: counts, notes, refusals; for JSON and in lines for people. Holds no content."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pipeline.ingest.rejects import Rejects
from pipeline.warehouse import TraceInfo
from schemas.errors import UnitsFailedError


@dataclass
class IngestReport:
    """What came of an ingest. `trace` is None when the sources are valid and hold no rows: nothing is written then."""

    trace: TraceInfo | None = None
    rows: int = 0
    """Rows read, refused ones included."""
    files: int = 0
    passed_over: int = 0
    """Files of folders whose names are not those of logs."""
    bad_files: list[str] = field(default_factory=list)
    """What is wrong with the files of folders that are no trace, a line each."""
    counts: Counter[str] = field(default_factory=Counter)
    """Requests by what they hold: replayable, prompt only, no output tokens, output only, lengths only."""
    notes: Counter[str] = field(default_factory=Counter)
    refused: Rejects = field(default_factory=Rejects)
    rejects_file: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: counts, refusals by column and reason, and where the refused rows are listed."""
        return {
            "trace": self.trace.name if self.trace else None,
            "requests": self.trace.requests if self.trace else 0,
            "fingerprint": self.trace.fingerprint if self.trace else None,
            "rows": self.rows,
            "files": self.files,
            "bad_files": self.bad_files,
            "counts": dict(self.counts),
            "notes": dict(self.notes),
            "refused": len(self.refused),
            "reasons": [
                {"column": column, "reason": reason, "rows": n}
                for (column, reason), n in sorted(self.refused.kinds.items())
            ],
            "rejects": self.rejects_file,
        }

    def raise_for_status(self) -> None:
        """Raise when files of a folder were passed over as no trace.

        Raises:
            UnitsFailedError: names the first of them.
        """
        if self.bad_files:
            more = f" (and {len(self.bad_files) - 1} more)" if len(self.bad_files) > 1 else ""
            raise UnitsFailedError(f"{self.bad_files[0]}{more}; the other files were ingested")


def summary(name: str, report: IngestReport) -> Iterator[str]:
    """One line on the trace, then one per kind of request, note and refusal."""
    rows = f"{report.rows:,} row{'s' * (report.rows != 1)} of {report.files} file{'s' * (report.files != 1)}"
    if report.trace is None:
        yield f"trace {name}: 0 requests from {rows}; nothing was written"
        return
    yield f"trace {name}: {report.trace.requests} requests from {rows}"
    if report.counts.keys() != {"replayable"}:
        yield from (f"  {count:,} {kind}" for kind, count in report.counts.most_common())
    yield from (f"  note: {note}: {count:,}" for note, count in report.notes.most_common())
    if report.passed_over:
        yield f"  passed over {report.passed_over} other file{'s' * (report.passed_over != 1)} in these folders"
    yield from (f"  not a trace: {line}" for line in report.bad_files[:5])
    if not len(report.refused):
        return
    yield f"  refused {len(report.refused):,}, listed in {report.rejects_file}:"
    yield from (
        f"    {count:,} × {column}: {reason}" for (column, reason), count in report.refused.kinds.most_common(8)
    )
    bad = report.refused.first[0]
    yield f"    the first: {bad['file']} row {bad['row']}: {bad['column']}: {bad['reason']}"
