"""Clocks that are wrong and zones that are not UTC change no count, no day, and no order that they need not change."""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from small_traces import NGRAM, START, config, contents, rows, table

from pipeline import gc, run
from pipeline.fsck import fsck
from pipeline.report import report
from pipeline.views import connect, init_sql, query
from pipeline.warehouse import Warehouse

# evenings and nights: half of them are of another day in Kiritimati (UTC+14) and in Honolulu (UTC-10)
DATA = [row | {"arrival": START + timedelta(hours=i)} for i, row in enumerate(rows(30))]
CONFIG = config({}, NGRAM, shard_size=12)
REPLAY = """
import sys
from small_traces import NGRAM, config
from pipeline.run import replay
from pipeline.warehouse import Warehouse
replay(config({}, NGRAM, shard_size=12), Warehouse(sys.argv[1])).raise_for_status()
"""
ZONES = ["Pacific/Kiritimati", "Pacific/Honolulu", "Asia/Kathmandu"]


@pytest.fixture
def house(tmp_path) -> Warehouse:
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA)])
    return house


def views(con: duckdb.DuckDBPyConnection) -> dict[str, list]:
    """Every row of every view; moments as microseconds since 1970."""
    names = con.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'").fetchall()
    out = {}
    for (name,) in names:
        kinds = con.sql(f"DESCRIBE {name}").fetchall()
        moments = [f"epoch_us({kind[0]}) AS {kind[0]}" for kind in kinds if "TIME ZONE" in kind[1]]
        select = f"SELECT * REPLACE ({', '.join(moments)}) FROM {name}" if moments else f"SELECT * FROM {name}"
        out[name] = sorted(map(repr, con.sql(select).fetchall()))
    out["rollup_steps"] = sorted(map(repr, con.sql("FROM files.rollup_steps").fetchall()))
    return out


@pytest.mark.parametrize("zone", ZONES[:2])
def test_a_writer_in_another_zone_writes_the_same_bytes(house, tmp_path, zone):
    there = Warehouse(tmp_path / "there")
    there.write_trace("small", [table(DATA)])
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1])])
    environment = os.environ | {"PYTHONPATH": path, "TZ": zone}
    subprocess.run([sys.executable, "-c", REPLAY, str(there.root)], env=environment, check=True)
    run.replay(CONFIG, house).raise_for_status()
    assert contents(there.root) == contents(house.root)
    found = query(
        connect(house), "SELECT day, sum(steps)::BIGINT AS n FROM files.rollup_steps GROUP BY day"
    ).to_pylist()
    steps = {r["request_id"]: r["steps"] for r in query(connect(house), _NGRAM_STEPS).to_pylist()}
    wanted: Counter = Counter()
    for row in DATA:
        wanted[row["arrival"].astimezone(UTC).date()] += steps[row["request_id"]]
    assert {r["day"]: r["n"] for r in found} == {day: n for day, n in wanted.items() if n}


_NGRAM_STEPS = "SELECT request_id, steps FROM request_summary WHERE proposer LIKE 'ngram%'"


def test_a_session_in_another_zone_reads_the_same_rows(house):
    run.replay(CONFIG, house).raise_for_status()
    statements = init_sql(house)
    seen = []
    for zone in ("UTC", *ZONES):
        with duckdb.connect(":memory:") as con:
            con.execute(statements)
            con.execute(f"SET TimeZone = '{zone}'")
            assert con.sql("SELECT current_setting('TimeZone')").fetchall() == [(zone,)]
            seen.append(views(con))
    assert seen[0]["request_summary"]
    assert all(each == seen[0] for each in seen)


@pytest.mark.parametrize("zone", ZONES)
def test_the_day_chosen_is_utc_whatever_the_zone(house, zone):
    code = (
        "import sys; from pipeline.selection import select; from pipeline.warehouse import Warehouse;"
        "from schemas.config import TraceSection;"
        "c = [n for n in ('session_id request_id tenant workload arrival arrival_offset_us').split()];"
        "t = Warehouse(sys.argv[1]).read_trace('small', c);"
        "print(select(t, TraceSection(date_from='2026-11-25', date_to='2026-11-25')).tolist())"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TZ": zone}
    said = subprocess.run(
        [sys.executable, "-c", code, str(house.root)], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert json.loads(said) == [i for i, row in enumerate(DATA) if row["arrival"].date().isoformat() == "2026-11-25"]


def test_a_wrong_clock_changes_when_and_nothing_else(house, monkeypatch):
    clocks = {"": "2026-11-30T12:00:00+00:00", "-r2": "1970-01-01T00:00:01+00:00", "-r3": "2199-01-01T00:00:00+00:00"}
    made = {}
    for again, now in clocks.items():
        monkeypatch.setattr(run, "_now", lambda now=now: now)
        outcome = run.replay(CONFIG, house, again=bool(again))
        outcome.raise_for_status()
        made[outcome.run] = again
    assert sorted(made.values()) == sorted(clocks)
    totals = query(connect(house), "SELECT * EXCLUDE (run) FROM proposer_summary ORDER BY run, proposer").to_pylist()
    assert totals[:2] == totals[2:4] == totals[4:]
    order = [again for _, again in sorted((clock, again) for again, clock in clocks.items())]
    assert [made[record.run] for record in house.runs()] == order == ["-r2", "", "-r3"]
    assert made[report(connect(house)).run] == "-r3"
    assert fsck(house).findings == []
    # one that ended in the future is young, one that ended in 1970 is old: what its clock says is all there is
    assert [made[item.name] for item in gc.choose(house, keep_days=1, now=datetime(2026, 12, 15, tzinfo=UTC))] == [
        "-r2",
        "",
    ]


def test_runs_are_in_order_of_the_moment_not_of_its_spelling(tmp_path):
    house = Warehouse(tmp_path / "wh")
    started = {
        "third": "2026-11-30T23:30:00+14:00",  # 09:30 UTC
        "first": "2026-11-30T08:00:00+00:00",
        "fourth": "2026-11-30T01:00:00-10:00",  # 11:00 UTC
        "second": "2026-11-30T09:00:00Z",
        "nobody knows": None,
        "no time": "yesterday",
    }
    for name, when in started.items():
        house.write_plan(name.replace(" ", "-"), {"started": when} if when else {})
    expected = ["no-time", "nobody-knows", "first", "second", "third", "fourth"]
    assert [record.run for record in house.runs()] == expected
    ordered = query(connect(house), "SELECT run FROM run_info ORDER BY started NULLS FIRST, run")
    assert ordered["run"].to_pylist() == expected
