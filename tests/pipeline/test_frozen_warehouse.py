"""Warehouses written by earlier versions, kept as they were, are read today and say what they said. See frozen/make.py.

What they must say was counted from the decode steps in plain Python when they were made.
"""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.fsck import fsck
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse

FROZEN = sorted(path.parent for path in (Path(__file__).parent / "frozen").glob("*/said.json"))


@pytest.fixture(params=FROZEN, ids=lambda path: path.name)
def frozen(request, tmp_path) -> tuple[Warehouse, dict]:
    shutil.copytree(request.param / "warehouse", tmp_path / "wh")
    return Warehouse(tmp_path / "wh"), json.loads((request.param / "said.json").read_bytes())


def test_there_is_one():
    assert FROZEN


def test_views_say_what_they_said(frozen):
    house, said = frozen
    con = connect(house)
    counts = "requests, steps, rounds, drafted, accepted, emitted"
    for view, sums in (("proposer_summary", counts), ("workload_summary", None), ("request_summary", None)):
        columns = sums or ", ".join(
            f"sum({c})::BIGINT AS {c}" if view == "workload_summary" or c != "requests" else f"count(*) AS {c}"
            for c in counts.split(", ")
        )
        group = "" if sums else "GROUP BY run"
        rows = query(con, f"SELECT run, {columns} FROM {view} {group}").to_pylist()
        assert {row.pop("run"): row for row in rows} == said["runs"]
    steps = query(
        con, "SELECT run, count(accepted) AS steps, sum(emitted)::BIGINT AS emitted FROM decode_steps GROUP BY run"
    )
    assert {r["run"]: (r["steps"], r["emitted"]) for r in steps.to_pylist()} == {
        run: (counted["steps"], counted["emitted"]) for run, counted in said["runs"].items()
    }
    status = query(con, "SELECT run, status FROM run_info").to_pylist()
    assert {r["run"]: r["status"] for r in status} == {
        "recorded": "complete",
        "live": "complete",
        "unfinished": "unfinished",
    }


def test_every_view_opens(frozen):
    con = connect(frozen[0])
    for row in query(
        con, "SELECT view_name AS name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
    ).to_pylist():
        query(con, f'SELECT * FROM "{row["name"]}"')


def test_its_trace_is_read(frozen):
    house, said = frozen
    rows = house.read_trace("small").to_pylist()
    assert {r["request_id"]: [r["prompt_token_ids"], r["output_token_ids"]] for r in rows} == said["trace"]


def test_it_is_whole(frozen):
    house, said = frozen
    assert fsck(house).findings == []
    for path in house.root.rglob("*.json"):
        # plans of these runs were written by the tests' own helper
        assert path.name == "plan.json" or json.loads(path.read_bytes())["schema_version"] == said["schema_version"]
