"""A look at single steps: what the log says, candidates found again from the ids, and what is said when they differ."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from small_traces import NGRAM, config, rows, table
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.run import replay
from pipeline.steps_show import steps
from pipeline.warehouse import Warehouse
from replay.recorded.candidates import WHY_NOT, candidates
from replay.requests import Requests
from schemas.errors import InputError
from schemas.speculative import effective

DATA = [row for row in rows(60, seed=3) if row["output_tokens"] > 1]
SUFFIX = {"method": "suffix", "num_speculative_tokens": 6}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    house = Warehouse(tmp_path_factory.mktemp("steps") / "wh")
    house.write_trace("small", [table(DATA)])
    return house


def lookup(history, low, top, k, last):
    """The longest window, then its first or last match, one token behind it at least: k tokens from there."""
    for n in range(min(top, len(history) - 1), low - 1, -1):
        ends = [at + n for at in range(len(history) - n) if history[at : at + n] == history[-n:]]
        if ends:
            at = ends[-1] if last else ends[0]
            return history[at : at + k]
    return []


@pytest.mark.parametrize(
    ("method", "runner"), [("ngram", "v1"), ("ngram", "v2"), ("ngram_gpu", "v2"), ("ngram_gpu", "v1")]
)
def test_lookups_are_found_again(warehouse, method, runner):
    run = replay(config(NGRAM | {"method": method}, engine={"runner": runner}), warehouse).run
    for row in DATA:
        shown = steps(warehouse, run, row["request_id"])
        everything = row["prompt_token_ids"] + row["output_token_ids"]
        assert [s["position"] for s in shown.rows] == [s["context"] - row["prompt_tokens"] for s in shown.rows]
        assert 1 + sum(s["emitted"] for s in shown.rows) == row["output_tokens"]
        for step in shown.rows:
            assert step["candidates"] == lookup(everything[: step["context"]], 2, 4, 3, runner == "v2")
            assert step["agrees"] and len(step["candidates"]) == step["drafted"] - step["filler"]
        assert "all agree with the log" in shown.notes[0]


def test_suffix_is_found_again_in_the_tree_of_those_before(warehouse):
    """Twice the same output: the second time the first one's stands in the tree, and is proposed from the start."""
    run = replay(config(SUFFIX), warehouse).run
    alone = replay(config(SUFFIX | {"suffix_decoding_max_cached_requests": 0}), warehouse).run
    differ = 0
    for row in DATA:
        shown, own = (steps(warehouse, name, row["request_id"]) for name in (run, alone))
        assert all(s["agrees"] for s in shown.rows + own.rows)
        differ += [s["candidates"] for s in shown.rows] != [s["candidates"] for s in own.rows]
    assert differ > 10


@pytest.mark.parametrize("room", [0, 1, 5])
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_near_the_length_limit(warehouse, room, runner):
    limit = max(row["prompt_tokens"] + row["output_tokens"] for row in DATA) + room
    entries = [{"config": NGRAM}, {"config": SUFFIX}]
    run = replay(config(entries=entries, trace={"max_model_len": limit}, engine={"runner": runner}), warehouse).run
    kinds = set()
    for row in DATA:
        for name in ("ngram 2-4 k3", "suffix d24 k6"):
            for step in steps(warehouse, run, row["request_id"], proposer=name).rows:
                assert step["agrees"] or step["miss_reason"] == "skipped"
                kinds.add(step["miss_reason"])
    assert {"skipped", "no_match"} <= kinds  # suffix is asked by the V1 runner whichever is set


def test_a_log_that_does_not_agree_is_told(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA)])
    run = replay(config(NGRAM), house).run
    (path,) = house.files("decode_steps", [run])
    log = pq.read_table(path, partitioning=None)
    names = {row["request"]: row["request_id"] for row in _requests(house, run)}
    row = next(i for i, s in enumerate(log.to_pylist()) if s["accepted"] and not s["overrun"])
    request, step = (log.column(c)[row].as_py() for c in ("request", "step"))
    for column in ("drafted", "accepted"):
        values = log.column(column).to_pylist()
        values[row] -= 1
        at = log.schema.get_field_index(column)
        pq.write_table(log.set_column(at, log.schema.field(at), pa.array(values, log.schema.field(at).type)), path)
        shown = steps(house, run, names[request], step=step)
        assert shown.rows[0]["agrees"] is False
        assert f"candidates of 1 of 1 steps do not agree with the log (step {step})" in shown.notes[0]


