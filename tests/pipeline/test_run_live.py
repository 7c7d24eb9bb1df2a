"""Live replays on the real engine in small: killed between two proposers, with proposers that break down, several
concurrencies on several devices, requests on schedule; and what capture leaves.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from breaking_proposer import WHERE
from small_traces import NGRAM, config, rows, table

from pipeline.capture import capture
from pipeline.plan import plan
from pipeline.report import render, report
from pipeline.run import replay
from pipeline.steps_show import steps
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.config import ReplayConfig
from schemas.errors import InputError, UnitsFailedError

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
MODEL = Path(os.environ.get("SPECREPLAY_TEST_MODELS") or HERE.parents[1] / "examples" / "models") / "target"
COUNTS = ("request_id", "proposer", "output_tokens", "steps", "rounds", "drafted", "accepted", "overrun")


def live(*proposers: dict, run: dict | None = None, trace: str = "small", **engine) -> ReplayConfig:
    base = {"kind": "vllm", "model": str(MODEL), "dtype": "float32", "concurrency": 4}
    sampling = {"temperature": 0.0, "max_tokens": 24}
    return config(*proposers, trace={"name": trace}, engine=base | {"sampling": sampling} | engine, **(run or {}))


def prompts() -> pa.Table:
    """Prompts only; each is said twice, so that there is something to look up."""
    out = []
    for i, row in enumerate(rows(6)):
        ids = [100 + (7 * i + 3 * j) % 400 for j in range(12)] * 2
        nothing = {"output_token_ids": None, "output_tokens": None, "finish_reason": None}
        out.append(row | nothing | {"prompt_token_ids": ids, "prompt_tokens": len(ids), "model": None})
    return table(out)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    house = Warehouse(tmp_path_factory.mktemp("live") / "wh")
    house.write_trace("small", [prompts()])
    return house


@pytest.fixture(scope="module")
def captured(warehouse):
    return capture(live(NGRAM), warehouse, "captured")


KILLED = """
import sys
from test_run_live import NGRAM, live
from pipeline.run import replay
from pipeline.warehouse import Warehouse
if __name__ == "__main__":
    replay(live(NGRAM), Warehouse(sys.argv[1]))
