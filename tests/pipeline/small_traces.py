"""Small random traces for tests of the write side, and what a warehouse holds, byte by byte."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from schemas.config import ReplayConfig, parse
from schemas.tables import TRACE

START = datetime(2026, 11, 24, 22, 0, tzinfo=UTC)


def rows(count: int, seed: int = 0) -> list[dict]:
    """Requests that copy from their prompt now and then; some have sessions, some put out nothing or one token."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        prompt = [rng.randrange(8) for _ in range(rng.randint(4, 40))]
        length = rng.choice([0, 1, 2, 5, 20, 40])
        at = rng.randrange(len(prompt))
        output = (prompt[at:] + [rng.randrange(8) for _ in range(40)])[:length]
        out.append(
            {
                "request_id": f"r{i}",
                "session_id": rng.choice([None, f"s{i // 4}"]),
                "sample": 0,
                "tenant": rng.choice(["acme", "umbrella", None]),
                "workload": rng.choice(["edit", "chat", None]),
                "arrival": START + timedelta(minutes=rng.randint(0, 600)),
                "prompt_token_ids": prompt,
                "output_token_ids": output,
                "prompt_tokens": len(prompt),
                "output_tokens": len(output),
                "finish_reason": "stop",
            }
        )
    return out


def table(data: list[dict]) -> pa.Table:
    """Rows as a canonical trace."""
    return pa.Table.from_pylist(data, schema=TRACE)


NGRAM: dict = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}


def config(
    *proposers: dict,
    trace: dict | None = None,
    engine: dict | None = None,
    entries: list[dict] | None = None,
    **run: int,
) -> ReplayConfig:
    """A config as it would be read from a file; proposers default to none and one n-gram.

    `entries` are whole [[proposer]] sections, in place of `proposers`.
    """
    data = {
        "trace": {"name": "small"} | (trace or {}),
        "engine": engine or {},
        "proposer": entries or [{"config": p} for p in (proposers or ({}, NGRAM))],
        "run": {"workers": 1} | run,
    }
    return parse(data, Path("test.toml"))


def without_clock(document: dict) -> dict:
    """A plan.json or done.json without what comes from the clock."""
    left = {key: value for key, value in document.items() if key not in ("started", "ended")}
    return left | {"plan": without_clock(left["plan"])} if "plan" in left else left


def contents(root: Path) -> dict[str, bytes | dict]:
    """Every file below a warehouse but locks: bytes, and of plan and done what does not come from the clock.

    obstore's staging files (`…json#1`), which no reader looks at, are left out: a kill inside it leaves them.
    """
    out: dict[str, bytes | dict] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir() or name.startswith(".") or "#" in path.name:
            continue
        if path.name in ("plan.json", "done.json"):
            out[name] = without_clock(json.loads(path.read_bytes()))
        else:
            out[name] = path.read_bytes()
    return out
