"""Every log format: the right number of generations, the right prompt for each, against ids written down by hand."""

import json

import pytest
from byte_tokenizer import END, chat, ids, save
from ingested import jsonl, rows_of

from pipeline.ingest.openai_stream import from_events

USER, HI = ("user", "hi"), {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
CALLED = 'assistant\n<call>look {"a": 1}</call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"))


@pytest.fixture
def read(tmp_path, model):
    def run(*rows, name="rows.jsonl", **how):
        file = rows[0] if not isinstance(rows[0], dict) else jsonl(tmp_path / name, list(rows))
        return rows_of(file, house=tmp_path / "house", tokenizer=model, **how)

    return run


def said(text):
    return [*text.encode(), END]


def test_prompt_and_completion_as_text_get_no_template(read):
    rows, report = read({"prompt": "a b", "completion": " c"}, {"prompt": "x", "output": ""}, {"prompt": "y"})
    assert [r["prompt_token_ids"] for r in rows] == [ids("a b"), ids("x"), ids("y")]
    assert [r["output_token_ids"] for r in rows] == [ids(" c"), [], None]
    assert report.counts == {"replayable": 1, "no output tokens (never replayed)": 1, "prompt only": 1}


def test_an_instruction_goes_through_the_template(read):
    (row,), _ = read({"instruction": "add", "input": "1 2", "output": "3", "generator": "m"})
    assert row["prompt_token_ids"] == ids(chat(("user", "add\n\n1 2")))
    assert row["output_token_ids"] == said("3")
    assert (row["model"], row["request_id"]) == ("m", "rows.jsonl:1")


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_the_same_rows_in_other_shapes(tmp_path, read, suffix):
    file = tmp_path / f"rows.{suffix}"
    if suffix == "json":
        file.write_text(json.dumps([{"prompt": "a", "output": "b"}, {"prompt": 'c,\n"d', "output": ""}], indent=1))
    else:
        file.write_bytes(b'prompt,output\r\na,b\r\n"c,\n""d",')
    rows, _ = read(file)
    assert [(r["prompt_token_ids"], r["output_token_ids"]) for r in rows] == [(ids("a"), ids("b")), (ids('c,\n"d'), [])]


def test_a_chat_call_of_a_gateway(read):
    pair = {
        "date": "Tue, 27 Feb 2024 11:37:16 GMT",
        "tenant": "acme",
        "request": {
            "messages": [HI, {"role": "assistant", "content": "yo"}, HI],
            "temperature": 0.5,
            "max_tokens": None,
        },
        "response": {
            "id": "r1",
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3},
        },
    }
    (row,), report = read(pair, name="gateway.log")
    assert row["prompt_token_ids"] == ids(chat(USER, ("assistant", "yo"), USER))
    assert row["output_token_ids"] == said("ok")
    assert (row["request_id"], row["tenant"], row["turn"], row["finish_reason"]) == ("r1", "acme", 1, "stop")
    assert row["arrival"].isoformat() == "2024-02-27T11:37:16+00:00"
    assert json.loads(row["sampling"]) == {"temperature": 0.5}
    assert json.loads(row["extra"])["logged_prompt_tokens"] == 9
    assert any(note.startswith("prompt length as logged differs") for note in report.notes)


def test_a_litellm_payload_and_one_that_failed(read):
    history = [HI, {"role": "assistant", "content": "yo"}, HI]
    row = {
        "id": "l1",
        "status": "success",
        "startTime": 1700000000.25,
        "model": "m",
        "messages": history,
        "model_parameters": {"temperature": 0.1},
        "response": {"id": "r1", "choices": [{"message": {"content": "ok"}}]},
        "metadata": {"session_id": "s", "tenant": "acme"},
    }
    rows, report = read(row, {**row, "id": "l2", "status": "failure", "response": None})
    assert [(r["request_id"], r["session_id"], r["tenant"], r["turn"]) for r in rows] == [("r1", "s", "acme", 1)]
    assert rows[0]["arrival"].timestamp() == 1700000000.25 and json.loads(rows[0]["sampling"]) == {"temperature": 0.1}
    assert len(report.refused) == 1