"""


def counts(warehouse: Warehouse, run: str, proposer: str) -> list[tuple]:
    parts = [
        pq.read_table(path, partitioning=None, columns=list(COUNTS)) for path in warehouse.files("requests", [run])
    ]
    found = [tuple(row.values()) for row in pa.concat_tables(parts).to_pylist() if row["proposer"] == proposer]
    return sorted(found)


def test_killed_between_proposers_it_resumes_and_agrees_with_the_record(warehouse, captured):
    run = plan(live(NGRAM), warehouse).run
    first = warehouse.root / "_commits" / f"run={run}" / "00-none-00000.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(warehouse.root)], env=environment)
    try:
        while not first.exists():
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert warehouse.run(run).status == "unfinished"
    before = first.read_bytes()
    ran: list[str] = []
    outcome = replay(live(NGRAM), warehouse, progress=lambda name, done, total: ran.append(f"{name} {done}"))
    outcome.raise_for_status()
    assert (outcome.run, outcome.status) == (run, "complete")
    assert first.read_bytes() == before
    assert "none 6" in ran
    assert "none 1" not in ran  # it was not run again
    assert warehouse.run(run).done["reconciled"] is True

    recorded = replay(config({}, NGRAM, trace={"name": "captured"}), warehouse).run
    for proposer in ("none", "ngram 2-4 k3"):
        assert counts(warehouse, run, proposer) == counts(warehouse, recorded, proposer)
    requests = [row for path in warehouse.files("requests", [run]) for row in pq.read_table(path).to_pylist()]
    for name in {row["request_id"] for row in requests}:  # from this run's own outputs
        shown = steps(warehouse, run, name, proposer="ngram 2-4 k3").rows
        assert all(step["agrees"] for step in shown if step["miss_reason"] != "skipped")
        assert shown == steps(warehouse, recorded, name, proposer="ngram 2-4 k3").rows
    digests: dict = {}
    for row in requests:
        digests.setdefault(row["request_id"], set()).add(row["output_digest"])
        assert 0 <= row["first_token_us"] <= row["finished_us"]
    assert len(requests) == 12
    assert all(len(of_one) == 1 for of_one in digests.values())  # greedy: the proposer changes no output
    assert warehouse.run(run).done["proposers"]["ngram 2-4 k3"]["outputs"] == {"compared": 6, "equal": 6}
    assert {Path(path).name[:7] for path in warehouse.files("engine_steps", [run])} == {"00-none", "01-ngra"}


BREAKING = {"method": "custom_class", "model": "breaking_proposer.Breaking", "num_speculative_tokens": 1}


def said_again(output: list[int]) -> tuple[int, int, int, int]:
    """(steps, rounds, drafted, accepted) of a proposer that proposes the last token once more, by hand."""
    steps = accepted = 0
    at = 1  # the first token is prefill's
    while at < len(output):
        hit = output[at] == output[at - 1]
        steps, accepted, at = steps + 1, accepted + hit, at + 1 + hit
    return steps, steps, steps, accepted


@pytest.mark.slow  # six engines
def test_a_broken_proposer_costs_its_own_units_side_by_side_at_two_concurrencies(
    warehouse, captured, tmp_path, monkeypatch
):
    """An engine each on core 0 and core 1: none, and a proposer that hangs at concurrency 1 and raises at 3."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv(WHERE, str(tmp_path / "breaks.json"))
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))[:2]]
    broken = live(BREAKING, concurrency=[1, 3], run={"devices": cores, "hang_after_s": 6})
    (tmp_path / "breaks.json").write_text(json.dumps({1: "hang", 3: "raise"}))
    outcome = replay(broken, warehouse)
    shards = ["01-custom-class-k1-c1-00000", "01-custom-class-k1-c3-00000"]
    assert (outcome.status, sorted(outcome.failed), outcome.mismatches) == ("failed", shards, [])
    assert "the engine hangs: no iteration ended within 6 s" in outcome.failed[shards[0]]
    assert "the engine died: MemoryError: no memory is left on the device" in outcome.failed[shards[1]]
    stacks = Path(outcome.failed[shards[0]].rpartition("(log: ")[2].rstrip(")"))
    assert "in break_down" in stacks.read_text()
    with pytest.raises(UnitsFailedError) as error:
        outcome.raise_for_status()
    assert error.value.exit_code == 3

    each = warehouse.run(outcome.run).done["proposers"]["none"]["concurrencies"]
    assert set(each) == {"1", "3"} and {facts["devices"] for facts in each.values()} == set(cores)
    assert all(facts["reconciliation"]["ok"] and facts["threads"] == 1 for facts in each.values())
    assert each["1"]["kv_cache_tokens"] == each["3"]["kv_cache_tokens"] > 2048  # at least one of full length
    commits = warehouse.root / "_commits" / f"run={outcome.run}"
    before = {path: path.read_bytes() for path in commits.iterdir()}
    assert not {path.stem for path in before} & set(shards)

    (tmp_path / "breaks.json").write_text("{}")
    mended = replay(live(BREAKING, concurrency=[1, 3]), warehouse)
    mended.raise_for_status()
    assert (mended.run, mended.status) == (outcome.run, "complete")
    after = {path: path.read_bytes() for path in commits.iterdir()}
    assert before.items() < after.items() and set(shards) <= {path.stem for path in after}

    con = connect(warehouse, [outcome.run])
    outputs = {row["request_id"]: row["output_token_ids"] for row in warehouse.read_trace("captured").to_pylist()}
    columns = "proposer, concurrency, request_id, output_tokens, steps, rounds, drafted, accepted, equal_output"
    seen = query(con, f"SELECT {columns} FROM request_summary ORDER BY ALL").to_pylist()
    wanted = [
        (proposer, concurrency, name, len(ids), *(said_again(ids) if proposer != "none" else (len(ids) - 1, 0, 0, 0)))
        for proposer in ("custom_class k1", "none")
        for concurrency in (1, 3)
        for name, ids in sorted(outputs.items())
    ]
    assert [tuple(row.values())[:-1] for row in seen] == wanted and all(row["equal_output"] for row in seen)
    assert 0 < sum(row[-1] for row in wanted) < sum(row[-2] for row in wanted)
    most = "SELECT concurrency, max(sequences) AS n FROM files.engine_steps GROUP BY ALL ORDER BY ALL"
    assert query(con, most)["n"].to_pylist() == [1, 3]
    cost = query(con, "SELECT proposer, concurrency, engines_at_once FROM cost_summary ORDER BY ALL").to_pylist()
    assert [tuple(row.values()) for row in cost] == [
        ("custom_class k1", 1, 1),
        ("custom_class k1", 3, 1),
        ("none", 1, 2),
        ("none", 3, 2),
    ]


