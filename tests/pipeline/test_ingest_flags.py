"""What the flags of ingest do, and what may not change its result: threads, zone, batches, compression."""

import hashlib
import hmac
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from byte_tokenizer import chat, ids, save
from ingested import jsonl, rows_of

from pipeline.warehouse import Warehouse
from schemas.errors import InputError

ROOT = Path(__file__).parents[2]
SESSION = {
    "session_id": "ms-mill",
    "tenant": "acme",
    "user_number": 4711,
    "messages": [
        {"role": "user", "content": "my secret"},
        {"role": "assistant", "content": "is safe", "timestamp": "2026-01-01T00:00:00Z"},
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"))


def test_map_names_columns_of_a_format_nobody_knows(tmp_path, model):
    row = {"q": {"text": "hi"}, "a": '{"parts": ["yo", "ya"]}', "who.is": "acme", "n": 5}
    file = jsonl(tmp_path / "r.jsonl", [row, {**row, "q": None}])
    with pytest.raises(InputError, match=r"not a trace.*columns: q, a, who.is, n.*--map"):
        rows_of(file, house=tmp_path / "h", tokenizer=model)
    fields = ["prompt=q.text", "output=a.parts.1", "tenant=who.is", "session_id=none"]
    rows, report = rows_of(file, house=tmp_path / "h", tokenizer=model, fields=fields)
    assert [(r["prompt_token_ids"], r["output_token_ids"], r["tenant"]) for r in rows] == [
        (ids("hi"), ids("ya"), "acme")
    ]
    assert report.notes["--map session_id=none: no row has it"] == 1
    assert len(report.refused) == 1
    lengths = ["prompt_tokens=n", "output_tokens=n"]
    rows, _ = rows_of(file, house=tmp_path / "h", name="n", fields=lengths)
    assert [(r["prompt_tokens"], r["output_tokens"], r["prompt_token_ids"]) for r in rows] == [(5, 5, None)] * 2


def test_a_mapped_output_leaves_the_prompt_where_it_was(tmp_path, model):
    row = {"task_id": 1, "prompt": "def f():", "solution": " return"}
    file = jsonl(tmp_path / "r.jsonl", [row])
    assert rows_of(file, house=tmp_path / "h", tokenizer=model)[0][0]["output_token_ids"] is None
    ((kept,), _) = rows_of(file, house=tmp_path / "h", name="m", tokenizer=model, fields=["output=solution"])
    assert (kept["prompt_token_ids"], kept["output_token_ids"]) == (ids("def f():"), ids(" return"))


def test_a_mapped_label_leaves_the_format_alone(tmp_path, model):
    row = {"team": "t1", **{k: v for k, v in SESSION.items() if k != "tenant"}}
    ((kept,), _) = rows_of(
        jsonl(tmp_path / "r.jsonl", [row]), house=tmp_path / "h", tokenizer=model, fields=["tenant=team"]
    )
    assert (kept["tenant"], kept["prompt_token_ids"]) == ("t1", ids(chat(("user", "my secret"))))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"fields": ["promt=x"]}, "did you mean 'prompt'"),
        ({"fields": ["prompt"]}, "field=path"),
        ({"format_": "openapi"}, "choose one of auto, token-ids"),
    ],
)
def test_flags_that_make_no_sense(tmp_path, how, says):
    with pytest.raises(InputError, match=says):
        rows_of(jsonl(tmp_path / "r.jsonl", [SESSION]), house=tmp_path / "h", **how)


def test_a_format_can_be_forced(tmp_path, model):
    row = {"prompt": "a", "output": "b", "prompt_token_ids": [1], "output_token_ids": [2]}
    file = jsonl(tmp_path / "r.jsonl", [row])
    assert rows_of(file, house=tmp_path / "h")[0][0]["prompt_token_ids"] == [1]
    ((kept,), _) = rows_of(file, house=tmp_path / "h", name="f", tokenizer=model, format_="text")
    assert kept["prompt_token_ids"] == ids("a")


def test_text_is_kept_only_when_asked(tmp_path, model):
    file = jsonl(tmp_path / "r.jsonl", [SESSION])
    rows_of(file, house=tmp_path / "h", tokenizer=model)
    stored = b"".join(p.read_bytes() for p in (tmp_path / "h").rglob("*") if p.is_file())
    table = Warehouse(tmp_path / "h").read_trace("t")
    assert (
        b"secret" not in stored and "secret" not in str(table.to_pylist()) and "prompt_text" not in table.column_names
    )
    columns = ["prompt_text", "output_text", "prompt_token_ids"]
    ((kept,), _) = rows_of(file, house=tmp_path / "h", name="text", columns=columns, tokenizer=model, keep_text=True)
    assert kept["prompt_text"] == chat(("user", "my secret"))
    assert kept["output_text"].startswith("is safe") and kept["prompt_token_ids"] == ids(kept["prompt_text"])


