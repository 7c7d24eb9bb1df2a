"""Rollups against sums by hand: per request, per session and per step, whatever shards they are spread over."""

import hashlib
from collections import Counter
from datetime import UTC, date, datetime
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from logged_runs import Request, Run, Step, commit, random_run, tables

from pipeline.rollups import rollups
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.tables import REQUESTS, ROLLUPS

ARRIVALS = [datetime(2026, 11, 28, 23, 59, 59, tzinfo=UTC), datetime(2026, 11, 29, tzinfo=UTC), None]


def _with(made: dict[str, pa.Table], sessions: list[str | None]) -> dict[str, pa.Table]:
    """The shard's tables with sessions, and arrivals around midnight."""
    rows = made["requests"].to_pylist()
    for i, row in enumerate(rows):
        row |= {"session_id": sessions[i], "arrival": ARRIVALS[i % 3]}
    return made | {"requests": pa.Table.from_pylist(rows, schema=REQUESTS)}


@pytest.fixture(scope="module")
def shard():
    run = random_run(5, requests=60)
    requests = run.requests["suffix"]
    sessions = [None if i % 4 == 0 else f"s{i % 7}" for i in range(len(requests))]
    return requests, sessions, _with(tables(run, "suffix", requests), sessions)


def test_steps_by_hand(shard):
    requests, sessions, made = shard
    wanted = Counter()
    for i, request in enumerate(requests):
        day = ARRIVALS[i % 3].date() if ARRIVALS[i % 3] else None
        name = sessions[i] or str(9007199254740993 + i)
        bucket = int(hashlib.md5(name.encode()).hexdigest()[:8], 16) % 200
        for s in request.verified:
            key = (day, request.workload, request.tenant, bucket, s.drafted, s.filler, s.accepted, s.miss)
            wanted[key] += 1
    rows = rollups(made)["rollup_steps"]
    assert rows.schema == ROLLUPS["rollup_steps"]
    names = "day workload tenant bucket drafted filler accepted miss_reason".split()
    assert {tuple(row[n] for n in names): row["steps"] for row in rows.to_pylist()} == wanted
    assert {d for d, *_ in wanted} == {date(2026, 11, 28), date(2026, 11, 29), None}


def test_groups_by_hand(shard):
    requests, sessions, made = shard
    rows = {(r["scope"], r["workload"], r["tenant"]): r for r in rollups(made)["rollup_groups"].to_pylist()}
    scopes = {
        "all": lambda r: (None, None),
        "workload": lambda r: (r.workload, None),
        "tenant": lambda r: (None, r.tenant),
        "workload and tenant": lambda r: (r.workload, r.tenant),
    }
    groups = {(scope, *group(r)) for scope, group in scopes.items() for r in requests}
    assert rows.keys() == groups
    for scope, *names in groups:
        members = [i for i, r in enumerate(requests) if scopes[scope](r) == tuple(names)]
        sums: dict[str, dict[str, int]] = {}
        for i in members:
            one = _sums(requests[i])
            own = sums.setdefault(sessions[i] or f"request {i}", dict.fromkeys(one, 0))
            for letter, value in one.items():
                own[letter] += value
        row = rows[scope, *names]
        assert (row["requests"], row["sessions"]) == (len(members), len(sums))
        for name in "S2 S3 S4 S5 R2 R3 R4 R5 D2 D3 D4 D5".split():
            assert row[name] == sum(s[name[0]] ** int(name[1]) for s in sums.values())
        for name in "CC EE RS CD CR ES".split():
            assert row[name] == sum(s[name[0]] * s[name[1]] for s in sums.values())
        lengths = [
            1 + Fraction(_sums(requests[i])["C"], _sums(requests[i])["R"]) for i in members if _rounds(requests[i])
        ]
        assert row["mean_acceptance_length_n"] == len(lengths)
        assert row["mean_acceptance_length_sum"] == (pytest.approx(float(sum(lengths)), rel=1e-12) if lengths else None)


def _rounds(request: Request) -> int:
    return sum(s.proposed > 0 for s in request.verified)


def _sums(request: Request) -> dict[str, int]:
    steps = request.verified
    return {
        "S": len(steps),
        "R": _rounds(request),
        "D": sum(s.proposed for s in steps),
        "C": sum(s.real for s in steps),
        "E": request.emitted,
    }


def test_a_run_in_many_shards_is_the_run_in_one(tmp_path):
    """Sessions are whole within a shard: then sums over shards say what one shard says."""
    run = random_run(6, requests=60)
    requests, sessions = run.requests["suffix"], [f"s{i // 4}" for i in range(60)]
    one, many = Warehouse(tmp_path / "one"), Warehouse(tmp_path / "many")
    made = _with(tables(run, "suffix", requests), sessions)
    one.commit_shard("r", "0", made | rollups(made))
    for i in range(0, 60, 12):
        part = slice(i, i + 12)
        own = _with(tables(run, "suffix", requests[part]), sessions[part])
        at = own["requests"].column_names.index("request")
        own["requests"] = own["requests"].set_column(
            at, REQUESTS.field("request"), pa.array(range(i, i + 12), pa.int32())
        )
        own["decode_steps"] = _moved(own["decode_steps"], i)
        many.commit_shard("r", str(i), own | rollups(own))
    for view in ("group_summary", "step_histogram", "position_summary", "length_summary", "miss_reasons"):
        found = [query(connect(w), f"SELECT * FROM {view} ORDER BY ALL").to_pylist() for w in (one, many)]
        assert len(found[0]) == len(found[1])
        for a, b in zip(*found, strict=True):
            assert {k: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for k, v in a.items()} == b, view


def _moved(steps: pa.Table, by: int) -> pa.Table:
    at = steps.column_names.index("request")
    moved = [value + by for value in steps["request"].to_pylist()]
    return steps.set_column(at, steps.schema.field(at), pa.array(moved, pa.int32()))


def test_a_proposer_without_steps_has_its_groups(tmp_path):
    run = Run({"none": [Request([], output_tokens=5), Request([], output_tokens=0)]})
    made = rollups(tables(run, "none", run.requests["none"]))
    assert made["rollup_steps"].num_rows == 0
    (row,) = [r for r in made["rollup_groups"].to_pylist() if r["scope"] == "all"]
    assert (row["requests"], row["empty_outputs"], row["steps"], row["rounds"]) == (2, 1, 4, 0)
    assert (row["coverage_n"], row["mean_acceptance_length_sum"]) == (1, None)


def test_totals_are_read_from_rollups_alone(tmp_path):
    """With its decode steps cut short on disk, a run still gives every total: nothing reads them again."""
    warehouse = Warehouse(tmp_path / "house")
    commit(warehouse, "r", Run({"p": [Request([Step(4, 2), Step(0, 0, miss="no_match")], "edit")]}))
    (steps,) = warehouse.files("decode_steps")
    pq.write_table(pq.read_table(steps, partitioning=None).slice(0, 0), steps)
    con = connect(warehouse)
    assert query(con, "SELECT count(*) AS n FROM decode_steps")["n"].to_pylist() == [0]
    assert query(con, "SELECT steps, rounds FROM proposer_summary").to_pylist() == [{"steps": 2, "rounds": 1}]
    assert query(con, "SELECT sum(steps)::bigint AS n FROM miss_reasons")["n"].to_pylist() == [1]
    assert query(con, "SELECT max(position) AS n FROM position_summary")["n"].to_pylist() == [4]
