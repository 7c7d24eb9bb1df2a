"""What the pages may know: SELECTs from the views of one warehouse. No arithmetic, no drawing.

The views are opened once per set of committed files and asked through a cursor per query, so that sessions in
parallel see the same numbers and a run that is committed meanwhile appears on the next click.
"""

import hashlib
import os
from typing import Any

import pyarrow as pa
import streamlit as st

from pipeline.views import Connection, connect, init_sql, query
from pipeline.warehouse import Warehouse

WAREHOUSE_VARIABLE = "SPECREPLAY_WAREHOUSE"
_SNAPSHOT = "snapshot"
ALL = None
"""Filter value for "not filtered by this"."""

# group_summary's scope by (a workload is chosen, a tenant is chosen)
_SCOPES = {
    (False, False): "all",
    (True, False): "workload",
    (False, True): "tenant",
    (True, True): "workload and tenant",
}


def warehouse() -> Warehouse:
    """The warehouse that the environment names.

    Raises:
        InputError: it is no folder.
    """
    return Warehouse(os.environ.get(WAREHOUSE_VARIABLE, "warehouse"))


def runs() -> list[dict[str, Any]]:
    """Rows of run_info, the one started last first.

    Raises:
        InputError: a committed file is damaged.
    """
    return select("SELECT * FROM run_info ORDER BY started DESC NULLS LAST, run DESC").to_pylist()


def labels(run: str) -> list[dict[str, Any]]:
    """A row per proposer of a run: label and reason, whether its counts are exact and why."""
    return select(
        "SELECT proposer, label, reason FROM proposer_settings WHERE run = ? ORDER BY proposer", run
    ).to_pylist()


def values(run: str, column: str) -> list[str]:
    """The proposers, workloads or tenants of a run, in order of name; `column` says which."""
    view = {"proposer": "proposer_summary", "workload": "workload_summary", "tenant": "tenant_summary"}[column]
    rows = select(f"SELECT DISTINCT {column} FROM {view} WHERE run = ? ORDER BY {column}", run)
    return rows[column].to_pylist()


def concurrencies(run: str) -> list[int]:
    """The concurrencies of a run, ascending."""
    sql = "SELECT DISTINCT concurrency FROM proposer_summary WHERE run = ? ORDER BY concurrency"
    return select(sql, run)["concurrency"].to_pylist()


def proposers(run: str, concurrency: int, workload: str | None = ALL, tenant: str | None = ALL) -> pa.Table:
    """A row per proposer over the requests of that workload and tenant, most tokens per step first, with its cost.

    Cost is measured per proposer over the whole run: with a filter it is NULL.
    """
    one = "run = ? AND concurrency = ?"
    # costs are of engines: where none ran, no file is searched for them
    live = select("SELECT engine = 'vllm' AS live FROM run_info WHERE run = ?", run)["live"].to_pylist() == [True]
    return select(
        "SELECT summary.*, speedup_over_none, us_per_emitted_token, kv_cache_tokens, max_concurrency, "
        "engines_at_once, prefix_cache_hit_tokens, dispatch_lag_us_p95, longest_iteration_us, largest_gap "
        f"FROM (SELECT * FROM group_summary WHERE {one} AND scope = ? "
        "AND (? IS NULL OR workload = ?) AND (? IS NULL OR tenant = ?)) AS summary "
        f"LEFT JOIN (SELECT * FROM cost_summary WHERE {one} AND ?) AS cost USING (proposer) "
        f"LEFT JOIN (SELECT * FROM latency_summary WHERE {one} AND ?) AS latency USING (proposer) "
        f"LEFT JOIN (SELECT * FROM output_equality WHERE {one} AND ?) AS outputs USING (proposer) "
        "ORDER BY tokens_per_step DESC NULLS LAST, proposer",
        *(run, concurrency, _SCOPES[workload is not ALL, tenant is not ALL]),
        *(workload, workload, tenant, tenant),
        *(run, concurrency, live and workload is ALL and tenant is ALL) * 3,
    )


