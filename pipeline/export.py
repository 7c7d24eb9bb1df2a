"""Takes views or tables out of the warehouse: into a Parquet, CSV or DuckDB file, or a Delta table.

The file appears under its name whole or not at all. What the numbers mean stands in the views; nothing is computed
here. The one module that writes with DuckDB: rows of any number pass through without being held.
"""

import importlib.util
import os
import secrets
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from pipeline import commit
from pipeline.views import connect, init_sql
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem, InputError
from schemas.tables import RUN_TABLES

FORMATS = {".parquet": "parquet", ".csv": "csv", ".duckdb": "duckdb"}
"""Format by the ending of the destination; Delta has none, it is a folder."""
_SIGNED = {"UTINYINT": "SMALLINT", "USMALLINT": "INTEGER", "UINTEGER": "BIGINT", "UBIGINT": "BIGINT"}
_CAST = {"HUGEINT": "BIGINT", "UHUGEINT": "BIGINT", "JSON": "VARCHAR", **_SIGNED}
"""Types that Parquet or Delta lack. A sum past 64 bits is refused by the cast, never rounded."""


@dataclass(frozen=True)
class Exported:
    """What was written: rows by name of the view or table."""

    dest: Path
    format: str
    rows: dict[str, int]


def export(
    warehouse: Warehouse,
    dest: Path,
    *,
    tables: Sequence[str] = (),
    views: Sequence[str] = (),
    format_: str | None = None,
) -> Exported:
    """Write what is committed now to one file.

    Args:
        warehouse: where to read.
        dest: the file, or the folder of a Delta table. A file that is there is replaced; a Delta table gets a version.
        tables: run tables (`schemas.tables.RUN_TABLES`) as they were committed, with the column `run`.
        views: SQL views. With neither, a DuckDB file gets every view; Parquet, CSV and Delta need exactly one name.
        format_: parquet, csv, duckdb or delta; None = by dest's ending.

    Raises:
        InputError: an unknown name, ending or format, several names for one file, or dest is in the warehouse.
        EnvironmentProblem: the disk is full or refuses, or Delta is asked for and deltalake is not installed.
    """
    format_ = _format(dest, format_)
    dest = dest.expanduser().absolute()
    if dest.is_symlink():
        dest = dest.resolve()  # the file is replaced, not the link to it
    if dest.resolve().is_relative_to(warehouse.root.resolve()):
        raise InputError(f"{dest} lies in the warehouse: take a place outside")
    if dest.exists() and not (dest.is_file() or dest.is_dir()):
        raise InputError(f"{dest} is a device or pipe, which a whole file would replace: give a file")
    if dest.is_dir() != (format_ == "delta") and dest.exists():
        raise InputError(f"{dest}: there is a {'folder' if dest.is_dir() else 'file'} of that name")
    connect(warehouse).close()  # names a damaged or missing file
    con = duckdb.connect(":memory:")
    try:
        con.execute(init_sql(warehouse))
        chosen = _chosen(con, tables, views, format_)
        selects = {name: _select(con, relation) for name, relation in chosen.items()}
        if format_ == "delta":
            rows = _delta(con, dest, selects)
        else:
            with _whole(dest) as target:
                rows = (_duckdb if format_ == "duckdb" else _file)(con, target, selects, format_)
    except duckdb.Error as error:
        if commit.is_full(str(error)):
            raise commit.full(dest) from None
        raise EnvironmentProblem(f"export to {dest} failed: {' '.join(str(error).split())}") from None
    finally:
        con.close()
    return Exported(dest, format_, rows)


def _format(dest: Path, given: str | None) -> str:
    known = [*FORMATS.values(), "delta"]
    if given is not None and given not in known:
        raise InputError(f"--format {given!r}: choose one of {', '.join(known)}")
    found = given or FORMATS.get(dest.suffix.lower())
    if found is None:
        raise InputError(f"{dest}: end it with {', '.join(FORMATS)}, or give --format ({', '.join(known)})")
    if found == "delta" and importlib.util.find_spec("deltalake") is None:
        raise EnvironmentProblem("--format delta needs deltalake: pip install 'specreplay[delta]'")
    return found