def test_messages_with_the_answer_beside_them(read):
    row = {"messages": [HI, {"role": "assistant", "content": "yo"}, HI], "response": '{"a": 1}'}
    (kept,), _ = read(row)
    assert kept["prompt_token_ids"] == ids(chat(USER, ("assistant", "yo"), USER))
    assert kept["output_token_ids"] == said('{"a": 1}')


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"title": "Ms Mill"}}},
            {"structured_outputs": "json_schema"},
        ),
        ({"structured_outputs": {"regex": "Mill.*"}}, {"structured_outputs": "regex"}),
        (
            {"guided_json": {"title": "Mill"}, "max_completion_tokens": 5},
            {"structured_outputs": "json", "max_tokens": 5},
        ),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_a_grammar_is_noted_without_its_text(read, asked, kept):
    (row,), _ = read(
        {"request": {"messages": [HI], **asked}, "response": {"choices": [{"message": {"content": "ok"}}]}}
    )
    assert row["sampling"] is None if kept is None else json.loads(row["sampling"]) == kept


def test_an_answer_cut_by_length_has_no_end_token(read):
    choice = {"message": {"role": "assistant", "content": "ok"}, "finish_reason": "length"}
    (row,), _ = read({"request": {"messages": [HI]}, "response": {"choices": [choice]}})
    assert row["output_token_ids"] == ids("ok")


def test_samples_stay_apart(read):
    choices = [{"index": i, "message": {"role": "assistant", "content": c}} for i, c in enumerate("ab")]
    rows, _ = read({"request": {"messages": [HI], "n": 2}, "response": {"id": "r", "choices": choices}})
    assert [(r["request_id"], r["sample"], r["output_token_ids"]) for r in rows] == [
        ("r/0", 0, said("a")),
        ("r/1", 1, said("b")),
    ]


def test_several_prompts_of_one_completion_call(read):
    request = {"prompt": ["p", "q"], "n": 2}
    choices = [{"index": i, "text": t} for i, t in enumerate("abcd")]
    rows, _ = read({"request": request, "response": {"id": "r", "choices": choices}})
    assert [(r["prompt_token_ids"], r["sample"]) for r in rows] == [
        (ids("p"), 0),
        (ids("p"), 1),
        (ids("q"), 0),
        (ids("q"), 1),
    ]


def test_ids_a_server_returned_are_taken_first(read):
    choice = {"index": 0, "message": {"role": "assistant", "content": "zz"}, "token_ids": [7, 8]}
    pair = {"request": {"messages": [HI]}, "response": {"id": "r", "prompt_token_ids": [5, 6], "choices": [choice]}}
    (row,), report = read(pair)
    assert (row["prompt_token_ids"], row["output_token_ids"], row["tokenizer"]) == ([5, 6], [7, 8], None)
    assert report.notes["text and token ids disagree: the ids were used"] == 1


def test_text_that_agrees_with_the_ids_is_no_news(tmp_path, model):
    row = {"prompt_token_ids": [1], "output_token_ids": said("zz"), "output": "zz"}
    _, report = rows_of(jsonl(tmp_path / "r.jsonl", [row]), house=tmp_path / "h", tokenizer=model)
    assert not report.notes


def test_errors_and_what_has_no_message_are_refused(read):
    rows, report = read(
        {"request": {"messages": [HI]}, "response": {"error": {"message": "secret"}}, "status": 200},
        {"request": {"messages": [HI]}, "response": {"error": {"message": "secret"}}, "status": 404},
        {"request": {"messages": [HI]}, "response": {"choices": [{"index": 0, "finish_reason": "content_filter"}]}},
        {"request": {"messages": [HI]}, "response": {"choices": [{"message": {"content": None, "refusal": "no"}}]}},
    )
    assert [r["output_token_ids"] for r in rows] == [said("no")]
    assert sorted(reason for _, reason in report.refused.kinds) == [
        "an error body in place of an answer",
        "an error response",
        "neither message nor text: nothing was generated",
    ]
    assert "secret" not in json.dumps(report.as_dict())


def test_an_image_leaves_the_lengths(read):
    image = {"role": "user", "content": [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {}}]}
    answer = {"choices": [{"message": {"content": "cat"}}], "usage": {"prompt_tokens": 700, "completion_tokens": 4}}
    (row,), report = read({"request": {"messages": [image]}, "response": answer})
    assert (row["prompt_token_ids"], row["prompt_tokens"], row["output_token_ids"]) == (None, 700, said("cat"))
    assert report.counts == {"output without its prompt": 1}


CHUNKS = [
    {"choices": [], "id": "", "model": "", "object": "", "created": 0},
    {"id": "s", "created": 1700000000, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"id": "s", "choices": [{"index": 0, "delta": {"content": "a"}}], "usage": None, "obfuscation": "x"},
    {"id": "s", "choices": [{"delta": {"content": "b"}, "finish_reason": None}]},
    {"id": "s", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 2}},
    {"id": "s", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
]


