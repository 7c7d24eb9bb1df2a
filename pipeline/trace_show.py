"""A look at a trace: counts, lengths, how much of the output could be copied, and samples of whole sessions.

Repetition is measured on token ids: an output token counts as copyable when it and the three tokens before it stand
together, in this order, in the place in question. That is what a lookup with a window of three could have proposed;
it is no acceptance rate, for which there is `replay`. Knows ids and lengths, no text.
"""

import hashlib
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.output import plain
from pipeline.seen import KeySet
from pipeline.tracefiles import GROUP_ROWS, TraceInfo
from pipeline.warehouse import Warehouse
from schemas.errors import InputError
from schemas.tables import NO_GROUP, TRACE

WINDOW = 4
"""Tokens that have to stand together: one that is copied and three before it."""

HISTORY_TOKENS = 20_000_000
"""Earlier requests are remembered up to this many tokens (160 MB); `show` says when a trace is longer."""

_BAR = 24


@dataclass
class Workload:
    """What one workload of a trace holds. Shares are over `measured` output tokens, those with three tokens before."""

    requests: int = 0
    sessions: set[int] = field(default_factory=set)
    empty: int = 0
    """Requests with no output tokens."""
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    measured: int = 0
    from_prompt: int = 0
    """… that stand in the request's own prompt or earlier output."""
    from_earlier: int = 0
    """… that stand in an earlier request of the trace, prompt or output."""
    from_either: int = 0


def show(warehouse: Warehouse, name: str) -> dict[str, Any]:
    """Counts, lengths and repetition of a trace, per workload.

    Returns a dict: the trace's facts (name, fingerprint, requests, …), `workloads` (a list of dicts, most requests
    first), `proxy` (why the ids may not be those that were sampled, a text each; empty if ingest found nothing) and
    `history_full` (whether `from_earlier` is a lower bound). Lengths are in tokens, shares from 0 to 1 and
    None where nothing could be measured.

    Raises:
        InputError: no such trace, or a file of it is missing or damaged.
    """
    from replay.recorded.exactness import found_by_ingest, in_words  # with the walk's compiler: not for `trace list`

    info = warehouse.trace(name)
    groups: dict[str, Workload] = defaultdict(Workload)
    history, full = KeySet(), False
    found: Counter[tuple[str, str]] = Counter()
    for table in _tables(warehouse, info, [*_COLUMNS, "extra"]):
        found.update(found_by_ingest(table.column("extra").to_pylist()))
        columns = (table.column(c) for c in _COLUMNS)
        for workload, session, prompt, output, prompt_size, output_size in zip(*columns, strict=True):
            group = groups[workload.as_py() or NO_GROUP]
            group.requests += 1
            if session.is_valid:
                group.sessions.add(hash(session.as_py()))
            group.prompt.append(prompt_size.as_py())
            if output_size.is_valid:
                group.output.append(output_size.as_py())
                group.empty += output_size.as_py() == 0
            if prompt.is_valid and output.is_valid:
                full |= not _measure(group, history, prompt.values.to_numpy(), output.values.to_numpy())
    order = sorted(groups.items(), key=lambda item: (-item[1].requests, item[0]))
    return {
        **_facts(info),
        "history_full": full,
        "proxy": in_words(found),
        "workloads": [_as_dict(workload, group) for workload, group in order],
    }


_COLUMNS = ["workload", "session_id", "prompt_token_ids", "output_token_ids", "prompt_tokens", "output_tokens"]


def traces(warehouse: Warehouse) -> list[dict[str, Any]]:
    """One row per trace: name, requests, how many hold prompts and outputs, tokens, fingerprint."""
    return [_facts(info) for info in warehouse.traces()]


def sample(warehouse: Warehouse, name: str, sessions: int, seed: int) -> pa.Table:
    """Rows of whole sessions drawn by a hash of seed and name, in the order of the trace. A row without one is its own.

    Raises:
        InputError: no such trace, or `sessions` is not positive.
    """
    if sessions < 1:
        raise InputError(f"--sessions {sessions}: at least one session is drawn")
    info = warehouse.trace(name)
    names = warehouse.read_trace(name, ["session_id", "request_id"])
    keys = [
        f"s{session}" if session is not None else f"r{request}"
        for session, request in zip(*(names.column(c).to_pylist() for c in ("session_id", "request_id")), strict=True)
    ]
    drawn = set(sorted(set(keys), key=lambda k: hashlib.sha256(f"{seed}\0{k}".encode()).digest())[:sessions])
    rows = [i for i, key in enumerate(keys) if key in drawn]
    return warehouse.read_trace(info.name, TRACE.names, np.array(rows, np.int64))


def print_jsonl(rows: pa.Table) -> None:
    """Rows as JSON lines on stdout, in the form `ingest` reads back. Token ids decode to text."""
    for row in rows.to_pylist():
        if row["arrival"] is not None:
            row["arrival"] = row["arrival"].isoformat()
        print(json.dumps({k: v for k, v in row.items() if v is not None}))