def _chosen(
    con: duckdb.DuckDBPyConnection, tables: Sequence[str], views: Sequence[str], format_: str
) -> dict[str, str]:
    """{name: relation} of what is to be written."""
    known = [
        name
        for (name,) in con.execute(
            "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal ORDER BY view_name"
        ).fetchall()
    ]
    for kind, names, there in (("view", views, known), ("table", tables, sorted(RUN_TABLES))):
        for name in names:
            if name not in there:
                raise InputError(f"no {kind} {name!r}; there are: {', '.join(there)}")
    # decode_steps is a table and a view: the table keeps its name with its schema when both are asked for
    chosen = {name: f'main."{name}"' for name in views}
    chosen |= {f"files_{name}" if name in chosen else name: f'files."{name}"' for name in tables}
    if not chosen and format_ == "duckdb":
        return {name: f'main."{name}"' for name in known}
    if len(chosen) != 1 and format_ != "duckdb":
        raise InputError(
            f"{format_} holds one table: give one --view ({', '.join(known)}) or one --table ({', '.join(RUN_TABLES)})"
        )
    return chosen


def _select(con: duckdb.DuckDBPyConnection, relation: str) -> str:
    columns = con.execute(f"DESCRIBE {relation}").fetchall()
    listed = ", ".join(
        f'"{name}"::{_CAST[type_]} AS "{name}"' if type_ in _CAST else f'"{name}"' for name, type_, *_ in columns
    )
    return f"SELECT {listed} FROM {relation}"


def _file(con: duckdb.DuckDBPyConnection, target: Path, selects: dict[str, str], format_: str) -> dict[str, int]:
    ((name, select),) = selects.items()
    how = "FORMAT parquet, COMPRESSION zstd" if format_ == "parquet" else "FORMAT csv, HEADER"
    (written,) = con.execute(f"COPY ({select}) TO {_quoted(target)} ({how})").fetchall()
    return {name: written[0]}


def _duckdb(con: duckdb.DuckDBPyConnection, target: Path, selects: dict[str, str], _: str) -> dict[str, int]:
    con.execute(f"ATTACH {_quoted(target)} AS out")
    rows = {}
    for name, select in selects.items():
        (written,) = con.execute(f'CREATE TABLE out.main."{name}" AS {select}').fetchall()
        rows[name] = written[0]
    con.execute("DETACH out")
    return rows


def _delta(con: duckdb.DuckDBPyConnection, dest: Path, selects: dict[str, str]) -> dict[str, int]:
    import deltalake  # optional; a laptop does without
    from deltalake.exceptions import DeltaError

    ((name, select),) = selects.items()
    new = not dest.exists()
    rows = 0

    def batches() -> Generator[pa.RecordBatch]:
        nonlocal rows
        for batch in reader:
            rows += batch.num_rows
            yield batch

    reader = con.sql(select).to_arrow_reader()
    try:
        with commit.disk_errors(dest):
            deltalake.write_deltalake(
                str(dest),
                pa.RecordBatchReader.from_batches(reader.schema, batches()),
                mode="overwrite",
                schema_mode="overwrite",
            )
    except BaseException as error:
        if new:
            shutil.rmtree(dest, ignore_errors=True)
        if isinstance(error, DeltaError):
            if commit.is_full(str(error)):
                raise commit.full(dest) from None
            raise EnvironmentProblem(f"export to {dest} failed: {' '.join(str(error).split())}") from None
        raise
    return {name: rows}


@contextmanager
def _whole(dest: Path) -> Generator[Path]:
    """A path to write to, in a folder beside dest; renamed to dest, durably, when all went well."""
    with commit.disk_errors(dest):
        commit.make_folder(dest.parent)
        aside = dest.parent / f".{dest.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        aside.mkdir()
        try:
            yield aside / dest.name
            fd = os.open(aside / dest.name, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            (aside / dest.name).replace(dest)
            commit.sync_folder(dest.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
