import json
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_traces import NGRAM, config, contents, rows, table

from pipeline.plan import plan
from pipeline.run import replay
from pipeline.units import digests
from pipeline.warehouse import Warehouse
from replay.recorded.engine import replay_recorded
from replay.requests import Requests, Tokens
from schemas.errors import EnvironmentProblem, InputError, LockedError, ReconciliationError, UnitsFailedError

DATA = rows(40)
LIVE = {"kind": "vllm", "model": "some/model"}


@pytest.fixture
def warehouse(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA)])
    return house


def read(warehouse: Warehouse, name: str, run: str) -> list[dict]:
    parts = [pq.read_table(path, partitioning=None) for path in warehouse.files(name, [run])]
    return pa.concat_tables(parts).to_pylist()


def test_shards_add_up_to_the_whole_trace_walked_at_once(warehouse):
    outcome = replay(config({}, NGRAM, shard_size=7), warehouse)
    outcome.raise_for_status()
    in_order = sorted(DATA, key=lambda row: row["arrival"])
    log = replay_recorded(Requests.from_table(table(in_order)), NGRAM)
    wanted = {
        (in_order[request]["request_id"], step): (drafted, accepted, overrun)
        for request, step, drafted, accepted, overrun in zip(
            *(getattr(log, name).tolist() for name in ("request", "step", "drafted", "accepted", "overrun")),
            strict=True,
        )
    }
    requests = read(warehouse, "requests", outcome.run)
    names = {row["request"]: row["request_id"] for row in requests}
    assert [names[i] for i in range(40)] == [row["request_id"] for row in in_order]
    steps = read(warehouse, "decode_steps", outcome.run)
    got = {(names[s["request"]], s["step"]): (s["drafted"], s["accepted"], s["overrun"]) for s in steps}
    assert got == wanted
    assert len(steps) == len(wanted)
    assert {s["proposer"] for s in steps} == {"ngram 2-4 k3"}  # none has no rows there


def test_requests_carry_the_traces_columns_and_the_steps_sums(warehouse):
    run = replay(config({}, NGRAM), warehouse).run
    by_id = {row["request_id"]: row for row in DATA}
    steps = read(warehouse, "decode_steps", run)
    for row in read(warehouse, "requests", run):
        source = by_id[row["request_id"]]
        for column in ("session_id", "prompt_tokens", "output_tokens", "finish_reason", "arrival"):
            assert row[column] == source[column]
        assert row["tenant"] == (source["tenant"] or "(none)")
        assert row["workload"] == (source["workload"] or "(none)")
        mine = [s for s in steps if s["request"] == row["request"] and s["proposer"] == row["proposer"]]
        length = source["output_tokens"]
        if row["proposer"] == "none":
            assert (row["steps"], row["rounds"], row["drafted"], mine) == (max(length - 1, 0), 0, 0, [])
            continue
        assert row["steps"] == len(mine)
        assert row["rounds"] == sum(s["drafted"] > 0 for s in mine)
        assert (row["drafted"], row["accepted"]) == (sum(s["drafted"] for s in mine), sum(s["accepted"] for s in mine))
        assert sum(s["accepted"] + 1 - s["overrun"] for s in mine) == max(length - 1, 0)


def test_the_same_again_is_done_and_again_repeats(warehouse):
    first = replay(config(), warehouse)
    before = contents(warehouse.root)
    second = replay(config(), warehouse)
    assert (second.run, second.already_done, first.already_done) == (first.run, True, False)
    assert contents(warehouse.root) == before
    third = replay(config(), warehouse, again=True)
    assert (third.run, third.already_done) == (f"{first.run}-r2", False)
    (warehouse.root / f"runs/{third.run}/done.json").unlink()  # as if killed: --again goes on with that one
    assert replay(config(), warehouse, again=True).run == third.run
    assert replay(config(), warehouse, again=True).run == f"{first.run}-r3"
    assert replay(config(), warehouse).run == first.run


def test_workers_make_the_same_bytes(warehouse, tmp_path):
    other = Warehouse(tmp_path / "other")
    other.write_trace("small", [table(DATA)])
    replay(config({}, NGRAM, shard_size=7), warehouse)
    replay(config({}, NGRAM, shard_size=7, workers=2), other)
    assert contents(other.root) == contents(warehouse.root)


def test_progress_ends_at_all_requests_of_every_proposer(warehouse):
    seen: dict = {}
    replay(
        config({}, NGRAM, shard_size=7), warehouse, progress=lambda *said: seen.setdefault(said[0], []).append(said[1:])
    )
    assert set(seen) == {"none", "ngram 2-4 k3"}
    for said in seen.values():
        assert said[0] == (0, 40)
        assert said[-1] == (40, 40)
        assert all(a[0] <= b[0] for a, b in pairwise(said))


def test_a_failed_unit_leaves_the_others_committed_and_is_tried_again(warehouse):
    settings = config({}, NGRAM)
    run = plan(settings, warehouse).run
    obstacle = warehouse.root / "decode_steps" / f"run={run}"  # n-gram's steps cannot be written, none has no steps
    obstacle.parent.mkdir()
    obstacle.touch()
    outcome = replay(settings, warehouse)
    assert (outcome.status, list(outcome.failed)) == ("failed", ["01-ngram-2-4-k3-00000"])
    with pytest.raises(
        UnitsFailedError, match=rf"run {run}: 1 units failed, the others are committed; 01-ngram"
    ) as error:
        outcome.raise_for_status()
    assert error.value.exit_code == 3
    assert {row["proposer"] for row in read(warehouse, "requests", run)} == {"none"}
    obstacle.unlink()
    outcome = replay(settings, warehouse)
    assert (outcome.status, outcome.failed, outcome.already_done) == ("complete", {}, False)
    assert {row["proposer"] for row in read(warehouse, "requests", run)} == {"none", "ngram 2-4 k3"}


