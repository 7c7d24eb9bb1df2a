"""What a shard sums up to, made once when it is written, so that nobody reads its decode steps again for a total.

The same SELECT (`sql/rollup_*.sql`) makes them here and, for shards that were committed without, in the views.
"""

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from pipeline.views import rollup_sql
from schemas.tables import DECODE_STEPS, ROLLUPS


def rollups(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The rollup tables of one shard.

    Args:
        tables: its `requests` and `decode_steps` (may be missing or empty: a proposer that never proposes), in their
            schemas.

    Returns:
        Those of `schemas.tables.ROLLUPS`, in their schemas; rows in no particular order.
    """
    with duckdb.connect(":memory:") as con:
        con.execute("SET threads = 1")  # a worker has one core, and sums in one order
        con.execute("CREATE SCHEMA raw")
        for name, table in (("requests", tables["requests"]), ("decode_steps", tables.get("decode_steps"))):
            con.register(f"given_{name}", DECODE_STEPS.empty_table() if table is None else table)
            con.execute(f"CREATE VIEW raw.{name} AS SELECT '' AS run, * FROM given_{name}")
        con.execute(f"CREATE TABLE raw.rollup_steps AS {_counted(rollup_sql('rollup_steps'))}")
        made = {
            "rollup_steps": "FROM raw.rollup_steps",
            "rollup_histogram": _counted(rollup_sql("rollup_histogram")),
            "rollup_groups": rollup_sql("rollup_groups"),
        }
        return {
            name: con.sql(made[name]).to_arrow_table().select(schema.names).cast(schema)
            for name, schema in ROLLUPS.items()
        }


def _counted(rows: str) -> str:
    return f"SELECT * EXCLUDE (steps), sum(steps)::bigint AS steps FROM ({rows}) GROUP BY ALL"
