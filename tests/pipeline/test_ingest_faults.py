"""What logs get wrong: one bad row costs one row, a file that is no trace is refused whole, nothing is guessed."""

import gzip
import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from byte_tokenizer import chat, ids, save
from ingested import jsonl, rows_of

from pipeline.ingest.run import ingest
from pipeline.warehouse import Warehouse
from schemas.errors import InputError, UnitsFailedError

GOOD = {"prompt_token_ids": [1, 2], "output_token_ids": [3]}


def good(i):
    return {**GOOD, "request_id": f"r{i}"}


def refused(report):
    return [(r["row"], r["column"], r["reason"]) for r in report.refused.first]


@pytest.mark.parametrize("bad", [5279552648203111001, 12345678901234567890123, 2147483648, 1.5, "7", None, -1])
def test_one_bad_id_costs_its_row(tmp_path, bad):
    rows = [good(0), {"prompt_token_ids": [1], "output_token_ids": [5, bad]}, good(2)]
    kept, report = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h")
    assert [r["request_id"] for r in kept] == ["r0", "r2"]
    said = "null" if bad is None else repr(bad)
    reason = f"holds what is no token id (a whole number from 0 to 2**31-1) (position 1: {said})"
    assert refused(report) == [(2, "output_token_ids", reason)]


def test_the_rejects_are_a_file_of_the_warehouse(tmp_path):
    file = jsonl(tmp_path / "r.jsonl", [good(0), {"prompt_token_ids": ["Dear Ms Mill"]}, b'{"half": ', good(3)])
    _, report = rows_of(file, house=tmp_path / "h")
    rejects = pq.read_table(tmp_path / "h" / report.rejects_file).to_pylist()
    assert [(r["file"], r["row"], r["column"]) for r in rejects] == [
        ("r.jsonl", 2, "prompt_token_ids"),
        ("r.jsonl", 3, "(row)"),
    ]
    assert "Mill" not in json.dumps([*rejects, report.as_dict()])
    document = json.loads((tmp_path / "h" / "_commits" / "trace=t" / "rejects.json").read_text())
    assert document["files"][0]["rows"] == 2
    _, again = rows_of(file, house=tmp_path / "h")
    assert again.rejects_file == report.rejects_file
    assert len(list((tmp_path / "h" / "rejects" / "trace=t").iterdir())) == 1


