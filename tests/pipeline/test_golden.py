"""Every view on one small run, against files that a reader can check. See golden/README.md."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.rollups import rollups
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from replay.steps import NOT_VERIFIED, StepLog
from schemas.tables import DISPATCHES, ENGINE_STEPS, MISS_REASONS, OUTPUT_DIFFERENCES, REQUESTS

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))
import plain_count as count  # noqa: E402

ELSEWHERE = {"effective_sessions", "plan", "done", "versions", "hardware", "config", "history"}
"""Columns that the files leave out, beside the ends of intervals."""


@pytest.fixture(scope="module", params=["rollups", "no rollups"])
def con(request, tmp_path_factory):
    house = Warehouse(tmp_path_factory.mktemp("golden") / "wh")
    house.write_plan(count.RUN, count.DOCUMENTS["plan"])
    for number, proposer in enumerate(count.PROPOSERS):
        made = shard(proposer)
        made |= rollups(made) if request.param == "rollups" else {}
        house.commit_shard(count.RUN, f"{number:04d}", made)
    house.write_done(count.RUN, count.DOCUMENTS["done"] | {"shards": house.committed(count.RUN)})
    return connect(house)


def shard(proposer: str) -> dict[str, pa.Table]:
    """What a replay commits of the proposer; its counts per request are the step log's."""

    def mine(rows: list[dict]) -> list[dict]:
        return [row | {"concurrency": count.AT} for row in rows if row["proposer"] == proposer]

    steps, outputs = mine(count.STEPS), mine(count.OUTPUTS)
    log = StepLog.of(
        len(outputs),
        *([row[name] for row in steps] for name in ("request", "step", "drafted")),
        [NOT_VERIFIED if row["accepted"] is None else row["accepted"] for row in steps],
        [row["overrun"] for row in steps],
        [MISS_REASONS.index(row["miss_reason"]) for row in steps],
        [row["filler"] for row in steps],
    )
    counts = {name: values.tolist() for name, values in log.counts().items()}
    if proposer == "none":  # logs no steps: each puts out one token
        counts["steps"] = [max(row["output_tokens"] - 1, 0) for row in outputs]
    requests = [
        count.REQUESTS[row["request"]]
        | {name: values[i] for name, values in counts.items()}
        | row
        | {"proposer_key": count.KEYS[proposer]}
        for i, row in enumerate(outputs)
    ]
    for row in requests:
        row["arrival"] = row["arrival"] and count.datetime.fromisoformat(row["arrival"])
    out = {
        "requests": pa.Table.from_pylist(requests, schema=REQUESTS),
        "engine_steps": pa.Table.from_pylist(mine(count.ENGINE), schema=ENGINE_STEPS),
        "dispatches": pa.Table.from_pylist(requests, schema=DISPATCHES),
    }
    if steps:
        out["decode_steps"] = log.table(proposer, count.AT)
    if differences := mine(count.DIFFERENCES):
        out["output_differences"] = pa.Table.from_pylist(differences, schema=OUTPUT_DIFFERENCES)
    return out


@pytest.mark.parametrize("view", count.VIEWS)
def test_the_view_says_what_the_file_says(con, view):
    golden = (GOLDEN / "views" / f"{view}.csv").read_text()
    columns = golden.partition("\n")[0].split(",")
    found = query(con, f"SELECT * FROM {view}")
    left = {name for name in found.column_names if name not in columns}
    assert {name for name in left if not name.endswith(("_low", "_high"))} <= ELSEWHERE, "columns without a golden"
    rows = found.select(columns).to_pylist()
    for row in rows:
        if isinstance(row.get("arrival"), count.datetime):
            row["arrival"] = row["arrival"].isoformat()
    assert count.text(rows) == golden


@pytest.mark.parametrize("view", count.VIEWS)
def test_the_file_says_what_a_plain_count_says(view):
    assert (GOLDEN / "views" / f"{view}.csv").read_text() == count.text(count.VIEWS[view]())


def test_every_view_has_a_file(con):
    views = query(con, "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'")
    assert sorted(views["view_name"].to_pylist()) == sorted(count.VIEWS)
    assert sorted(path.stem for path in (GOLDEN / "views").iterdir()) == sorted(count.VIEWS)


def test_the_run_holds_what_its_description_promises():
    def some(**wanted) -> bool:
        return any(all(step[key] == value for key, value in wanted.items()) for step in count.STEPS)

    assert some(accepted=None)
    assert some(drafted=0, miss_reason="too_short")
    assert some(drafted=4, filler=4, miss_reason="no_match")
    assert any(step["overrun"] > 0 for step in count.STEPS)
    assert any(0 < (step["filler"] or 0) < step["drafted"] for step in count.STEPS)
    assert {0, 1} <= {row["output_tokens"] for row in count.OUTPUTS}
    first = [s for s in count.STEPS if (s["proposer"], s["request"]) == ("ngram", 0)]
    assert [(s["drafted"], s["filler"], s["accepted"]) for s in first] == [(4, 4, 2), (4, 1, 3), (4, 4, 0), (4, 0, 4)]
    (row,) = [r for r in count.request_summary() if (r["proposer"], r["request"]) == ("ngram", 0)]
    numbers = ("steps", "rounds", "drafted", "accepted", "engine_rounds", "engine_drafted", "engine_accepted")
    assert [row[name] for name in numbers] == [4, 2, 7, 7, 4, 16, 9]
    assert json.dumps([float(row[name]) for name in count.RATIOS]) == "[0.5, 1.0, 4.5, 3.25]"
