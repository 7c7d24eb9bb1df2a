"""Rows to whoever asked: a terminal table, JSON, CSV, Markdown or Parquet. Knows nothing of what the columns mean."""

import csv
import io
import json
import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from schemas.errors import InputError

FORMATS = ("table", "json", "csv", "markdown", "parquet")


def write(rows: pa.Table, format_: str) -> None:
    """Print a table of rows on stdout; NULL is null in JSON, empty in CSV, n/a for people.

    Raises:
        InputError: unknown format, or Parquet onto a terminal.
    """
    if format_ == "table":
        print_table(rows.column_names, rows.to_pylist())
    elif format_ == "json":
        print(json.dumps(rows.to_pylist(), default=str))
    elif format_ == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(rows.column_names)
        writer.writerows(["" if v is None else v for v in row.values()] for row in rows.to_pylist())
        sys.stdout.write(out.getvalue())
    elif format_ == "markdown":
        print(markdown(rows.column_names, rows.to_pylist()))
    elif format_ == "parquet":
        if sys.stdout.isatty():
            raise InputError("--format parquet writes bytes: redirect stdout to a file")
        pq.write_table(rows, sys.stdout.buffer)
    else:
        raise InputError(f"--format {format_!r}: choose one of {', '.join(FORMATS)}")


def text(value: Any) -> str:
    """One value for people: digits of integers kept, ratios to three places, n/a where undefined."""
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def print_table(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
    """Draw rows as a table; numbers on the right."""
    rows, names = list(rows), list(columns)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        number = any(isinstance(r[name], int | float) for r in rows)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(text(row[name]) for name in names))
    Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False).print(table)


def markdown(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    names = list(columns)
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(text(r[n]).replace("|", "\\|") for n in names) + " |" for r in rows]
    return "\n".join(lines)