def test_names_become_keyed_hashes(tmp_path, model):
    file = jsonl(tmp_path / "r.jsonl", [SESSION])
    ((kept,), _) = rows_of(file, house=tmp_path / "h", tokenizer=model, hash_ids="k")
    for kind, name, column in (
        ("session", "ms-mill", "session_id"),
        ("request", "ms-mill/0", "request_id"),
        ("tenant", "acme", "tenant"),
    ):
        assert kept[column] == hmac.new(b"k", f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()[:32]
    assert "mill" not in str(kept) and "4711" not in str(kept)
    ((other,), _) = rows_of(file, house=tmp_path / "h", name="o", tokenizer=model, hash_ids="other")
    assert other["session_id"] != kept["session_id"]


def _command(*args, **environment):
    command = [sys.executable, "-m", "pipeline.cli", *map(str, args)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240
    )


def test_threads_zone_and_compression_change_nothing(tmp_path, model):
    import gzip

    rows = [{"session_id": f"s{i}", "messages": SESSION["messages"] * (1 + i % 3), "t": "x" * i} for i in range(40)]
    others = [{"prompt_token_ids": [1, -1]}, {"prompt": "p", "output": "o", "timestamp": "2026-01-01 10:00:00"}]
    plain = jsonl(tmp_path / "a" / "r.jsonl", [*rows, *others])
    squeezed = tmp_path / "b" / "r.jsonl"
    squeezed.parent.mkdir()
    squeezed.write_bytes(gzip.compress(plain.read_bytes()))
    said, houses = [], []
    for file, environment in (
        (plain, {"RAYON_NUM_THREADS": "1", "TZ": "UTC", "TOKENIZERS_PARALLELISM": "false"}),
        (squeezed, {"RAYON_NUM_THREADS": "4", "TZ": "Asia/Tokyo", "TOKENIZERS_PARALLELISM": "true"}),
    ):
        house = tmp_path / f"house{len(houses)}"
        done = _command(
            "ingest", file, "--trace", "t", "--tokenizer", model, "--warehouse", house, "--json", **environment
        )
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout))
        houses.append({str(p.relative_to(house)): p.read_bytes() for p in house.rglob("*") if p.is_file()})
    assert said[0] == said[1]
    # sessions repeat their two messages once, twice or three times: 14, 13 and 13 of them
    assert (said[0]["refused"], said[0]["requests"]) == (1, 14 + 2 * 13 + 3 * 13 + 1)
    assert houses[0] == houses[1]


def test_the_command_says_what_was_taken_and_what_not(tmp_path):
    file = jsonl(tmp_path / "r.jsonl", [{"prompt_token_ids": [1]}, {"prompt_token_ids": ["my secret"]}])
    done = _command("ingest", file, "--trace", "t", "--warehouse", tmp_path / "h")
    assert done.returncode == 0 and done.stdout == ""
    assert (
        "1 requests from 2 rows of 1 file" in done.stderr
        and "1 × prompt_token_ids: holds what is no token id" in done.stderr
    )
    assert "secret" not in done.stderr
    strict = _command("ingest", file, "--trace", "s", "--strict", "--warehouse", tmp_path / "h")
    assert strict.returncode == 2 and len(strict.stderr.splitlines()) == 1
    (tmp_path / "folder").mkdir()
    file.rename(tmp_path / "folder" / "r.jsonl")
    (tmp_path / "folder" / "e.jsonl").write_text("")
    part = _command("ingest", tmp_path / "folder", "--trace", "p", "--warehouse", tmp_path / "h")
    assert part.returncode == 3 and "e.jsonl: empty file" in part.stderr


GROWTH = """
import resource, sys
from pathlib import Path
from pipeline.ingest.run import ingest
from pipeline.warehouse import Warehouse
for i, size in enumerate((1, 6)):
    ingest([Path(sys.argv[1]) / f"{size}.jsonl"], Warehouse(sys.argv[2]), f"t{size}")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_log(tmp_path):
    line = json.dumps({"prompt_token_ids": list(range(1000, 1700)), "output_token_ids": list(range(300))}) + "\n"
    line_count = 12_000_000 // len(line)
    for size in (1, 6):
        (tmp_path / f"{size}.jsonl").write_text(line * line_count * size)
    command = [sys.executable, "-c", GROWTH, str(tmp_path), str(tmp_path / "h")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    small, large = map(int, done.stdout.split())
    assert large - small < 30, f"{small} MiB for 12 MB, {large} MiB for 72 MB"
