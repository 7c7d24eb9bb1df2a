"""How fast ingest reads and normalises JSON lines before any tokenisation, beside DuckDB doing the same.

Both sides read the same files on one core and count the same: generations, characters (or ids) of prompts and outputs,
labels and times parsed. DuckDB's side is its JSON reader and the normalisation in SQL; ours is what `ingest` runs, up
to the tokenizer. Goals: 60 MB/s per core at least, and no more than three times DuckDB's time.

    python tests/benchmarks/ingest.py [--megabytes 60]
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).parents[2]))

from pipeline.ingest.files import sources
from pipeline.ingest.mapping import Mapping
from pipeline.ingest.report import IngestReport
from pipeline.ingest.run import _Ingest
from pipeline.ingest.times import Placer

_random = random.Random(0)
_words = ["".join(_random.choices("abcdefghijklmnoprstu", k=_random.randint(2, 9))) for _ in range(4000)]


def _text(words: int) -> str:
    return " ".join(_random.choices(_words, k=words)) + ' "quoted"\n'


def _conversation(i: int) -> dict:
    turns = [m for _ in range(3) for m in (("user", _text(90)), ("assistant", _text(120)))]
    return {"session_id": f"s{i}", "tenant": "t", "messages": [{"role": r, "content": c} for r, c in turns]}


def _pair(i: int) -> dict:
    message = {"role": "assistant", "content": _text(120)}
    return {
        "date": "2026-01-01T00:00:00Z",
        "status": 200,
        "request": {"model": "m", "temperature": 0.2, "messages": [{"role": "user", "content": _text(300)}]},
        "response": {
            "id": f"c{i}",
            "created": 1709033833,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 39, "completion_tokens": 160},
        },
    }


def _text_row(i: int) -> dict:
    return {"id": f"r{i}", "prompt": _text(200), "completion": _text(100), "workload": "a"}


def _id_row(i: int) -> dict:
    ids = _random.choices(range(150_000), k=800)
    return {"request_id": f"r{i}", "prompt_token_ids": ids[:600], "output_token_ids": ids[600:]}


SQL = {
    # every assistant turn with everything before it
    "conversations": """
        WITH turns AS (
            SELECT session_id, tenant, messages, unnest(range(1, len(messages) + 1)) AS i FROM read_json('{file}')
        ), taken AS (
            SELECT session_id, tenant, messages[:i - 1] AS prompt, messages[i].content AS output
            FROM turns WHERE messages[i].role = 'assistant'
        )
        SELECT count(*), sum(list_sum(list_transform(prompt, lambda m: length(m.content)))), sum(length(output))
        FROM taken""",
    "pairs": """
        WITH calls AS (
            SELECT request, response, date::timestamptz AS arrival, unnest(response.choices) AS choice
            FROM read_json('{file}') WHERE status < 400
        )
        SELECT count(arrival), sum(list_sum(list_transform(request.messages, lambda m: length(m.content)))),
            sum(length(choice.message.content))
        FROM calls""",
    "text": "SELECT count(id), sum(length(prompt)), sum(length(completion)) FROM read_json('{file}')",
    "ids": """
        SELECT count(request_id), sum(len(prompt)), sum(len(output)) FROM (
            SELECT request_id, prompt_token_ids::INTEGER[] AS prompt, output_token_ids::INTEGER[] AS output
            FROM read_json('{file}')
        ) WHERE list_min(prompt) >= 0 AND list_min(output) >= 0""",
}

ROWS: dict[str, Callable[[int], dict]] = {
    "conversations": _conversation,
    "pairs": _pair,
    "text": _text_row,
    "ids": _id_row,
}


def _counted(generations: Iterator) -> tuple[int, int, int]:
    count = prompts = outputs = 0
    for g, _, _ in generations:
        count += 1
        if g.prompt_token_ids is not None:
            prompts += len(g.prompt_token_ids)
            outputs += len(g.output_token_ids)
        elif g.messages is not None:
            prompts += sum(len(m["content"]) for m in g.messages)
            outputs += len(g.answer["content"])
        else:
            prompts += len(g.prompt_text)
            outputs += len(g.output_text)
    return count, prompts, outputs


def _ours(file: Path) -> tuple[int, int, int]:
    work = _Ingest(IngestReport(), Mapping([]), "auto", None, Placer(None), None, False, False)
    return _counted(work.generations(work.survey(sources([file])[0])))


def _theirs(kind: str, file: Path) -> tuple[int, int, int]:
    with duckdb.connect(config={"threads": 1}) as connection:
        row = connection.sql(SQL[kind].format(file=file)).fetchall()[0]
    return int(row[0]), int(row[1]), int(row[2])


def _best(run: Callable[[], tuple[int, int, int]], times: int = 3) -> tuple[float, tuple[int, int, int]]:
    """(CPU seconds of the quickest run, what it counted): other load on the machine does not count."""
    best, counted = float("inf"), (0, 0, 0)
    for _ in range(times):
        start = time.process_time()
        counted = run()
        best = min(best, time.process_time() - start)
    return best, counted


def main() -> None:
    """Print a line per kind of log."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=60)
    megabytes = parser.parse_args().megabytes
    print(
        f"{'log':14} {'rows':>8} {'generations':>12} {'ours MB/s':>10} {'DuckDB MB/s':>12} {'ours / DuckDB time':>19}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, make in ROWS.items():
            file, size, rows = Path(folder) / f"{kind}.jsonl", 0, 0
            with file.open("w") as out:
                while size < megabytes * 1e6:
                    size += out.write(json.dumps(make(rows)) + "\n")
                    rows += 1
            ours, counted = _best(lambda: _ours(file))  # noqa: B023
            theirs, by_duckdb = _best(lambda: _theirs(kind, file))  # noqa: B023
            if counted != by_duckdb:
                raise SystemExit(f"{kind}: counted {counted}, DuckDB {by_duckdb}")
            print(
                f"{kind:14} {rows:8,} {counted[0]:12,} {size / 1e6 / ours:10.0f} {size / 1e6 / theirs:12.0f} "
                f"{ours / theirs:19.2f}"
            )


if __name__ == "__main__":
    main()