def _requests(house, run):
    (path,) = house.files("requests", [run])
    return pq.read_table(path, partitioning=None, columns=["request", "request_id"]).to_pylist()


def test_what_is_not_there_is_named(warehouse):
    run = replay(config(NGRAM, SUFFIX), warehouse).run
    name = DATA[0]["request_id"]
    for given, said in (
        ({"proposer": None}, r"proposers .*ngram 2-4 k3, suffix d24 k6: choose one with --proposer"),
        ({"proposer": "nope"}, r"no proposer 'nope'; it has .*suffix d24 k6"),
        ({"concurrency": 7}, "no concurrency 7; it has 1"),
        ({"step": 999}, "there is no step 999"),
    ):
        with pytest.raises(InputError, match=said):
            steps(warehouse, run, name, **{"proposer": "ngram 2-4 k3"} | given)
    with pytest.raises(InputError, match="no committed request 'r-none'"):
        steps(warehouse, run, "r-none", proposer="ngram 2-4 k3")
    with pytest.raises(InputError, match="no run 'nothing'"):
        steps(warehouse, "nothing", name)


@pytest.mark.parametrize("method", [*WHY_NOT])
def test_candidates_that_cannot_be_found_again_say_why(method):
    request = Requests.from_lists([[1, 2]], [[3, 4]])
    with pytest.raises(InputError, match="cannot be found again: ") as caught:
        candidates(request, [1], {"method": method})
    assert WHY_NOT[method] in str(caught.value)


def test_drafts_drawn_at_random_cannot_be_found_again():
    given = {"method": "draft_model", "model": "m", "num_speculative_tokens": 2, "draft_sample_method": "probabilistic"}
    with pytest.raises(InputError, match="drawn at random"):
        candidates(Requests.from_lists([[1, 2]], [[3, 4]]), [1], effective(given))


def test_the_command(warehouse):
    run = replay(config(NGRAM), warehouse).run
    row = next(row for row in DATA if row["output_tokens"] == 40)
    arguments = ["steps", run, row["request_id"], "--warehouse", str(warehouse.root)]
    said = CliRunner().invoke(app, [*arguments, "--json"])
    assert said.exit_code == 0, said.output
    document = json.loads(said.stdout)
    assert document["steps"] == steps(warehouse, run, row["request_id"]).rows
    shown = CliRunner().invoke(app, [*arguments, "--step", "1"])
    assert shown.exit_code == 0 and "candidates" in shown.stdout and "agree with the log" in shown.stderr
    ids = " ".join(map(str, document["steps"][0]["candidates"]))
    assert ids in shown.stdout


def test_a_step_that_was_never_verified_puts_nothing_out(tmp_path):
    """Its candidates were scheduled and thrown away: the next step starts where it did."""
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA)])
    run = replay(config(NGRAM), house).run
    (path,) = house.files("decode_steps", [run])
    log = pq.read_table(path, partitioning=None)
    request = log.column("request")[0].as_py()
    first = log.filter((pc.field("request") == request) & (pc.field("step") == 1)).to_pylist()[0]
    extra = pa.Table.from_pylist([first | {"accepted": None, "overrun": 0}], schema=log.schema)
    later = log.set_column(log.schema.get_field_index("step"), "step", pc.add(log.column("step"), 1)).cast(log.schema)
    pq.write_table(pa.concat_tables([extra, later]), path)
    name = next(r["request_id"] for r in _requests(house, run) if r["request"] == request)
    shown = steps(house, run, name).rows
    assert (shown[0]["accepted"], shown[0]["emitted"]) == (None, 0)
    assert shown[1]["position"] == shown[0]["position"] == 1 and all(s["agrees"] for s in shown)