def test_strict_stops_at_the_first_and_writes_nothing(tmp_path):
    file = jsonl(tmp_path / "r.jsonl", [good(0), {"prompt_token_ids": [-1]}, {"prompt_token_ids": [-2]}])
    with pytest.raises(InputError, match=r"row 2: prompt_token_ids: .*position 0: -1"):
        rows_of(file, house=tmp_path / "h", strict=True)
    assert not (tmp_path / "h" / "_commits").exists()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\x00" * 40, "holds NUL bytes"),
        (b'{"prompt_token_ids": [1]}' + b"\x00" * 9, "holds NUL bytes"),
        (b'{"prompt_token_ids": [1], "a": "\\ud83d"}', "half a surrogate pair"),
        (b'{"prompt_token_ids": [1], "a": "\xff"}', "not valid UTF-8"),
        (b'{"prompt_token_ids": [1', "not valid JSON"),
        (b"[1, 2]", "not an object"),
        (b'{"event": "start"}', "of no known format"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_lines_that_are_no_rows(tmp_path, line, reason):
    kept, report = rows_of(jsonl(tmp_path / "r.jsonl", [good(0), line]), house=tmp_path / "h")
    assert len(kept) == 1
    ((row, _, said),) = refused(report)
    assert row == 2 and said.startswith(reason)


def test_lines_that_are_rows(tmp_path):
    rows = [
        json.dumps({**good(0), "tenant": "a\u2028b\u0085c"}, ensure_ascii=False).encode(),
        b'{"request_id": "r1", "prompt_token_ids": [1.0], "output_token_ids": [2], "logprob": NaN}\r',
        b"",
        json.dumps({**good(2), "tenant": "\U0001f600"}).encode(),
    ]
    kept, report = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h")
    assert [(r["tenant"], r["source_row"]) for r in kept] == [("a\u2028b\u0085c", 1), (None, 2), ("\U0001f600", 4)]
    assert not len(report.refused)


def test_a_key_that_appears_late_is_kept(tmp_path):
    rows = [{"prompt_token_ids": [1], "request_id": str(i)} for i in range(150)]
    for row in rows[100:]:
        row["output_token_ids"] = [7]
    kept, _ = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h")
    assert [r["output_token_ids"] for r in kept] == [None] * 100 + [[7]] * 50


def test_types_that_drift_between_files(tmp_path):
    floats, unsigned = pa.array([[1]], pa.list_(pa.float64())), pa.array([[2]], pa.large_list(pa.uint32()))
    first = {"request_id": pa.array(["a"]), "prompt_token_ids": floats, "tenant": pa.nulls(1)}
    second = {"request_id": [7], "prompt_token_ids": unsigned, "tenant": pa.array(["x"]).dictionary_encode()}
    pq.write_table(pa.table(first), tmp_path / "1.parquet")
    pq.write_table(pa.table(second), tmp_path / "2.parquet")
    nulls = pa.array([[1, None], None, []], pa.list_(pa.int64()))
    pq.write_table(pa.table({"prompt_token_ids": nulls}), tmp_path / "3.parquet")
    kept, report = rows_of(*(tmp_path / f"{i}.parquet" for i in (1, 2, 3)), house=tmp_path / "h")
    assert [(r["request_id"], r["prompt_token_ids"], r["tenant"]) for r in kept] == [("a", [1], None), ("7", [2], "x")]
    assert [(row, reason.partition(";")[0].partition(" (")[0]) for row, _, reason in refused(report)] == [
        (1, "holds what is no token id"),
        (2, "missing"),
        (3, "empty"),
    ]


def test_messages_as_structs_json_text_and_string_views_are_one_trace(tmp_path):
    model = save(tmp_path / "model")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "hi", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    spelled = json.dumps([{k: v for k, v in m.items() if v is not None} for m in messages])
    tables = {
        "a": pa.table({"id": ["s"], "messages": pa.array([messages])}),
        "b": pa.table(
            {
                "id": pa.array(["s"]).dictionary_encode(),
                "messages": pa.array([spelled], pa.large_string()),
                "user": pa.nulls(1),
            }
        ),
        "c": pa.table({"id": ["s"], "messages": pa.array([spelled], pa.string_view())}),
    }
    traces = []
    for name, table in tables.items():
        pq.write_table(table, tmp_path / "same.parquet")
        traces.append(rows_of(tmp_path / "same.parquet", house=tmp_path / "h", name=name, tokenizer=model)[1].trace)
    assert len({t and t.fingerprint for t in traces}) == 1


def test_the_same_name_twice(tmp_path):
    rows = [good(0), good(0), {**good(0), "output_token_ids": [9]}, GOOD, GOOD]
    kept, report = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h")
    assert [r["request_id"] for r in kept] == ["r0", "r.jsonl:4", "r.jsonl:5"], "two equal requests are two"
    assert report.notes == {"told again: counted once": 1}
    assert refused(report) == [(3, "request_id", "another request of this trace has the same")]


def test_a_session_that_grows_row_by_row_counts_each_turn_once(tmp_path):
    turns = [
        {"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    ]
    rows = [{"session_id": "s", "messages": turns[:2]}, {"session_id": "s", "messages": turns}]
    file = jsonl(tmp_path / "r.jsonl", rows)
    kept, report = rows_of(file, house=tmp_path / "h", tokenizer=save(tmp_path / "model"))
    assert [r["turn"] for r in kept] == [0, 1]
    assert report.notes == {"told again: counted once": 1}


def test_big_numbers_keep_their_digits(tmp_path):
    row = {**GOOD, "request_id": 9007199254740993, "session_id": 9007199254740995}
    ((kept,), _) = rows_of(jsonl(tmp_path / "r.jsonl", [row]), house=tmp_path / "h")
    assert (kept["request_id"], kept["session_id"]) == ("9007199254740993", "9007199254740995")


@pytest.mark.parametrize(
    ("value", "instant"),
    [
        (1700000000, "2023-11-14T22:13:20+00:00"),
        (1700000000123, "2023-11-14T22:13:20.123000+00:00"),
        (1700000000123456, "2023-11-14T22:13:20.123456+00:00"),
        (1700000000123456789, "2023-11-14T22:13:20.123456+00:00"),
        ("1700000000.5", "2023-11-14T22:13:20.500000+00:00"),
        ("2023-11-14T23:13:20.1234567+01:00", "2023-11-14T22:13:20.123456+00:00"),
        ("Tue, 14 Nov 2023 22:13:20 GMT", "2023-11-14T22:13:20+00:00"),
    ],
)
def test_times_in_any_unit(tmp_path, value, instant):
    ((kept,), _) = rows_of(jsonl(tmp_path / "r.jsonl", [{**GOOD, "arrival": value}]), house=tmp_path / "h")
    assert kept["arrival"].isoformat() == instant


def test_times_without_a_zone_are_relative_until_told(tmp_path):
    times = ["2026-07-01 10:00:00", "2026-07-01 09:59:59.5", "2026-10-25 02:30:00", "2026-03-29 02:30:00"]
    file = jsonl(tmp_path / "r.jsonl", [{**good(i), "arrival": t} for i, t in enumerate(times)])
    kept, _ = rows_of(file, house=tmp_path / "h")
    assert [(r["arrival"], r["arrival_offset_us"]) for r in kept[:2]] == [(None, 0), (None, -500_000)]
    kept, report = rows_of(file, house=tmp_path / "h", name="berlin", timezone="Europe/Berlin")
    assert kept[0]["arrival"] == datetime(2026, 7, 1, 8, tzinfo=UTC)
    assert [r["arrival"] for r in kept[2:]] == [None, None]
    assert sorted(report.notes) == [
        "local time that comes twice (change of clocks): left out",
        "local time that never was (change of clocks): left out",
    ]
    with pytest.raises(InputError, match="no such zone"):
        rows_of(file, house=tmp_path / "h", name="x", timezone="Berlin/Europe")


NOT_TRACES = {
    "pointer.parquet": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
    "annex.jsonl": (b"/annex/objects/MD5E-s1--x\n", "git-annex pointer"),
    "empty.jsonl": (b"", "empty file"),
    "cut.jsonl.gz": (gzip.compress(json.dumps(GOOD).encode() * 999)[:-9], "cut or damaged"),
    "cut.json": (b'[{"prompt_token_ids": [1]}, {"prompt_tok', "cut"),
    "open.json": (b'[{"prompt_token_ids": [1]}', "no end"),
    "more.json": (b'[{"prompt_token_ids": [1]}] {"a": 1}', "something follows"),
    "cut.parquet": (b"PAR1\x00\x01\x02", "not a readable Parquet file"),
    "twice.csv": (b"prompt,prompt\na,b\n", "two columns are called 'prompt'"),
    "quote.csv": (b'prompt,output\na,"b', "not valid CSV"),
    "events.jsonl": (b'{"event": "x", "time": 1}\n' * 3, "not a trace"),
    "page.html": (b"<html>, no log", "not a log"),
    "wide.txt": ("prompt".encode("utf-16"), "not UTF-8"),
    "packed.zip": (b"PK\x03\x04....", "unpack it"),
    "prose.txt": (b"Dear all\nnothing here\n", "not a log"),
}


@pytest.mark.parametrize("name", NOT_TRACES)
def test_what_is_no_trace_is_refused_whole(tmp_path, name):
    content, reason = NOT_TRACES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        rows_of(tmp_path / name, house=tmp_path / "h")
    assert reason in str(error.value) and name in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "h" / "_commits").exists() and not (tmp_path / "h" / "rejects").exists()


def test_prose_that_looks_like_csv_is_not_quoted(tmp_path):
    (tmp_path / "letter.csv").write_text("Dear Ms Mill of Leeds, your card 4711\nis, lost\n")
    with pytest.raises(InputError, match="not a trace") as error:
        rows_of(tmp_path / "letter.csv", house=tmp_path / "h")
    assert "Mill" not in str(error.value)


def test_csv_rows_that_are_none(tmp_path):
    (tmp_path / "r.csv").write_bytes(
        b"\xef\xbb\xbfContextTokens;GeneratedTokens;TIMESTAMP\r\n1;2;\n3;4\n5;\xff;\n6;\x00;\n7;x;\n\n8;9;\n"
    )
    kept, report = rows_of(tmp_path / "r.csv", house=tmp_path / "h")
    assert [(r["prompt_tokens"], r["output_tokens"]) for r in kept] == [(1, 2), (8, 9)]
    assert [(row, reason.partition(" (")[0]) for row, _, reason in refused(report)] == [
        (2, "other than the header in its number of cells"),
        (3, "not valid UTF-8"),
        (4, "holds NUL bytes"),
        (5, "not a whole number from 0 to 2**31-1"),
    ]


def test_a_page_that_was_changed_on_disk_is_noticed(tmp_path):
    file = tmp_path / "r.parquet"
    ids_ = pa.array([[7] * 5000] * 9, pa.list_(pa.int32()))
    pq.write_table(
        pa.table({"prompt_token_ids": ids_}), file, write_page_checksum=True, compression=None, use_dictionary=False
    )
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        rows_of(file, house=tmp_path / "h")


def test_no_rows_are_valid_and_write_nothing(tmp_path):
    schema = pa.schema([("prompt_token_ids", pa.list_(pa.int32()))])
    pq.write_table(schema.empty_table(), tmp_path / "none.parquet")
    (tmp_path / "none.json").write_text("[]\n")
    rows, report = rows_of(tmp_path / "none.parquet", tmp_path / "none.json", house=tmp_path / "h")
    assert (rows, report.trace, report.rows) == ([], None, 0)
    assert not (tmp_path / "h").exists()


def test_a_bad_file_in_a_folder_is_passed_over_and_said(tmp_path):
    jsonl(tmp_path / "logs" / "good.jsonl", [good(0)])
    (tmp_path / "logs" / "pointer.parquet").write_bytes(NOT_TRACES["pointer.parquet"][0])
    (tmp_path / "logs" / "README.md").write_text("not a log")
    rows, report = rows_of(tmp_path / "logs", house=tmp_path / "h")
    assert len(rows) == 1 and report.passed_over == 1
    with pytest.raises(UnitsFailedError, match="Git LFS pointer"):
        report.raise_for_status()
    (reject,) = pq.read_table(tmp_path / "h" / report.rejects_file).to_pylist()
    assert (reject["file"], reject["row"]) == ("pointer.parquet", None)


def test_partitions_are_text_as_written(tmp_path):
    for code in ("007", "2A1", "__HIVE_DEFAULT_PARTITION__"):
        jsonl(tmp_path / "logs" / f"tenant={code}" / "workload=1e3" / "part.jsonl", [GOOD])
    rows, _ = rows_of(tmp_path / "logs", house=tmp_path / "h")
    assert [(r["tenant"], r["workload"]) for r in rows] == [("007", "1e3"), ("2A1", "1e3"), (None, "1e3")]
    assert rows[0]["source_file"] == "tenant=007/workload=1e3/part.jsonl"


def test_names_are_literal_before_they_are_patterns(tmp_path):
    odd = jsonl(tmp_path / "run [v1] 100% #a?|*.jsonl", [good("odd")])
    jsonl(tmp_path / "run v 100.jsonl", [good("other")])
    rows, _ = rows_of(odd, house=tmp_path / "h")
    assert [r["request_id"] for r in rows] == ["rodd"]
    rows, _ = rows_of(tmp_path / "run *.jsonl", house=tmp_path / "h", name="both")
    assert sorted(r["request_id"] for r in rows) == ["rodd", "rother"]
    with pytest.raises(InputError, match="no such file or folder"):
        rows_of(tmp_path / "none*.jsonl", house=tmp_path / "h", name="none")


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_compressed_files_are_told_by_content(tmp_path, codec, members):
    data = [json.dumps(good(i)).encode() + b"\n" for i in range(members)]
    squeeze = gzip.compress if codec == "gz" else lambda b: pa.Codec("zstd").compress(b, asbytes=True)
    (tmp_path / "log").write_bytes(b"".join(map(squeeze, data)))
    rows, _ = rows_of(tmp_path / "log", house=tmp_path / "h")
    assert len(rows) == members


def test_a_long_array_is_read_piece_by_piece(tmp_path, monkeypatch):
    from pipeline.ingest import records

    monkeypatch.setattr(records, "BUFFER", 7)
    rows = [{"prompt_token_ids": [i], "tenant": 'ü€\U0001f600\\"]},{'} for i in range(50)]
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False, indent=2), "utf-8")
    kept, _ = rows_of(tmp_path / "a.json", house=tmp_path / "h")
    assert [(r["prompt_token_ids"], r["tenant"]) for r in kept] == [([i], rows[0]["tenant"]) for i in range(50)]


