"""From the recorder's rows to a step log: what was a decode step, what was filler, why nothing was proposed.

A pure function of arrays; knows no vLLM. The rules are those of the model runners of vLLM 0.32.0:

- A decode step is an iteration in which the sequence put out at least one token; the first of them is prefill's.
- Where the drafter was not called in the sequence's iteration before, all scheduled candidates are zeros put in their
  place (V1); candidates that pad a sequence which begins or resumes with one token to compute are placeholders. Both
  are filler, and whole: real candidates and placeholders never share a step.
- An n-gram lookup that fills up to k (V2, and "ngram_gpu") mixes both: what it finds comes first
  (`replay.live.lookup`).
- A cut at end, stop or length limit throws tokens of the last step away, and only of the last.
- With asynchronous scheduling a step is scheduled before the one before is known: the length limit counts all of that
  one's candidates as accepted, the grammar cuts candidates after they were scheduled, and a sequence that has ended is
  in one more iteration, of which nothing counts.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from replay.live.record import ITERATION_FIELDS, ROW_FIELDS
from replay.steps import NOT_VERIFIED, StepLog
from schemas.tables import ENGINE_STEPS, MISS_REASONS

_CODE = {reason: i for i, reason in enumerate(MISS_REASONS)}
_WALKED = ("iteration", "drafted", "placeholders", "sampled", "proposed", "cut", "found")

ALL = 2**31 - 1
"""In `found`: no lookup that fills up, so that all candidates are real."""


@dataclass(frozen=True)
class Lengths:
    """Per request, int64 arrays: prompt tokens, tokens put out (T), tokens put out past the end for a tail."""

    prompt: np.ndarray
    output: np.ndarray
    run_on: np.ndarray


@dataclass(frozen=True)
class Rules:
    """What decides a miss reason: the length limit, the shortest n-gram window (0 = none), requests under a grammar,
    asynchronous scheduling."""

    max_model_len: int
    shortest_window: int = 0
    grammar: frozenset[int] = frozenset()
    asynchronous: bool = False


def step_log(
    rows: np.ndarray, asked: np.ndarray, lengths: Lengths, rules: Rules, found: np.ndarray | None = None
) -> StepLog:
    """The step log of one unit.

    Args:
        rows: int32 [rows, ROW_FIELDS] in time order, slot = request index.
        asked: per iteration, candidates the drafter was asked for, -1 where it was not called.
        lengths: of every request; a request with no rows has no steps.
        rules: see `Rules`.
        found: per row, how many tokens a lookup that fills up to k finds (`replay.live.lookup.found`); None = no such
            proposer.

    Returns:
        StepLog sorted by (request, step); engine_step = iteration.

    Raises:
        ValueError: the rows of a request do not put out its tokens, give or take a cut in the last step; names the
            request index.
    """
    requests = len(lengths.output)
    order = np.argsort(rows[:, ROW_FIELDS.index("slot")], kind="stable")
    rows = rows[order]
    column = dict(zip(ROW_FIELDS, rows.T.astype(np.int64), strict=True))
    column["found"] = np.full(len(rows), ALL) if found is None else found[order]
    bounds = np.searchsorted(column["slot"], np.arange(requests + 1))
    prefill_filler = np.zeros(requests, np.int32)
    out: list[tuple] = []
    for r in range(requests):
        mine = slice(bounds[r], bounds[r + 1])
        columns = [column[f][mine].tolist() for f in _WALKED]
        prefill_filler[r] = _walk(r, columns, asked, lengths, rules, out)
    log = np.array(out, np.int64).reshape(-1, 8).T
    request, step, drafted, filler, accepted, overrun, miss, engine_step = log
    return StepLog.of(requests, request, step, drafted, accepted, overrun, miss, filler, engine_step, prefill_filler)


def _walk(r: int, columns: list, asked: np.ndarray, lengths: Lengths, rules: Rules, out: list[tuple]) -> int:
    """Append request r's steps to `out`; returns its prefill filler."""
    output, run_on = int(lengths.output[r]), int(lengths.run_on[r])
    put_out, step, prefill_filler, overrun = 0, 0, 0, 0
    called, proposed_before, foreseen = False, 0, 0
    for iteration, drafted, placeholders, sampled, proposed, cut, found in zip(*columns, strict=True):
        if rules.asynchronous and put_out >= output + run_on:
            break  # scheduled before its end was known
        if put_out >= output and sampled:
            put_out += sampled  # a tail's steps are no part of the output
            continue
        total = int(lengths.prompt[r]) + put_out
        if put_out == 0:
            prefill_filler += drafted if sampled else 0
        elif sampled or drafted:
            step += 1
            filler = drafted if placeholders or not called else drafted - min(drafted, found)
            miss = 0
            if drafted == filler:
                ahead = rules.asynchronous and foreseen < rules.max_model_len
                if drafted == 0 and rules.max_model_len - (foreseen if ahead else total) - 1 <= 0:
                    miss = _CODE["length_limit"]
                elif placeholders or not called:
                    miss = _CODE["skipped"]
                elif cut:
                    miss = _CODE["grammar"]
                elif proposed_before and found:  # offered, yet nothing was scheduled although there was room
                    miss = _CODE["grammar"] if r in rules.grammar else _CODE["skipped"]
                else:
                    miss = _CODE["too_short"] if total < rules.shortest_window else _CODE["no_match"]
            accepted = sampled - 1 if sampled else NOT_VERIFIED
            overrun = max(overrun, put_out + sampled - output)
            out.append((r, step, drafted, filler, accepted, overrun, miss, iteration))
        put_out += sampled
        if sampled:
            called, proposed_before, foreseen = asked[iteration] > 0, proposed, total + drafted + cut + 1
    if put_out != output + overrun + run_on:
        raise ValueError(f"request {r}: its engine iterations put out {put_out} tokens, its output has {output}")
    return prefill_filler


def emptied(log: StepLog, rows: np.ndarray) -> np.ndarray:
    """Which steps lost all their candidates to the grammar after they were scheduled: vLLM counts a round of none.

    Args:
        log: from `step_log`.
        rows: as for `step_log`.

    Returns:
        bool, one per step of the log.
    """
    column = dict(zip(ROW_FIELDS, rows.T.astype(np.int64), strict=True))
    lost = (column["cut"] > 0) & (column["drafted"] == 0)
    wide = int(column["iteration"].max(initial=0)) + 1
    keys = log.request.astype(np.int64) * wide + log.engine_step
    return np.isin(keys, (column["slot"] * wide + column["iteration"])[lost])


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
    candidates = column["drafted"] + column["cut"]
    decode = candidates + ((put_out > 0) & (column["sampled"] > 0))

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
        "draft_tokens": per_iteration(candidates),
        "emitted": np.bincount(log.engine_step, log.emitted, minlength=n).astype(np.int32),
        "started_us": _microseconds(outer[:, 0] - outer[:1, 0], np.int64),
        "step_us": _microseconds(outer[:, 1] - outer[:, 0]),
        "verify_us": _microseconds(time["forward_s"] + time["sample_s"] - time["draft_s"]),
        "draft_us": _microseconds(time["draft_s"]),
    }
    return pa.table(columns, schema=ENGINE_STEPS)


def _microseconds(seconds: np.ndarray, type_: type = np.int32) -> np.ndarray:
    return np.rint(seconds * 1e6).astype(type_)