def render(shown: dict[str, Any]) -> Iterator[str]:
    """`show`, in lines for a terminal: facts, then per workload lengths and a picture of the shares."""
    yield f"trace {shown['trace']}: {shown['requests']:,} requests, fingerprint {shown['fingerprint']}"
    yield (
        f"  {shown['prompt_tokens']:,} prompt and {shown['output_tokens']:,} output tokens; "
        f"{shown['with_prompts']:,} hold prompt ids, {shown['with_outputs']:,} output ids, "
        f"{shown['with_tails']:,} tails"
    )
    yield from (f"  proxy: {why}" for why in shown["proxy"])
    yield ""
    names = [plain(w["workload"], 40) for w in shown["workloads"]]
    width = max(8, *map(len, names))
    head = "requests  sessions  no output        prompt (median, max)        output (median, max)"
    yield f"{'workload':{width}}  {head}"
    for name, w in zip(names, shown["workloads"], strict=True):
        yield (
            f"{name:{width}}  {w['requests']:8,}  {w['sessions']:8,}  {w['no_output']:9,}  "
            f"{_pair(w['prompt']):>26}  {_pair(w['output']):>26}"
        )
    yield ""
    yield "share of output tokens that could be copied (each with the three before it)"
    yield f"{'':{width}}  {'from its own prompt and output':{_BAR + 8}}{'from earlier requests':{_BAR + 8}}either"
    for name, w in zip(names, shown["workloads"], strict=True):
        bars = "".join(f"{_bar(w[k]):{_BAR + 8}}" for k in ("from_prompt", "from_earlier"))
        either = "n/a" if w["from_either"] is None else f"{w['from_either']:.0%}"
        yield f"{name:{width}}  {bars}{either}"
    if shown["history_full"]:
        yield f"(earlier requests: the first {HISTORY_TOKENS:,} tokens of the trace; a lower bound after them)"


def _measure(group: Workload, history: KeySet, prompt: np.ndarray, output: np.ndarray) -> bool:
    """Count one request into its workload and remember it; False when the history takes no more."""
    windows = _windows(np.concatenate([prompt, output]))
    before = max(0, len(prompt) - WINDOW + 1)
    asked = windows[before:]  # each ends at an output token
    group.measured += len(asked)
    if len(asked):
        values, first = np.unique(windows, return_index=True)
        own = first[np.searchsorted(values, asked)] < np.arange(before, len(windows))
        earlier = history.contains(asked)
        group.from_prompt += int(own.sum())
        group.from_earlier += int(earlier.sum())
        group.from_either += int((own | earlier).sum())
    if len(history) + len(windows) > HISTORY_TOKENS:
        return False
    history.update(windows)
    return True


def _windows(ids: np.ndarray) -> np.ndarray:
    """A 64-bit hash of every `WINDOW` neighbours, uint64, one for each end position from WINDOW − 1 on."""
    if len(ids) < WINDOW:
        return np.empty(0, np.uint64)
    out = np.zeros(len(ids) - WINDOW + 1, np.uint64)
    for i in range(WINDOW):
        out = (out + ids[i : len(ids) - WINDOW + 1 + i].astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        out ^= out >> np.uint64(29)
    return out


def _tables(warehouse: Warehouse, info: TraceInfo, columns: list[str]) -> Iterator[pa.Table]:
    for start in range(0, info.requests, GROUP_ROWS):
        yield warehouse.read_trace(info.name, columns, np.arange(start, min(start + GROUP_ROWS, info.requests)))


def _facts(info: TraceInfo) -> dict[str, Any]:
    return {
        "trace": info.name,
        "requests": info.requests,
        "with_prompts": info.with_prompts,
        "with_outputs": info.with_outputs,
        "with_tails": info.with_tails,
        "prompt_tokens": info.prompt_tokens,
        "output_tokens": info.output_tokens,
        "fingerprint": info.fingerprint,
    }


def _as_dict(name: str, w: Workload) -> dict[str, Any]:
    def share(part: int) -> float | None:
        return part / w.measured if w.measured else None

    return {
        "workload": name,
        "requests": w.requests,
        "sessions": len(w.sessions),
        "no_output": w.empty,
        "prompt": _lengths(w.prompt),
        "output": _lengths(w.output),
        "from_prompt": share(w.from_prompt),
        "from_earlier": share(w.from_earlier),
        "from_either": share(w.from_either),
    }


def _lengths(values: list[int]) -> dict[str, int] | None:
    """Smallest, median, 95th percentile, largest and sum; nearest rank, so that each is a length that occurs."""
    if not values:
        return None
    ranked = sorted(values)

    def rank(p: float) -> int:
        return ranked[max(0, math.ceil(p * len(ranked)) - 1)]

    return {"min": ranked[0], "median": rank(0.5), "p95": rank(0.95), "max": ranked[-1], "sum": sum(ranked)}


def _pair(lengths: dict[str, int] | None) -> str:
    return "n/a" if lengths is None else f"{lengths['median']:,}, {lengths['max']:,}"


def _bar(share: float | None) -> str:
    if share is None:
        return "n/a"
    filled = round(share * _BAR)
    full, empty = ("█", "·") if (sys.stdout.encoding or "").lower().startswith("utf") else ("#", ".")
    return f"{full * filled}{empty * (_BAR - filled)} {share:4.0%}"