def test_chunks_one_per_line_are_one_generation(read):
    rows, _ = read(*CHUNKS, name="stream.txt")
    (row,) = rows
    assert (row["request_id"], row["finish_reason"], row["prompt_tokens"]) == ("s", "stop", 3)
    assert row["output_token_ids"] == said("ab") and row["prompt_token_ids"] is None
    assert row["arrival"].timestamp() == 1700000000


def test_interleaved_streams_are_told_apart(read):
    chunks = [
        {"id": i, "choices": [{"index": 0, "delta": {"content": c}}], "usage": {"prompt_tokens": 1}}
        for i, c in ("xa", "yb", "xc", "yd")
    ]
    rows, _ = read(*chunks)
    assert [(r["request_id"], r["output_token_ids"]) for r in rows] == [("x", said("ac")), ("y", said("bd"))]


def test_an_event_stream_beside_its_request(read):
    pieces = [
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look", "arguments": ""}}], "content": None},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    events = [{"id": "s", "choices": [{"index": 0, "delta": d}]} for d in pieces]
    body = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + ": ping\n\ndata: [DONE]\n\n"
    (row,), _ = read({"request_body": json.dumps({"messages": [HI]}), "response_body": body, "status_code": 200})
    assert row["output_token_ids"] == [*b'<call>look {"a": 1}</call>', END]


def test_the_responses_api_says_it_whole_in_its_last_event():
    whole = {"id": "r", "object": "response", "output": []}
    events = [{"type": "response.created", "response": {}}, {"type": "response.completed", "response": whole}]
    assert from_events("".join(f"event: x\ndata: {json.dumps(e)}\n\n" for e in events)) == whole


def test_the_responses_api(read):
    request = {
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "name": "look", "arguments": '{"a": 1}', "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "7"},
        ],
    }
    response = {
        "id": "r",
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "seven"}]}],
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    (row,), _ = read({"request": request, "response": response})
    called = f"<|im_start|>{CALLED}<|im_end|>\n"
    head = chat(("system", "be brief"), USER).removesuffix("<|im_start|>assistant\n")
    assert row["prompt_token_ids"] == ids(head + called + chat(("tool", "7")))
    assert (row["output_token_ids"], row["finish_reason"]) == (ids("seven"), "length")


def test_ids_on_an_output_item_cover_the_reasoning_too(read):
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [],
            "prompt_token_ids": [1],
            "generation_token_ids": [2, 3],
        },
    ]
    (row,), _ = read({"responses_create_params": {"input": "hi"}, "response": {"object": "response", "output": output}})
    assert (row["prompt_token_ids"], row["output_token_ids"]) == ([1], [2, 3])


def test_share_gpt(read):
    turns = [("gpt", "welcome"), ("human", "hi"), ("function_call", '{"name": "look", "arguments": {"a": 1}}')]
    turns += [("observation", "7"), ("gpt", "seven")]
    rows, report = read({"conversations": [{"from": f, "value": v} for f, v in turns], "system": "s", "tools": "[]"})
    assert [r["turn"] for r in rows] == [0, 1, 2]
    start = chat(("system", "s"), ("assistant", "welcome"), USER)
    assert rows[1]["prompt_token_ids"] == ids(start)
    assert rows[2]["prompt_token_ids"] == ids(
        start.removesuffix("<|im_start|>assistant\n") + f"<|im_start|>{CALLED}<|im_end|>\n" + chat(("tool", "7"))
    )
    assert not len(report.refused)


def test_a_greeting_before_any_prompt_is_refused_alone(read):
    turns = [("gpt", "welcome"), ("human", "hi"), ("gpt", "yo")]
    rows, report = read({"conversations": [{"from": f, "value": v} for f, v in turns]})
    assert [r["turn"] for r in rows] == [1]
    assert list(report.refused.kinds) == [("messages[]", "the assistant speaks first: there is no prompt")]


def test_trajectories_of_one_task_are_told_apart_by_trial(read):
    traj = [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "7"}]
    rows, _ = read({"task_id": 3, "trial": 0, "traj": traj}, {"task_id": 3, "trial": 1, "traj": traj})
    assert [r["session_id"] for r in rows] == ["rows.jsonl:3-0", "rows.jsonl:3-1"]
    assert rows[0]["output_token_ids"] == rows[1]["output_token_ids"] == [*b'<call>look {"a": 1}</call>', END]


def test_a_trajectory_told_twice_in_one_file_counts_once(read):
    history = [HI, {"role": "assistant", "content": "go", "thought": "t", "tool_calls": [CALL]}]
    row = {"environment": "e", "trajectory": [{"response": "go"}], "history": history, "info": {}}
    rows, _ = read(row, name="x.traj")
    assert len(rows) == 1


