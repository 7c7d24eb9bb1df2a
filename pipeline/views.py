"""Opens the SQL views over the committed files of a warehouse, read-only, in DuckDB without a database file.

Knows how a file becomes a relation (`files.<table>`, typed, with the run taken from the path as text) and which shards
have rollups; what a view means stands in `sql/NN_name.sql`, and for the user's own in `views/*.sql` of a warehouse: one
CREATE VIEW each, opened after ours in order of file name. Computes no number itself.
"""

import json
import re
from collections.abc import Sequence
from importlib.resources import files as package_files

import duckdb
import pyarrow as pa

from pipeline import remote
from pipeline.warehouse import RunRecord, Warehouse
from schemas.errors import InputError
from schemas.speculative import proposer_key
from schemas.tables import ROLLUPS, RUN_TABLES

Connection = duckdb.DuckDBPyConnection
"""What `connect` gives; other modules need no duckdb of their own."""

_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.list_(pa.int32()): "INTEGER[]",
}
# The whole name between `run=` and the next slash, as written: hive partitioning would decode % and guess types.
# Not OR REPLACE, TEMP or another schema: a view of theirs must not stand in for one of ours.
_OWN_VIEW = re.compile(r'(\s*--[^\n]*\n)*\s*CREATE\s+VIEW\s+(?!IF\s)(\w+|"[^"]+")\s*(\(|AS\b)', re.IGNORECASE)
_RUN_OF_PATH = r"regexp_extract(filename, '/run=([^/]*)/[^/]*$', 1)"


def connect(warehouse: Warehouse, runs: Sequence[str] | None = None) -> Connection:
    """The views over what is committed now, in a connection that can read these files and nothing else.

    Take a `cursor()` per thread or query. Files committed later are not seen: connect again.

    Args:
        warehouse: where the files lie.
        runs: only these runs; None = all.

    Raises:
        InputError: a committed file is missing or no Parquet, or a view of the user's own is wrong; one line that
            names it.
    """
    return _open(*warehouse.snapshot(runs), _own_views(warehouse))


def _open(records: Sequence[RunRecord], shards: Sequence[dict[str, str]], own: dict[str, str]) -> Connection:
    con = duckdb.connect(":memory:")
    try:
        con.execute(_statements(records, shards))
        allowed = [path for shard in shards for path in shard.values()]
        con.execute(f"SET allowed_paths = [{', '.join(map(_quoted, allowed))}]")
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        con.close()
        raise InputError(f"the warehouse cannot be opened: {_one_line(error)}") from None
    for name, sql in own.items():  # locked down: they read what a SELECT may read
        try:
            con.execute(sql)
        except duckdb.Error as error:
            con.close()
            raise InputError(f"{name}: {_one_line(error)}") from None
    return con


def query(con: Connection, sql: str, parameters: Sequence | None = None) -> pa.Table:
    """The rows of one SELECT (or DESCRIBE, SHOW, SUMMARIZE, VALUES).

    Raises:
        InputError: the SQL is wrong, is not one statement, or would write; one line.
    """
    try:
        statements = con.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            # COPY could write over the very files that the views may read
            raise InputError("one SELECT statement is needed: the warehouse is read-only")
        cursor = con.cursor()
        relation = cursor.sql(sql, params=list(parameters)) if parameters else cursor.sql(sql)
        return relation.to_arrow_table()
    except duckdb.Error as error:
        raise InputError(f"SQL: {_one_line(error)}") from None


def init_sql(warehouse: Warehouse, runs: Sequence[str] | None = None) -> str:
    """Statements that give the same views to a plain local `duckdb`: a snapshot of what is committed now.

    The paths in them are absolute; files committed later are not seen.

    Raises:
        InputError: a view of the user's own is wrong; one line that names its file.
    """
    records, shards = warehouse.snapshot(runs)
    own = _own_views(warehouse)
    if own:
        _open(records, shards, own).close()  # a plain duckdb would let them read anything
    return _statements(records, shards) + "".join(f"{sql.strip().removesuffix(';')}\n;\n" for sql in own.values())


def rollup_sql(name: str) -> str:
    """The SELECT that makes a rollup of `raw.decode_steps` and `raw.requests`; its columns: `run`, then the schema's.

    `rollup_histogram` is made of `raw.rollup_steps`.

    Args:
        name: one of `schemas.tables.ROLLUPS`.
    """
    return (package_files("pipeline.sql") / f"{name}.sql").read_text("utf-8").strip()


