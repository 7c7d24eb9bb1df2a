"""How the views are opened: only committed files, typed when empty, run names as text, locked down."""

import shutil
import threading

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from logged_runs import commit, random_run, tables
from small_traces import config, rows, table

from pipeline.rollups import rollups
from pipeline.run import replay
from pipeline.views import connect, init_sql, query
from pipeline.warehouse import Warehouse
from schemas.errors import InputError
from schemas.tables import RUN_TABLES

VIEWS = (
    "decode_steps request_summary group_summary proposer_summary workload_summary tenant_summary step_histogram "
    "position_summary proposer_positions length_summary miss_reasons cost_summary run_info proposer_settings "
    "output_differences latency_summary output_equality"
).split()


@pytest.fixture
def house(tmp_path):
    warehouse = Warehouse(tmp_path / "house")
    commit(warehouse, "007", random_run(1, requests=10))
    commit(warehouse, "2A1", random_run(2, requests=10, live=True), finished=False)
    return warehouse


def test_an_empty_warehouse_has_every_view_typed(tmp_path, house):
    (tmp_path / "empty").mkdir()
    empty, full = connect(Warehouse(tmp_path / "empty")), connect(house)
    for view in VIEWS:
        rows = query(empty, f"SELECT * FROM {view}")
        assert rows.num_rows == 0
        assert rows.schema == query(full, f"SELECT * FROM {view}").schema


def test_every_view_is_documented_and_lists_every_column_type(house):
    found = query(connect(house), "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'")
    assert sorted(found["view_name"].to_pylist()) == sorted(VIEWS)
    huge = "SELECT DISTINCT data_type FROM information_schema.columns WHERE table_schema = 'main'"
    types = set(query(connect(house), huge)["data_type"].to_pylist())
    assert not types & {"HUGEINT", "FLOAT"} and not any(t.startswith("DECIMAL") for t in types)


def test_run_names_stay_text(house):
    found = query(connect(house), "SELECT DISTINCT run FROM proposer_summary ORDER BY run")
    assert found["run"].to_pylist() == ["007", "2A1"]


def test_only_the_runs_asked_for(house):
    con = connect(house, runs=["007"])
    for view in ("decode_steps", "proposer_summary", "run_info"):
        assert query(con, f"SELECT DISTINCT run FROM {view}")["run"].to_pylist() == ["007"]
    assert query(connect(house, runs=[]), "SELECT * FROM decode_steps").num_rows == 0


def test_a_run_without_an_end_is_unfinished(house):
    rows = query(connect(house), "SELECT run, status, reconciled FROM run_info ORDER BY run").to_pylist()
    assert rows == [
        {"run": "007", "status": "complete", "reconciled": True},
        {"run": "2A1", "status": "unfinished", "reconciled": None},
    ]


def test_a_finished_run_is_read_from_its_done_alone(tmp_path):
    warehouse = Warehouse(tmp_path / "house")
    warehouse.write_trace("small", [table(rows(12))])
    replay(config(), warehouse).raise_for_status()
    before = [query(connect(warehouse), f"SELECT * FROM {view} ORDER BY ALL") for view in VIEWS]
    (plan,) = warehouse.root.glob("runs/*/plan.json")
    written = plan.read_bytes()
    plan.unlink()
    shutil.rmtree(warehouse.root / "_commits" / f"run={plan.parent.name}")
    con = connect(warehouse)
    assert [query(con, f"SELECT * FROM {view} ORDER BY ALL") for view in VIEWS] == before
    assert query(con, "SELECT trace, plan ->> '$.proposers[1].name' AS name FROM run_info").to_pylist() == [
        {"trace": "small", "name": config().proposer[1].name}
    ]
    assert replay(config(), warehouse).already_done
    assert plan.read_bytes() == written


def test_files_nobody_committed_are_not_seen(house):
    before = query(connect(house), "SELECT count(*) AS n FROM request_summary")
    folder = house.root / "requests" / "run=007"
    (folder / "0009-cut.parquet").write_bytes(b"PAR1 cut short")
    pq.write_table(pq.read_table(next(folder.glob("0000*")), partitioning=None), folder / "0010-orphan.parquet")
    assert query(connect(house), "SELECT count(*) AS n FROM request_summary") == before


