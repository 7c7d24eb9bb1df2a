"""Rows to generations: right readings, and a clear refusal for what is no token id, no time, no message."""

from datetime import UTC, datetime

import pytest

from pipeline.ingest import FORMATS, conversations, token_ids
from pipeline.ingest.generation import RowRefused
from pipeline.ingest.times import moment


def one(record):
    (generation,) = token_ids.generations(record, "file:1")
    return generation


def test_token_ids_are_used_as_given():
    g = one(
        {"prompt_token_ids": [1, 2], "output_token_ids": [151668], "request_id": 9007199254740993, "score": 2, "t": "x"}
    )
    assert (g.prompt_token_ids.tolist(), g.output_token_ids.tolist()) == ([1, 2], [151668])
    assert g.request_id == "9007199254740993"
    assert g.extra == {"token_ids": "given", "score": 2}, "text may be content and is not carried along"


def test_whole_floats_are_ids():
    assert one({"prompt_token_ids": [1.0, 2.0]}).prompt_token_ids.tolist() == [1, 2]


def test_prompt_only_and_empty_output_differ():
    assert one({"prompt_token_ids": [1]}).output_token_ids is None
    assert one({"prompt_token_ids": [1], "output_token_ids": []}).output_token_ids.tolist() == []


@pytest.mark.parametrize("bad", [5279552648203111001, 2147483648, 1.5, "7", None, -1, True, [1]])
def test_what_is_no_token_id_names_position_and_value(bad):
    with pytest.raises(RowRefused, match=r"position 1") as refused:
        one({"prompt_token_ids": [1, 2], "output_token_ids": [5, bad]})
    assert refused.value.column == "output_token_ids"
    said = {"None": "null", "[1]": "a list"}.get(repr(bad), repr(bad))
    assert refused.value.detail == f"position 1: {said}"


@pytest.mark.parametrize("record", [{"prompt_token_ids": None}, {"prompt_token_ids": []}, {"prompt_token_ids": "1 2"}])
def test_a_prompt_is_a_list_of_ids(record):
    with pytest.raises(RowRefused, match="prompt_token_ids"):
        one(record)


def test_times_need_a_zone():
    assert moment({"t": "2026-11-23T10:00:00+01:00"}, "t") == datetime(2026, 11, 23, 9, tzinfo=UTC)
    assert moment({"t": "2026-11-23T10:00:00"}, "t") == datetime(2026, 11, 23, 10)
    assert moment({"t": 0}, "t") is None
    for bad in ("yesterday", [], 1e30, 12, True, float("nan")):
        with pytest.raises(RowRefused):
            moment({"t": bad}, "t")


def test_every_assistant_message_is_one_generation():
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    record = {
        "session_id": "s",
        "tenant": "t",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call], "timestamp": "2026-11-23T10:00:00Z"},
            {"role": "tool", "tool_call_id": "c1", "content": "text"},
            {"role": "assistant", "content": "done"},
        ],
    }
    first, second = conversations.generations(record, "f:1")
    assert (first.request_id, second.request_id) == ("s/0", "s/1")
    assert (first.turn, second.turn) == (0, 1)
    assert (first.finish_reason, second.finish_reason) == (None, None)
    assert [m["role"] for m in second.messages] == ["user", "assistant", "tool"]
    assert first.answer["tool_calls"][0]["function"]["arguments"] == {"path": "a"}
    assert first.arrival == datetime(2026, 11, 23, 10, tzinfo=UTC)
    assert second.arrival is None


@pytest.mark.parametrize("content", [None, "", "absent", []])
@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_spellings_of_one_call_are_one_form(content, arguments):
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    if content != "absent":
        message["content"] = content
    (g,) = conversations.generations({"messages": [{"role": "user", "content": "x"}, message]}, "f:1")
    assert g.answer == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}],
        ["x"],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    ],
)
def test_what_is_no_conversation_is_refused(messages):
    with pytest.raises(RowRefused):
        list(conversations.generations({"messages": messages}, "f:1"))


def test_formats_are_told_by_content():
    assert [n for n, m in FORMATS.items() if m.matches({"prompt_token_ids": [1]})] == ["token-ids"]
    assert [n for n, m in FORMATS.items() if m.matches({"messages": []})] == ["conversations"]
    assert [n for n, m in FORMATS.items() if m.matches({"prompt": "x"})] == ["text"]
    assert not any(m.matches({"event": "x", "properties": {}, "time": 1}) for m in FORMATS.values())
