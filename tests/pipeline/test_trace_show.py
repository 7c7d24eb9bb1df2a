"""`specreplay trace`: repetition against a plain count, lengths by hand, samples of whole sessions."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingested import jsonl, rows_of
from typer.testing import CliRunner

from pipeline import trace_show
from pipeline.cli import app
from pipeline.seen import KeySet, Seen
from pipeline.warehouse import Warehouse
from schemas.errors import InputError


def count_by_hand(requests: list[tuple[list[int], list[int]]]) -> tuple[int, int, int, int]:
    """(measured, from own, from earlier, from either) with lists and slices only."""
    measured = own = earlier = either = 0
    history: list[list[int]] = []
    for prompt, output in requests:
        whole = prompt + output
        for end in range(max(len(prompt), 3), len(whole)):
            four = whole[end - 3 : end + 1]
            in_own = any(whole[i : i + 4] == four for i in range(end - 3))
            in_earlier = any(four == past[i : i + 4] for past in history for i in range(len(past)))
            measured += 1
            own += in_own
            earlier += in_earlier
            either += in_own or in_earlier
        history.append(whole)
    return measured, own, earlier, either


small = st.lists(st.integers(0, 2), max_size=14)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(small, small), max_size=5))
def test_repetition_against_a_plain_count(requests):
    group, history = trace_show.Workload(), KeySet()
    for prompt, output in requests:
        trace_show._measure(group, history, np.array(prompt, np.int32), np.array(output, np.int32))
    assert (group.measured, group.from_prompt, group.from_earlier, group.from_either) == count_by_hand(requests)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=20), max_size=20))
def test_sets_of_keys_against_python_s(batches):
    keys, seen, plain = KeySet(), Seen(), {}
    for i, batch in enumerate(batches):
        array = np.array(batch, np.uint64)
        assert keys.contains(array).tolist() == [k in plain for k in batch]
        keys.update(array)
        for k in batch:
            assert seen.setdefault(k, i) == plain.get(k)
            plain.setdefault(k, i)


def test_many_keys_are_kept_in_arrays(monkeypatch):
    monkeypatch.setattr("pipeline.seen._MERGE", 10)
    seen = Seen()
    for i in range(100):
        assert seen.setdefault(i * 2**57 + 1, i) is None
    assert [seen.setdefault(i * 2**57 + 1) for i in range(100)] == list(range(100))
    assert len(seen) == 100


@pytest.fixture
def house(tmp_path):
    rows = [
        {"prompt_token_ids": [1, 2, 3, 4], "output_token_ids": [1, 2, 3, 4], "workload": "a", "session_id": "s"},
        {"prompt_token_ids": [9], "output_token_ids": [1, 2, 3, 4], "workload": "a", "session_id": "s"},
        {"prompt_token_ids": [7] * 9, "output_token_ids": [], "workload": "b"},
        {"timestamp": 5, "input_length": 30, "output_length": 2},
    ]
    rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h")
    return tmp_path / "h"


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args], catch_exceptions=False)


def test_show(house):
    shown = trace_show.show(Warehouse(house), "t")
    by_name = {w["workload"]: w for w in shown["workloads"]}
    assert list(by_name) == ["a", "(none)", "b"]
    assert by_name["a"]["prompt"] == {"min": 1, "median": 1, "p95": 4, "max": 4, "sum": 5}
    # of the first: 4 windows end in the output, the last is the prompt again; of the second: 2, the last was there
    assert [by_name["a"][k] for k in ("from_prompt", "from_earlier", "from_either")] == [1 / 6, 1 / 6, 2 / 6]
    assert by_name["b"]["no_output"] == 1 and by_name["b"]["from_prompt"] is None
    assert by_name["(none)"]["prompt"]["sum"] == 30 and by_name["(none)"]["sessions"] == 0
    text = run("trace", "show", "t", "--warehouse", house).output
    assert "17%" in text and "n/a" in text and "4 requests" in text
    assert shown["proxy"] == [] and "proxy" not in text
    assert json.loads(run("trace", "show", "t", "--json", "--warehouse", house).output) == shown


def test_list(house, tmp_path):
    assert json.loads(run("trace", "list", "--json", "--warehouse", house).output)[0]["requests"] == 4
    assert "prompt_tokens" in run("trace", "list", "--warehouse", house).output
    with pytest.raises(InputError, match="no trace 'x'"):
        run("trace", "show", "x", "--warehouse", house)


def test_a_sample_is_whole_sessions_and_the_same_again(tmp_path):
    rows = [{"prompt_token_ids": [i], "session_id": f"s{i % 30}", "arrival": 1.7e9 + i} for i in range(90)]
    source, _ = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h")
    house = Warehouse(tmp_path / "h")
    drawn = trace_show.sample(house, "t", 7, seed=3)
    assert drawn.num_rows == 21 and len(set(drawn["session_id"].to_pylist())) == 7
    assert drawn["source_row"].to_pylist() == sorted(drawn["source_row"].to_pylist())
    assert trace_show.sample(house, "t", 7, seed=3).equals(drawn)
    assert set(trace_show.sample(house, "t", 7, 4)["session_id"].to_pylist()) != set(drawn["session_id"].to_pylist())
    assert trace_show.sample(house, "t", 99, 0).num_rows == 90
    assert source[0]["session_id"] == "s0"
    with pytest.raises(InputError, match="--sessions 0"):
        trace_show.sample(house, "t", 0, 0)


def test_a_sample_can_be_read_back(tmp_path):
    rows = [{"prompt_token_ids": [i, 2], "output_token_ids": [3], "arrival": 1.7e9, "sampling": {"seed": i}, "score": i,
             "extra": {"token_ids": "tokenised"}, "tokenizer": "abc"} for i in range(3)]  # fmt: skip
    first, _ = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h")
    printed = run("trace", "sample", "t", "--warehouse", tmp_path / "h").output
    (tmp_path / "again.jsonl").write_text(printed)
    again, _ = rows_of(tmp_path / "again.jsonl", house=tmp_path / "h", name="again")
    where = ("source_file", "source_row")
    assert [{k: v for k, v in r.items() if k not in where} for r in again] == [
        {k: v for k, v in r.items() if k not in where} for r in first
    ]
    assert first[0]["tokenizer"] == "abc" and json.loads(first[0]["extra"]) == {"score": 0, "token_ids": "tokenised"}
    shown = run("trace", "show", "t", "--warehouse", tmp_path / "h").output
    assert "proxy: the ids of 3 requests were made from text again" in shown
    run("trace", "sample", "t", "--sessions", 2, "--into", "two", "--warehouse", tmp_path / "h")
    assert Warehouse(tmp_path / "h").trace("two").requests == 2
