"""Rows to whoever asked: a terminal table, JSON, CSV, Markdown or Parquet. Knows nothing of what the columns mean."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from schemas.errors import InputError

FORMATS = ("table", "json", "csv", "markdown", "parquet")


_AT_ONCE = 10_000
"""Rows that are Python objects at one time, at some hundred bytes a value."""


def write(rows: pa.Table, format_: str) -> None:
    """Print a table of rows on stdout; NULL is null in JSON, empty in CSV, n/a for people.

    Columns of one name are told apart as name, name_1, …; JSON, which has no NaN, gets null for it.

    Raises:
        InputError: unknown format, Parquet onto a terminal, or a column that Parquet cannot hold.
    """
    rows = rows.rename_columns(_distinct(rows.column_names))
    if format_ == "table":
        print_table(rows.column_names, rows.to_pylist())
    elif format_ == "json":
        for number, some in enumerate(rows.to_batches(_AT_ONCE)):
            said = json.dumps(_finite(some.to_pylist()), default=str)[1:-1]
            sys.stdout.write(("[" if number == 0 else ", ") + said)
        print("]" if rows.num_rows else "[]")
    elif format_ == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(rows.column_names)
        for some in rows.to_batches(_AT_ONCE):
            writer.writerows(["" if v is None else v for v in row.values()] for row in some.to_pylist())
    elif format_ == "markdown":
        print(markdown(rows.column_names, rows.to_pylist()))
    elif format_ == "parquet":
        if sys.stdout.isatty():
            raise InputError("--format parquet writes bytes: redirect stdout to a file")
        made = io.BytesIO()  # a pipe cannot be sought, and half a file helps nobody
        try:
            pq.write_table(rows, made)
        except pa.ArrowException as error:
            raise InputError(f"--format parquet: {str(error).splitlines()[0]}; cast the column") from None
        sys.stdout.buffer.write(made.getbuffer())
    else:
        raise InputError(f"--format {format_!r}: choose one of {', '.join(FORMATS)}")


def _distinct(names: list[str]) -> list[str]:
    """The names, a repeated one with the first number that makes it new.

    >>> _distinct(["a", "a", "a_1", "a"])
    ['a', 'a_2', 'a_1', 'a_3']
    """
    taken, out = set(names), []
    for name in names:
        new, number = name, 0
        while new in out or (number and new in taken):
            number += 1
            new = f"{name}_{number}"
        out.append(new)
    return out


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return {k: _finite(v) for k, v in value.items()} if isinstance(value, dict) else value


def text(value: Any) -> str:
    """One value for people: digits of integers kept, ratios to three places, n/a where undefined."""
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return plain(str(value))


def plain(name: str, width: int | None = None) -> str:
    r"""A name on one line, whatever was logged: what cannot be printed is escaped, a middle past `width` is left out.

    >>> print(plain("a\nb\x1b[31m"), plain("abcdefghij", 7))
    a\nb\x1b[31m abc…hij
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    if width is None or len(shown) <= width:
        return shown
    end = width // 2
    return f"{shown[: width - end - 1]}…{shown[-end:]}"


def print_table(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
    """Draw rows as a table; numbers on the right, and whole, however narrow the terminal is."""
    rows, names = list(rows), list(columns)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        number = any(isinstance(r[name], int | float) for r in rows)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    cells = [[text(row[name]) for name in names] for row in rows]
    for row in cells:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.width = max(console.width, sum(map(_least, names, *cells)) + 2 * (len(names) - 1))
    console.print(table)


_WORD = 24
"""Characters of a word that may be cut in two when the terminal is too narrow for it."""


def _least(*column: str) -> int:
    """Characters that a column needs for its words to stay whole."""
    return min(_WORD, max(len(word) for cell in column for word in cell.split(" ")))


def markdown(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    names = list(columns)
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(text(r[n]).replace("|", "\\|") for n in names) + " |" for r in rows]
    return "\n".join(lines)