def test_requests_are_sent_as_they_arrived_and_wait_in_the_engine(warehouse, captured):
    """Four at once, two running; then the last of the run's order, and 50 ms later its first: all twice as fast."""
    offsets = [0, 0, 0, 0, 300_000, 400_000]
    arrived = [{"arrival": None, "arrival_offset_us": offset} for offset in offsets]
    arrived[5]["arrival"] = rows(6)[5]["arrival"]  # so that it is the run's first
    paced = [row | arrived[i] for i, row in enumerate(prompts().to_pylist())]
    warehouse.write_trace("paced", [table(paced)])
    found = live({}, trace="paced", concurrency=2, pace="arrival", speed=2.0)
    outcome = replay(found, warehouse)
    outcome.raise_for_status()
    con = connect(warehouse, [outcome.run])
    seen = {row["request_id"]: row for row in query(con, "SELECT * FROM request_summary").to_pylist()}
    assert [seen[f"r{i}"]["scheduled_us"] for i in range(6)] == [offset // 2 for offset in offsets]
    assert seen["r5"]["request"] == 0
    assert all(row["dispatched_us"] >= row["scheduled_us"] for row in seen.values())
    assert seen["r4"]["dispatched_us"] < seen["r5"]["dispatched_us"]
    # the engine has all four before any of them is done, and runs two
    burst = [seen[f"r{i}"] for i in range(4)]
    assert max(row["dispatched_us"] for row in burst) < min(row["finished_us"] for row in burst)
    most = query(con, "SELECT max(sequences) AS n, max(concurrency) AS c FROM files.engine_steps").to_pylist()
    assert most == [{"n": 2, "c": 2}]
    assert counts(warehouse, outcome.run, "none") == counts(
        warehouse, replay(config({}, NGRAM, trace={"name": "captured"}), warehouse).run, "none"
    )
    said = render(report(con), "table", 120)
    assert "requests as they arrived, 2 times as fast" in said
    assert "Latency: concurrency 2, requests as they arrived" in said
    assert "Throughput: concurrency 2, requests as they arrived" in said and "Capacity" not in said


def test_a_capture_is_a_canonical_trace_with_a_tail(warehouse, captured):
    made = warehouse.read_trace("captured").to_pylist()
    source = {row["request_id"]: row for row in prompts().to_pylist()}
    assert len(made) == captured.with_outputs == captured.with_tails == 6
    for row in made:
        assert row["prompt_token_ids"] == source[row["request_id"]]["prompt_token_ids"]
        assert row["session_id"] == source[row["request_id"]]["session_id"]
        assert len(row["output_token_ids"]) == row["output_tokens"] <= 24
        assert len(row["tail_token_ids"]) == NGRAM["num_speculative_tokens"] + 1
        assert row["finish_reason"] in ("stop", "length")
        assert row["model"] == "target"
        assert json.loads(row["sampling"]) == {"max_tokens": 24, "temperature": 0.0}
        assert json.loads(row["extra"]) == {"token_ids": "captured"}


def test_the_same_capture_is_not_run_again_and_another_is_refused(warehouse, captured):
    reported: list = []
    assert capture(live(NGRAM), warehouse, "captured", progress=lambda *said: reported.append(said)) == captured
    assert reported == []
    with pytest.raises(InputError, match="trace captured exists and is no capture of this"):
        capture(live(NGRAM | {"num_speculative_tokens": 9}), warehouse, "captured")
    with pytest.raises(InputError, match="capture needs an engine"):
        capture(config(NGRAM), warehouse, "other")