@pytest.mark.parametrize("name", ["it's", "run [v1] 100% #a?", "a=b", "run=x", "%41 {*}", "名前 \\ 'q'"])
def test_odd_folder_names(tmp_path, name):
    warehouse = Warehouse(tmp_path / name / "w")
    commit(warehouse, "r.1-x", random_run(1, requests=4))
    con = connect(warehouse)
    assert query(con, "SELECT DISTINCT run FROM request_summary")["run"].to_pylist() == ["r.1-x"]
    assert query(con, "SELECT count(*) AS n FROM proposer_summary")["n"].to_pylist() == [2]
    local = duckdb.connect()
    local.execute(init_sql(warehouse))
    assert local.sql("SELECT count(*) FROM proposer_summary").fetchall() == [(2,)]


def test_init_sql_gives_the_same_rows_to_a_plain_duckdb(house):
    local = duckdb.connect()
    local.execute(init_sql(house))
    con = connect(house)
    for view in VIEWS:
        sql = f"SELECT * FROM {view} ORDER BY ALL"
        assert local.sql(sql).to_arrow_table() == query(con, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{root}/x.csv'",
        "COPY (SELECT 1) TO '{file}' (FORMAT parquet)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}'",
        "SELECT 1; COPY (SELECT 1) TO '{file}'",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW proposer_summary",
        "INSERT INTO files.runs VALUES ('x', NULL, NULL)",
        "ATTACH '{root}/x.db'",
        "SET enable_external_access = true",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('{root}/runs/007/plan.json')",
        "SELECT * FROM '{root}/requests/run=007/*.parquet'",
        "SELECT nothing FROM proposer_summary",
        "SELECT",
        "",
    ],
)
def test_nothing_but_the_views_can_be_read_and_nothing_written(house, sql):
    con = connect(house)
    file = house.files("requests", ["007"])[0]
    before = {p: p.read_bytes() for p in house.root.rglob("*") if p.is_file()}
    with pytest.raises(InputError) as error:
        query(con, sql.format(root=house.root, file=file))
    assert "\n" not in str(error.value)
    assert {p: p.read_bytes() for p in house.root.rglob("*") if p.is_file()} == before
    assert query(con, "SELECT count(*) AS n FROM proposer_summary")["n"].to_pylist() == [5]


@pytest.mark.parametrize("sql", ["DESCRIBE proposer_summary", "SUMMARIZE run_info", "SHOW TABLES;", "VALUES (1)"])
def test_looking_around_is_allowed(house, sql):
    assert query(connect(house), sql).num_rows > 0


def test_a_damaged_committed_file_is_one_line_that_names_it(house):
    path = house.files("requests", ["007"])[0]
    with open(path, "r+b") as file:  # noqa: PTH123
        file.truncate(40)
    with pytest.raises(InputError, match="requests") as error:
        query(connect(house), "SELECT * FROM proposer_summary")
    assert "\n" not in str(error.value)


def test_twenty_threads_see_the_same_numbers(house):
    con, seen = connect(house), []

    def ask():
        seen.append(query(con, "SELECT * FROM proposer_summary ORDER BY run, proposer"))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 20
    # averages may differ in the last bit with the order of addition
    columns = [name for name in seen[0].column_names if not name.endswith("_mean")]
    assert all(rows.select(columns) == seen[0].select(columns) for rows in seen)


OWN = """-- One row per run: requests of more than a step.
CREATE VIEW long_requests AS SELECT run, count(*) AS n FROM request_summary WHERE steps > 1 GROUP BY run
"""


def own_view(house, name, sql):
    (house.root / "views").mkdir(exist_ok=True)
    path = house.root / "views" / name
    path.write_bytes(sql.encode() if isinstance(sql, str) else sql)
    return path