def test_a_killed_ingest_leaves_no_trace(tmp_path, monkeypatch):
    file = jsonl(tmp_path / "r.jsonl", [good(i) for i in range(5)])
    monkeypatch.setattr("pipeline.commit.create_json", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ingest([file], Warehouse(tmp_path / "h"), "t")
    monkeypatch.undo()
    assert Warehouse(tmp_path / "h").traces() == []
    rows, _ = rows_of(file, house=tmp_path / "h")
    assert len(rows) == 5


def test_the_chat_template_is_asked_and_may_refuse(tmp_path):
    model = save(tmp_path / "model")
    rows = [
        {"messages": [{"role": "user", "content": c}, {"role": "assistant", "content": "x"}]} for c in ("raise", "a")
    ]
    kept, report = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h", tokenizer=model)
    assert [r["prompt_token_ids"] for r in kept] == [ids(chat(("user", "a")))]
    assert refused(report)[0][:2] == (1, "messages")


def test_text_needs_a_tokenizer_and_a_template(tmp_path):
    file = jsonl(
        tmp_path / "r.jsonl", [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}]}]
    )
    with pytest.raises(InputError, match="row 1 holds text: pass --tokenizer"):
        rows_of(file, house=tmp_path / "h")
    with pytest.raises(InputError, match="no chat template"):
        rows_of(file, house=tmp_path / "h", tokenizer=save(tmp_path / "plain", template=None))
    with pytest.raises(InputError, match=r"no tokenizer\.json there"):
        rows_of(file, house=tmp_path / "h", tokenizer=tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        rows_of(file, house=tmp_path / "h", tokenizer=tmp_path / "none")


def test_ids_are_held_against_the_vocabulary_where_there_is_one(tmp_path):
    rows = [{**good(i), "output_token_ids": [last]} for i, last in enumerate((299, 300))]
    file = jsonl(tmp_path / "r.jsonl", rows)
    kept, report = rows_of(file, house=tmp_path / "h", tokenizer=save(tmp_path / "model"))
    assert [r["request_id"] for r in kept] == ["r0"] and "vocabulary has 300" in refused(report)[0][2]
    assert len(rows_of(file, house=tmp_path / "h", name="free")[0]) == 2


def test_a_template_that_writes_the_date_gets_the_row_s_own(tmp_path):
    dated = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    model = save(tmp_path / "model", template=dated)
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x", "timestamp": t}]}
            for t in (1700000000, None)]  # fmt: skip
    kept, report = rows_of(jsonl(tmp_path / "r.jsonl", rows), house=tmp_path / "h", tokenizer=model)
    assert [r["prompt_token_ids"] for r in kept] == [ids("14 Nov 2023a<|im_end|>")]
    assert refused(report)[0][1] == "arrival"