def test_langfuse_order_repeats_and_nesting(read):
    later = {
        "id": "b",
        "type": "GENERATION",
        "startTime": "2025-01-01T00:00:02Z",
        "usageDetails": '{"output": 9}',
        "input": json.dumps(
            json.dumps([HI, {"role": "assistant", "tool_calls": [CALL]}, {"role": "look", "content": "7"}])
        ),
        "output": json.dumps({"role": "assistant", "content": "seven"}),
    }
    first = {
        "id": "a",
        "type": "GENERATION",
        "startTime": "2025-01-01T00:00:01Z",
        "input": json.dumps([HI]),
        "output": json.dumps({"role": "assistant", "content": "", "tool_calls": [CALL]}),
    }
    span = {"id": "s", "type": "SPAN", "input": "hi", "output": "seven"}
    trace = {"id": "T", "sessionId": None, "observations": [later, span, first]}
    rows, _ = read({"trace": trace, "observations": [later, first, span]})
    assert [(r["request_id"], r["turn"], r["output_token_ids"][-2]) for r in rows] == [
        ("a", 0, ord(">")),
        ("b", 1, ord("n")),
    ]
    tail = ids(chat(("tool", "7")))
    assert rows[1]["prompt_token_ids"][-len(tail) :] == tail
    assert json.loads(rows[1]["extra"])["logged_output_tokens"] == 9


def _otlp(attributes):
    return {"resourceSpans": [{"scopeSpans": [{"spans": [
        {"spanId": "1", "traceId": "T", "startTimeUnixNano": "1700000000000000001",
         "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in attributes.items()]},
        {"spanId": "2", "traceId": "T", "attributes": [{"key": "http.method", "value": {"stringValue": "GET"}}]},
    ]}]}]}  # fmt: skip


PARTS = {
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]),
    "gen_ai.output.messages": json.dumps(
        [
            {
                "role": "assistant",
                "parts": [{"type": "tool_call", "name": "look", "arguments": {"a": 1}}],
                "finish_reason": "tool_calls",
            }
        ]
    ),
}
FLAT = {
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "hi",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.finish_reason": "tool_calls",
    "gen_ai.completion.0.tool_calls.0.name": "look",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"a": 1}',
}


@pytest.mark.parametrize("attributes", [PARTS, FLAT], ids=["parts", "flattened"])
def test_spans(read, attributes):
    (row,), _ = read(_otlp(attributes))
    assert row["prompt_token_ids"] == ids(chat(USER))
    assert row["output_token_ids"] == [*b'<call>look {"a": 1}</call>', END]
    assert (row["request_id"], row["session_id"], row["finish_reason"]) == ("1", "T", "tool_calls")
    assert row["arrival"].timestamp() == 1700000000


def test_questions_are_joined_with_their_answers(tmp_path, model):
    questions = jsonl(
        tmp_path / "q.jsonl", [{"question_id": i, "category": "c", "turns": ["one", "two"]} for i in (1, 2)]
    )
    choice = {
        "index": 0,
        "turns": ["A", "B"],
        "decoding_steps": [2, 1],
        "new_tokens": [4, 1],
        "accept_lengths": [1, 3, 1],
    }
    answer = {"question_id": 1, "answer_id": "x", "model_id": "m", "choices": [choice], "tstamp": 1700000000.5}
    answers = jsonl(tmp_path / "a.jsonl", [answer])
    rows, report = rows_of(answers, questions, house=tmp_path / "h", tokenizer=model)
    assert [r["request_id"] for r in rows] == ["x/0", "x/1"]
    assert rows[1]["prompt_token_ids"] == ids(chat(("user", "one"), ("assistant", "A"), ("user", "two")))
    extra = [json.loads(r["extra"]) for r in rows]
    assert [(e["accepted"], e["decoding_steps"], e["new_tokens"]) for e in extra] == [(2, 2, 4), (0, 1, 1)]
    assert report.notes["questions without an answer: left out"] == 1
    assert report.files == 2
    alone, report = rows_of(questions, house=tmp_path / "h", name="q", tokenizer=model)
    assert [(r["turn"], r["output_token_ids"]) for r in alone] == [(0, None), (0, None)]


def test_two_models_are_not_mixed_unasked(tmp_path, model):
    from schemas.errors import InputError

    questions = jsonl(tmp_path / "q.jsonl", [{"question_id": 1, "turns": ["one"]}])
    answers = [{"question_id": 1, "model_id": m, "choices": [{"index": 0, "turns": ["A"]}]} for m in "ab"]
    both = jsonl(tmp_path / "a.jsonl", answers)
    with pytest.raises(InputError, match="two models answer the same questions"):
        rows_of(questions, both, house=tmp_path / "h", tokenizer=model)
    rows, _ = rows_of(questions, both, house=tmp_path / "h", tokenizer=model, fields=["tenant=model_id"])
    assert [r["tenant"] for r in rows] == ["a", "b"]