def points(run: str, concurrency: int, workload: str | None = ALL, tenant: str | None = ALL) -> pa.Table:
    """A row per proposer and workload, over the requests of that tenant."""
    return select(
        "SELECT * FROM group_summary "
        "WHERE run = ? AND concurrency = ? AND scope = ? "
        "AND (? IS NULL OR workload = ?) AND (? IS NULL OR tenant = ?) "
        "ORDER BY workload, tokens_per_step DESC NULLS LAST, proposer",
        run,
        concurrency,
        _SCOPES[True, tenant is not ALL],
        *(workload, workload, tenant, tenant),
    )


def misses(run: str, concurrency: int, workload: str | None = ALL) -> pa.Table:
    """Rows of miss_reasons, all tenants."""
    return select(
        "SELECT * FROM miss_reasons WHERE run = ? AND concurrency = ? AND (? IS NULL OR workload = ?) "
        "ORDER BY workload, proposer, miss_reason",
        *(run, concurrency, workload, workload),
    )


def positions(run: str, concurrency: int, workload: str | None = ALL) -> pa.Table:
    """A row per proposer and position, pooled over workloads or for one of them."""
    if workload is ALL:
        return select(
            "SELECT * FROM proposer_positions WHERE run = ? AND concurrency = ? ORDER BY proposer, position",
            *(run, concurrency),
        )
    return select(
        "SELECT * FROM position_summary WHERE run = ? AND concurrency = ? AND workload = ? ORDER BY proposer, position",
        *(run, concurrency, workload),
    )


def workload_positions(run: str, concurrency: int, proposer: str) -> pa.Table:
    """A row per workload and position of one proposer."""
    return select(
        "SELECT * FROM position_summary WHERE run = ? AND concurrency = ? AND proposer = ? ORDER BY workload, position",
        *(run, concurrency, proposer),
    )


def lookups(run: str, concurrency: int, workload: str | None = ALL) -> pa.Table:
    """A row per n-gram lookup with its settings, all tenants, most tokens per step first."""
    return select(
        "SELECT summary.*, method, prompt_lookup_min, prompt_lookup_max, num_speculative_tokens "
        "FROM group_summary AS summary JOIN proposer_settings USING (run, proposer) "
        "WHERE run = ? AND concurrency = ? AND scope = ? AND (? IS NULL OR workload = ?) "
        "AND method IN ('ngram', 'ngram_gpu') ORDER BY tokens_per_step DESC NULLS LAST, proposer",
        run,
        concurrency,
        _SCOPES[workload is not ALL, False],
        *(workload, workload),
    )


def only(rows: pa.Table, column: str, wanted: list[str]) -> pa.Table:
    """The rows whose `column` is one of `wanted`, order kept."""
    return rows.filter(pa.array([name in wanted for name in rows[column].to_pylist()], pa.bool_()))


def refresh() -> None:
    """Look at what is committed now: everything drawn until the next call is read from that, and agrees.

    Raises:
        InputError: no warehouse there.
    """
    house = warehouse()
    # the statements name every committed file and hold every plan and end of a run: they change when any of it does
    st.session_state[_SNAPSHOT] = str(house.root), hashlib.sha256(init_sql(house).encode()).hexdigest()


def select(sql: str, *parameters: Any) -> pa.Table:
    """The rows of a SELECT over the views, cached for as long as the committed files are the same.

    Raises:
        InputError: a committed file is damaged.
    """
    return _rows(*st.session_state[_SNAPSHOT], sql, parameters)


@st.cache_resource(max_entries=2, show_spinner=False)
def _connection(root: str, committed: str) -> Connection:
    return connect(Warehouse(root))


@st.cache_data(max_entries=200, show_spinner="Reading the warehouse …")
def _rows(root: str, committed: str, sql: str, parameters: tuple) -> pa.Table:
    return query(_connection(root, committed), sql, list(parameters))