def test_when_every_unit_fails_nothing_is_left(warehouse):
    run = plan(config(NGRAM), warehouse).run
    (warehouse.root / "decode_steps").mkdir()
    (warehouse.root / "decode_steps" / f"run={run}").touch()
    with pytest.raises(UnitsFailedError, match=rf"run {run}: all 1 units failed; 00-ngram"):
        replay(config(NGRAM), warehouse)
    assert warehouse.runs() == []


def commit_live(warehouse: Warehouse, ok: bool) -> str:
    """A live run as a process leaves it that was killed before done.json: every unit committed."""
    planned = plan(config(NGRAM, engine=LIVE), warehouse)
    warehouse.write_plan(planned.run, planned.as_dict())
    wrong = {"counter": "vllm:spec_decode_num_drafts", "engine": 7, "step_log": 6}
    for unit in planned.units:
        mismatches = [] if ok or unit.proposer.name == "none" else [wrong]
        reconciliation = {"ok": not mismatches, "mismatches": mismatches}
        facts = {"engine": {"kv_cache_tokens": 4096, "vllm": "0.32.0"}, "reconciliation": reconciliation}
        warehouse.commit_shard(planned.run, unit.shard, {}, facts)
    return planned.run


def test_a_run_that_does_not_reconcile_fails_and_names_the_counter(warehouse):
    run = commit_live(warehouse, ok=False)
    for already_done in (False, True):  # the verdict outlives the process that measured
        outcome = replay(config(NGRAM, engine=LIVE), warehouse)
        assert (outcome.run, outcome.status, outcome.already_done) == (run, "failed", already_done)
        says = r"vllm:spec_decode_num_drafts is 7 in the engine, 6 in the step log"
        with pytest.raises(ReconciliationError, match=says) as error:
            outcome.raise_for_status()
        assert error.value.exit_code == 5
    assert warehouse.run(run).done["reconciled"] is False


def test_what_done_says_of_a_live_run(warehouse):
    run = commit_live(warehouse, ok=True)
    replay(config(NGRAM, engine=LIVE), warehouse).raise_for_status()
    done = warehouse.run(run).done
    assert (done["status"], done["reconciled"]) == ("complete", True)
    assert done["proposers"]["ngram 2-4 k3"]["kv_cache_tokens"] == 4096
    assert set(done["shards"]) == {"00-none-00000", "01-ngram-2-4-k3-00000"}


def test_the_plan_on_disk_is_what_ran(warehouse):
    run = replay(config({}, NGRAM), warehouse).run
    stored = json.loads((warehouse.root / f"runs/{run}/plan.json").read_text("utf-8"))
    assert stored["trace"] == {"name": "small", "fingerprint": warehouse.trace("small").fingerprint}
    assert stored["engine"] == {"kind": "recorded", "runner": "v1", "model": None}
    assert stored["label"] == "recorded"
    assert [p["name"] for p in stored["proposers"]] == ["none", "ngram 2-4 k3"]
    assert stored["units"][0]["output_tokens"] == sum(row["output_tokens"] for row in DATA)


def test_a_request_over_the_limit_is_the_users_error_and_leaves_nothing(warehouse):
    before = contents(warehouse.root)
    with pytest.raises(InputError, match="max_model_len = 10"):
        replay(config(NGRAM, trace={"max_model_len": 10}), warehouse)
    assert contents(warehouse.root) == before
    assert warehouse.runs() == []


def test_an_engine_that_is_not_there(warehouse):
    engine = {"kind": "vllm", "model": "/no/such/model"}
    with pytest.raises((InputError, EnvironmentProblem), match=r"/no/such/model|vllm is not installed"):
        replay(config(NGRAM, engine=engine), warehouse)
    assert warehouse.runs() == []


def test_two_replays_of_one_run(warehouse):
    with warehouse.lock(plan(config(), warehouse).run), pytest.raises(LockedError):
        replay(config(), warehouse)


def test_digests_tell_outputs_apart_within_a_run_only():
    outputs = Tokens.of([[1, 2], [1, 2], [1], [2, 1], []])
    first = digests(outputs, "run-a")
    assert first[0] == first[1]
    assert len(set(first)) == 4
    assert not set(first) & set(digests(outputs, "run-b"))


def test_every_proposer_says_whether_it_is_exact(warehouse):
    def said(house, *proposers, **sections):
        outcome = replay(config(*proposers, **sections), house)
        return {n: (e["label"], e["reason"]) for n, e in house.run(outcome.run).done["proposers"].items()}

    walked = sum(row["output_tokens"] > 1 for row in DATA)
    assert said(warehouse, {}, NGRAM)["ngram 2-4 k3"][0] == "proxy"
    assert f"{walked} requests have no tail_token_ids" in said(warehouse, {}, NGRAM)["ngram 2-4 k3"][1]
    assert said(warehouse, {}, NGRAM)["none"][0] == "exact"
    tailed = [row | {"tail_token_ids": [1, 2, 3, 4], "model": "m"} for row in DATA]
    warehouse.write_trace("tailed", [table(tailed)])
    assert said(warehouse, NGRAM, trace={"name": "tailed"})["ngram 2-4 k3"][0] == "exact"
    kind, reason = said(warehouse, NGRAM, trace={"name": "tailed"}, engine={"model": "other"})["ngram 2-4 k3"]
    assert kind == "proxy" and reason.startswith(
        "40 outputs come from another model (m), not from other; ngram on v1: "
    )
