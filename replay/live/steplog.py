"""From the recorder's rows to a step log: what was a decode step, what was filler, why nothing was proposed.

A pure function of arrays; knows no vLLM. The rules are those of the V1 model runner of vLLM 0.32.0:

- A decode step is an iteration in which the sequence put out at least one token; the first of them is prefill's.
- Where the drafter was not called in the sequence's iteration before, all scheduled candidates are zeros put in their
  place; candidates of -1 pad a sequence that resumes with one token to compute. Both are filler, and whole: real
  candidates and placeholders never share a step.
- A cut at end, stop or length limit throws tokens of the last step away, and only of the last.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from replay.live.worker import ITERATION_FIELDS, ROW_FIELDS
from replay.steps import NOT_VERIFIED, StepLog
from schemas.tables import ENGINE_STEPS, MISS_REASONS

_CODE = {reason: i for i, reason in enumerate(MISS_REASONS)}


@dataclass(frozen=True)
class Lengths:
    """Per request, int64 arrays: prompt tokens, tokens put out (T), tokens put out past the end for a tail."""

    prompt: np.ndarray
    output: np.ndarray
    run_on: np.ndarray


@dataclass(frozen=True)
class Rules:
    """What decides a miss reason: the length limit, the shortest n-gram window (0 = none), requests under a grammar."""

    max_model_len: int
    shortest_window: int = 0
    grammar: frozenset[int] = frozenset()


def step_log(rows: np.ndarray, asked: np.ndarray, lengths: Lengths, rules: Rules) -> StepLog:
    """The step log of one unit.

    Args:
        rows: int32 [rows, ROW_FIELDS] in time order, slot = request index.
        asked: per iteration, candidates the drafter was asked for, -1 where it was not called.
        lengths: of every request; a request with no rows has no steps.
        rules: see `Rules`.

    Returns:
        StepLog sorted by (request, step); engine_step = iteration.

    Raises:
        ValueError: the rows of a request do not put out its tokens, give or take a cut in the last step; names the
            request index.
    """
    requests = len(lengths.output)
    rows = rows[np.argsort(rows[:, ROW_FIELDS.index("slot")], kind="stable")]
    column = dict(zip(ROW_FIELDS, rows.T.astype(np.int64), strict=True))
    bounds = np.searchsorted(column["slot"], np.arange(requests + 1))
    prefill_filler = np.zeros(requests, np.int32)
    out: list[tuple] = []
    for r in range(requests):
        mine = slice(bounds[r], bounds[r + 1])
        columns = [column[f][mine].tolist() for f in ("iteration", "drafted", "placeholders", "sampled", "proposed")]
        prefill_filler[r] = _walk(r, columns, asked, lengths, rules, out)
    log = np.array(out, np.int64).reshape(-1, 8).T
    request, step, drafted, filler, accepted, overrun, miss, engine_step = log
    return StepLog.of(requests, request, step, drafted, accepted, overrun, miss, filler, engine_step, prefill_filler)


def _walk(r: int, columns: list, asked: np.ndarray, lengths: Lengths, rules: Rules, out: list[tuple]) -> int:
    """Append request r's steps to `out`; returns its prefill filler."""
    output, put_out, step, prefill_filler, cut = int(lengths.output[r]), 0, 0, 0, 0
    called, proposed_before = False, 0
    for iteration, drafted, placeholders, sampled, proposed in zip(*columns, strict=True):
        if put_out >= output and sampled:
            put_out += sampled  # a tail's steps are no part of the output
            continue
        if put_out == 0:
            prefill_filler += drafted if sampled else 0
        elif sampled or drafted:
            step += 1
            filler = drafted if placeholders or not called else 0
            total = int(lengths.prompt[r]) + put_out
            miss = 0 if drafted > filler else _reason(r, total, filler, called, proposed_before, rules)
            accepted = sampled - 1 if sampled else NOT_VERIFIED
            cut = max(cut, put_out + sampled - output)
            out.append((r, step, drafted, filler, accepted, cut, miss, iteration))
        put_out += sampled
        if sampled:
            called, proposed_before = asked[iteration] > 0, proposed
    if put_out != output + cut + int(lengths.run_on[r]):
        raise ValueError(f"request {r}: its engine iterations put out {put_out} tokens, its output has {output}")
    return prefill_filler


def _reason(r: int, total: int, filler: int, called: bool, proposed: int, rules: Rules) -> int:
    if rules.max_model_len - total - 1 <= 0:
        return _CODE["length_limit"]
    if filler or not called:
        return _CODE["skipped"]
    if proposed:  # offered, yet nothing was scheduled although there was room
        return _CODE["grammar"] if r in rules.grammar else _CODE["skipped"]
    return _CODE["too_short"] if total < rules.shortest_window else _CODE["no_match"]


def engine_steps(
    record: dict, lengths: Lengths, log: StepLog, steps: np.ndarray, proposer: str, concurrency: int
) -> pa.Table:
    """One row per engine iteration, as `schemas.tables.ENGINE_STEPS`.

    Args:
        record: the recorder's `iterations` and `rows` (slot = request index).
        lengths: as for `step_log`.
        log: the step log of the same unit.
        steps: float64 [engine steps, 2], start and end in seconds by the recorder's clock; a step that ran no forward
            has no row.
        proposer: its name.
        concurrency: sequences in flight at once.
    """
    time = dict(zip(ITERATION_FIELDS, record["iterations"].T, strict=True))
    rows = record["rows"][np.argsort(record["rows"][:, ROW_FIELDS.index("slot")], kind="stable")]
    column = dict(zip(ROW_FIELDS, rows.T.astype(np.int64), strict=True))
    n = len(time["start_s"])
    before = np.cumsum(column["sampled"]) - column["sampled"]
    first = np.searchsorted(column["slot"], np.arange(len(lengths.output)))
    put_out = before - before[np.minimum(first, max(0, len(rows) - 1))][column["slot"]]
    decode = column["drafted"] + ((put_out > 0) & (column["sampled"] > 0))

    def per_iteration(values: np.ndarray) -> np.ndarray:
        return np.bincount(column["iteration"], values, minlength=n).astype(np.int32)

    outer = steps[np.searchsorted(steps[:, 0], time["start_s"], side="right") - 1]
    columns = {
        "proposer": pa.repeat(proposer, n),
        "concurrency": pa.repeat(pa.scalar(concurrency, pa.int32()), n),
        "engine_step": np.arange(n, dtype=np.int32),
        "sequences": per_iteration(np.ones(len(rows))),
        "prefill_tokens": per_iteration(column["scheduled"] - decode),
        "decode_tokens": per_iteration(decode),
        "draft_tokens": per_iteration(column["drafted"]),
        "emitted": np.bincount(log.engine_step, log.emitted, minlength=n).astype(np.int32),
        "started_us": _microseconds(outer[:, 0] - outer[:1, 0], np.int64),
        "step_us": _microseconds(outer[:, 1] - outer[:, 0]),
        "verify_us": _microseconds(time["forward_s"] + time["sample_s"] - time["draft_s"]),
        "draft_us": _microseconds(time["draft_s"]),
    }
    return pa.table(columns, schema=ENGINE_STEPS)


def _microseconds(seconds: np.ndarray, type_: type = np.int32) -> np.ndarray:
    return np.rint(seconds * 1e6).astype(type_)