def _statements(records: Sequence[RunRecord], shards: Sequence[dict[str, str]]) -> str:
    plain = [name for name in RUN_TABLES if name not in ROLLUPS]
    without = [shard for shard in shards if "requests" in shard and "rollup_groups" not in shard]
    parts = ["SET GLOBAL TimeZone = 'UTC';", "CREATE SCHEMA files;", "CREATE SCHEMA raw;"]
    parts += [_view(f"files.{name}", _select(name, shards)) for name in plain]
    parts += [_view(f"raw.{name}", _select(name, without)) for name in plain]
    # A shard that was committed without rollups, or without the histogram, is summed up when it is asked for.
    older = [shard for shard in shards if "rollup_histogram" not in shard and "rollup_steps" in shard]
    parts.append(_view("raw.rollup_steps", _union(_select("rollup_steps", older), "rollup_steps", bool(without))))
    for name in ROLLUPS:
        made = bool(without or (older and name == "rollup_histogram"))
        parts.append(_view(f"files.{name}", _union(_select(name, shards), name, made)))
    parts += [_runs_table(records), _baseline_keys()]
    folder = package_files("pipeline.sql")
    parts += [
        file.read_text("utf-8")
        for file in sorted(folder.iterdir(), key=lambda f: f.name)
        if re.fullmatch(r"\d\d_\w+\.sql", file.name)
    ]
    return "\n".join(part.strip() for part in parts) + "\n"


def _own_views(warehouse: Warehouse) -> dict[str, str]:
    """The user's own views by file, in order of name. Those of an object store came with `Warehouse.snapshot`.

    Raises:
        InputError: a file is something else than one CREATE VIEW.
    """
    found = {}
    for path in sorted((warehouse.root / "views").glob("*.sql")):
        name = remote.shown(warehouse.root, path)
        try:
            sql = path.read_text("utf-8-sig")
            statements = duckdb.extract_statements(sql)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}: cannot be read ({error})") from None
        except duckdb.Error as error:
            raise InputError(f"{name}: {_one_line(error)}") from None
        if len(statements) != 1 or not _OWN_VIEW.match(sql):
            raise InputError(
                f"{name}: must be one CREATE VIEW name AS SELECT …, with nothing but -- comments before it"
            )
        found[name] = sql
    return found


def _union(committed: str, rollup: str, made: bool) -> str:
    return f"{committed}\nUNION ALL BY NAME\n({rollup_sql(rollup)})" if made else committed


def _view(name: str, select: str) -> str:
    return f"CREATE VIEW {name} AS {select};"


def _select(name: str, shards: Sequence[dict[str, str]]) -> str:
    """The rows of a run table, with the schema's columns and `run`; none, typed, where no file is committed yet."""
    schema, paths = RUN_TABLES[name], [shard[name] for shard in shards if name in shard]
    if paths:
        columns = ", ".join(f'"{field.name}"' for field in schema)
        listed = ",\n    ".join(map(_quoted, paths))
        return (
            f"SELECT {_RUN_OF_PATH} AS run, {columns}\n"
            f"FROM read_parquet([\n    {listed}\n], filename = true, hive_partitioning = false)"
        )
    columns = ", ".join(f'NULL::{_SQL_TYPES[field.type]} AS "{field.name}"' for field in schema)
    return f"SELECT NULL::VARCHAR AS run, {columns} WHERE false"


def _runs_table(records: Sequence[RunRecord]) -> str:
    rows = [
        f"({_quoted(record.run)}, {_json(record.plan)}, {_json(_without_shards(record.done))})" for record in records
    ]
    values = f"VALUES {', '.join(rows)}" if rows else "SELECT NULL, NULL, NULL WHERE false"
    return f"CREATE TABLE files.runs (run VARCHAR, plan JSON, done JSON);\nINSERT INTO files.runs {values};"


def _baseline_keys() -> str:
    """Keys of the settings that mean "no speculation", whatever name the user gave them."""
    keys = ", ".join(f"({_quoted(proposer_key({'method': 'none'}, runner))})" for runner in ("v1", "v2"))
    return f"CREATE TABLE files.baseline_keys (proposer_key VARCHAR);\nINSERT INTO files.baseline_keys VALUES {keys};"


def _without_shards(done: dict | None) -> dict | None:
    return None if done is None else {key: value for key, value in done.items() if key != "shards"}


def _json(value: dict | None) -> str:
    return "NULL" if value is None else _quoted(json.dumps(value))


def _quoted(text: str) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def _one_line(error: duckdb.Error) -> str:
    """The first paragraph of DuckDB's message, without the excerpt of the statement."""
    return " ".join(str(error).split("\n\nLINE ")[0].split())