def test_views_of_the_users_own_stand_beside_ours(house):
    own_view(house, "10_long.sql", OWN + "-- and no semicolon")
    own_view(house, "20_most.sql", "CREATE VIEW most AS (SELECT max(n) AS n FROM long_requests);")
    (house.root / "views" / "notes.txt").write_text("no view")
    con = connect(house)
    counts = query(con, "SELECT run, steps FROM request_summary").to_pylist()
    wanted = {run: sum(row["run"] == run and row["steps"] > 1 for row in counts) for run in ("007", "2A1")}
    assert {r["run"]: r["n"] for r in query(con, "SELECT * FROM long_requests").to_pylist()} == wanted
    assert query(con, "SELECT n FROM most")["n"].to_pylist() == [max(wanted.values())]
    local = duckdb.connect()
    local.execute(init_sql(house))
    assert dict(local.sql("SELECT run, n FROM long_requests").fetchall()) == wanted


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT 1",
        "-- CREATE VIEW x AS SELECT 1",
        "CREATE TABLE x AS SELECT 1",
        "/* /* */ CREATE VIEW x AS SELECT 1 */ CREATE TABLE x AS SELECT 1",
        "CREATE OR REPLACE VIEW proposer_summary AS SELECT 1",
        "CREATE TEMP VIEW proposer_summary AS SELECT 1",
        "CREATE VIEW temp.proposer_summary AS SELECT 1",
        "CREATE VIEW files.mine AS SELECT 1",
        "CREATE VIEW proposer_summary AS SELECT 1",
        "CREATE VIEW IF NOT EXISTS proposer_summary AS SELECT 1",
        "CREATE VIEW x AS SELECT 1; COPY (SELECT 1) TO '{root}/x.csv'",
        "CREATE VIEW x AS SELECT * FROM read_text('/etc/passwd')",
        "CREATE VIEW x AS SELECT * FROM read_text('{root}/runs/007/plan.json')",
        "CREATE VIEW x AS SELECT nothing FROM proposer_summary",
        "CREATE VIEW x AS SELECT",
        "COPY (SELECT 1) TO '{root}/x.csv'",
        b"CREATE VIEW x AS SELECT '\xff'",
    ],
)
@pytest.mark.parametrize("opened", [connect, init_sql])
def test_a_wrong_view_of_the_users_own_is_one_line_that_names_it(house, sql, opened):
    path = own_view(house, "mine.sql", sql.format(root=house.root) if isinstance(sql, str) else sql)
    before = {p: p.read_bytes() for p in house.root.rglob("*") if p.is_file()}
    with pytest.raises(InputError) as error:
        opened(house)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert {p: p.read_bytes() for p in house.root.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("left", [(), ("rollup_steps", "rollup_groups")])
def test_older_shards_without_newer_rollups_say_the_same(tmp_path, left):
    new, old, run = Warehouse(tmp_path / "new"), Warehouse(tmp_path / "old"), random_run(3, requests=40)
    commit(new, "r", run)
    for number, (proposer, requests) in enumerate(run.requests.items()):
        made = tables(run, proposer, requests)
        old.commit_shard("r", f"{number:04d}", made | {name: rollups(made)[name] for name in left})
    for view in ("step_histogram", "position_summary", "length_summary", "miss_reasons"):
        asked = [query(connect(house), f"SELECT * FROM {view} ORDER BY ALL") for house in (new, old)]
        assert asked[0].num_rows > 0
        assert asked[0] == asked[1]


def test_parameters_are_values_not_sql(house):
    found = query(connect(house), "SELECT ? AS name", ["'; DROP VIEW x; --"])
    assert found["name"].to_pylist() == ["'; DROP VIEW x; --"]


def test_every_schema_type_has_a_sql_type(tmp_path):
    warehouse = Warehouse(tmp_path)
    con = connect(warehouse)
    for name, schema in RUN_TABLES.items():
        rows = query(con, f"SELECT * FROM files.{name}")
        assert rows.column_names == ["run", *schema.names]
        zoned = pa.timestamp("us", tz="UTC")
        expected = [zoned if pa.types.is_timestamp(f.type) else f.type for f in schema]
        assert [f.type for f in rows.schema][1:] == expected