def test_a_cassette(tmp_path, read):
    import yaml

    events = "".join(
        f"data: {json.dumps({'id': 's', 'choices': [{'index': 0, 'delta': {'content': c}}]})}\n\n" for c in "ok"
    )
    call = {
        "request": {"body": json.dumps({"messages": [HI]})},
        "response": {"body": {"string": events}, "status": {"code": 200}},
    }
    other = {"request": {"body": ""}, "response": {"body": {"string": "<html>"}, "status": {"code": 200}}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"interactions": [call, other], "version": 1}))
    (row,), report = read(tmp_path / "c.yaml")
    assert (row["prompt_token_ids"], row["output_token_ids"]) == (ids(chat(USER)), said("ok"))
    assert len(report.refused) == 1


def test_vllm_benchmark_output(read):
    result = {"model_id": "m", "input_lens": [5, 6], "output_lens": [2, 0], "generated_texts": ["ab", ""],
              "errors": ["", "boom"], "start_times": [10.5, 10.0]}  # fmt: skip
    (row,), report = read(result, name="bench.json")
    assert (row["prompt_tokens"], row["output_token_ids"], row["arrival_offset_us"]) == (5, ids("ab"), 500_000)
    assert len(report.refused) == 1


def test_tap_traces_are_kept_without_prompts(tmp_path):
    record = {"prompt_tokens": 9, "output_tokens": 2, "ttft_ms": 3.5, "arrival_ms": 1.5, "finish_reason": "stop"}
    file = jsonl(tmp_path / "tap.jsonl", [{"meta": {"model": "m"}}, record, {**record, "output_token_ids": [5, 6]},
                                          {**record, "output_token_ids": [5]}])  # fmt: skip
    rows, report = rows_of(file, house=tmp_path / "h")
    assert [(r["prompt_token_ids"], r["output_token_ids"], r["output_tokens"]) for r in rows] == [
        (None, None, 2),
        (None, [5, 6], 2),
    ]
    assert rows[0]["arrival_offset_us"] == 1500
    assert len(report.refused) == 1


def test_traces_of_lengths(tmp_path):
    mooncake = jsonl(tmp_path / "m.jsonl", [
        {"timestamp": 200, "input_length": 20, "output_length": 8, "hash_ids": [0, 1]},
        {"timestamp": 300, "input_length": 513, "output_length": 8, "hash_ids": [0, 1]}])  # fmt: skip
    rows, report = rows_of(mooncake, house=tmp_path / "h", name="m")
    assert [r["arrival_offset_us"] for r in rows] == [200_000, 300_000]
    assert report.notes["number of hash ids does not fit the length (one per 512 tokens)"] == 1
    azure = tmp_path / "a.csv"
    azure.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799609,4808,10\r\n"
                      b"2023-11-16 18:17:04.0319600,3180,8")  # fmt: skip
    rows, _ = rows_of(azure, house=tmp_path / "h", name="a")
    assert [(r["prompt_tokens"], r["output_tokens"], r["arrival"], r["arrival_offset_us"]) for r in rows] == [
        (4808, 10, None, 0),
        (3180, 8, None, 52_000),
    ]
    burst = tmp_path / "b.csv"
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5.5,ChatGPT,472,18,490,API log\n"
    )
    (row,), _ = rows_of(burst, house=tmp_path / "h", name="b")
    assert (row["arrival_offset_us"], row["model"], row["workload"]) == (5_500_000, "ChatGPT", "API log")
    assert all(r["prompt_token_ids"] is None and r["output_token_ids"] is None for r in rows)


def test_the_row_that_the_docs_recommend(tmp_path):
    import re
    from pathlib import Path

    from pipeline import ingest

    docs = (Path(ingest.__file__).parent / "RECORDING.md").read_text("utf-8")
    (example,) = re.findall(r"leaves nothing open.*?```json\n(.*?)```", docs, re.DOTALL)
    row = json.loads(example)
    (kept,), report = rows_of(jsonl(tmp_path / "r.jsonl", [row]), house=tmp_path / "h")
    taken = {k: kept[k] for k in row if k not in ("arrival", "sampling")}
    assert taken == {k: v for k, v in row.items() if k in taken} and len(taken) == 9
    assert json.loads(kept["sampling"]) == row["sampling"] and kept["arrival"].isoformat().startswith(
        "2026-11-23T10:21"
    )
    assert report.counts == {"replayable": 1} and not report.notes and not len(report.refused)
