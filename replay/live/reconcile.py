"""Does a step log add up to what vLLM itself counted? Witnesses: its Prometheus counters, the per-request metrics it
hands out, the lengths of the outputs, and the token ids. Knows no engine: numbers in, mismatches out.
"""

from collections.abc import Sequence

import numpy as np

from replay.live.record import ROW_FIELDS
from replay.requests import Tokens
from replay.steps import NOT_VERIFIED, StepLog


def reconcile(
    log: StepLog,
    counters: dict,
    output_tokens: np.ndarray,
    run_on_tokens: np.ndarray,
    per_request: Sequence[tuple[list[int], list[int]] | None],
    request_ids: Sequence[str],
    emptied: np.ndarray | None = None,
) -> dict:
    """Compare a step log with the engine's own figures.

    Args:
        log: the step log of one unit.
        counters: what vLLM's counters rose by; keys as in `replay.live.engine.COUNTERS`.
        output_tokens: T per request.
        run_on_tokens: tokens per request put out past the end, for a tail.
        per_request: vLLM's (per_step_drafted, per_step_accepted) per request, None where it gives none.
        request_ids: ids as in the trace, to name a request that differs.
        emptied: bool per step: counted by vLLM as a round of no candidates (`steplog.emptied`); None = none is.

    Returns:
        `ok` (bool), `mismatches` (list of dicts: counter, engine, step_log, request where there is one) and `engine`
        (the counters).
    """
    counts = log.counts()
    emptied = np.zeros(len(log), bool) if emptied is None else emptied
    verified = (log.accepted != NOT_VERIFIED) & ((log.drafted > 0) | emptied)
    padded = log.prefill_filler
    longest = max((len(counters.get("num_accepted_tokens_per_pos", [])), int(log.drafted.max(initial=0))))
    reached = np.bincount(log.accepted[verified], minlength=longest + 1)[::-1].cumsum()[::-1]
    sums = {
        "num_drafts": int(verified.sum() + (padded > 0).sum()),
        "num_draft_tokens": int(counts["engine_drafted"].sum() + padded.sum()),
        "num_accepted_tokens": int(counts["engine_accepted"].sum()),
        "num_accepted_tokens_per_pos": reached[1 : longest + 1].tolist(),
    }
    mismatches = []
    for counter, mine in sums.items():
        theirs = counters.get(counter, [0] * longest if isinstance(mine, list) else 0)
        if theirs != mine:
            mismatches.append({"counter": f"vllm:spec_decode_{counter}", "engine": theirs, "step_log": mine})
    put_out = (output_tokens > 0).sum() + counts["emitted"].sum() + run_on_tokens.sum()
    if counters.get("generation_tokens", 0) != put_out:
        mismatch = {"engine": counters.get("generation_tokens", 0), "step_log": int(put_out)}
        mismatches.append({"counter": "vllm:generation_tokens"} | mismatch)
    mismatches += _lengths(counts, output_tokens, request_ids)
    mismatches += _requests(log, verified, per_request, request_ids)
    return {"ok": not mismatches, "mismatches": mismatches, "engine": counters}


def _lengths(counts: dict, output_tokens: np.ndarray, request_ids: Sequence[str]) -> list[dict]:
    """E = T − 1, and T = 1 + S + C − overrun with C as the engine counts it."""
    expected = np.where(output_tokens > 0, 1 + counts["steps"] + counts["engine_accepted"] - counts["overrun"], 0)
    return [
        {
            "counter": "output_tokens",
            "engine": int(output_tokens[i]),
            "step_log": int(expected[i]),
            "request": request_ids[i],
        }
        for i in np.flatnonzero(expected != output_tokens)
    ]


def _requests(log: StepLog, verified: np.ndarray, per_request: Sequence, request_ids: Sequence[str]) -> list[dict]:
    mismatches = []
    bounds = np.searchsorted(log.request, np.arange(len(per_request) + 1))
    for i, theirs in enumerate(per_request):
        if theirs is None:
            continue
        mine = np.flatnonzero(verified[bounds[i] : bounds[i + 1]]) + bounds[i]
        padded = int(log.prefill_filler[i])
        drafted = ([padded] if padded else []) + log.drafted[mine].tolist()
        accepted = ([0] if padded else []) + log.accepted[mine].tolist()
        for counter, ours, engine in (
            ("per_step_drafted", drafted, theirs[0]),
            ("per_step_accepted", accepted, theirs[1]),
        ):
            if ours != engine:
                mismatches.append(
                    {
                        "counter": f"spec_decode_metrics.{counter}",
                        "engine": engine,
                        "step_log": ours,
                        "request": request_ids[i],
                    }
                )
    return mismatches


def reconcile_ids(
    rows: np.ndarray, draft_ids: np.ndarray, sampled_ids: np.ndarray, put_out: Tokens, request_ids: Sequence[str]
) -> list[dict]:
    """Compare the ids seen in the worker with those that came out of the engine, and accepted candidates with both.

    Args:
        rows: int32 [rows, ROW_FIELDS] in time order, slot = request index.
        draft_ids: all rows' candidates, end to end.
        sampled_ids: all rows' sampled ids, untrimmed, end to end.
        put_out: ids the engine handed out, per request.
        request_ids: ids as in the trace.

    Returns:
        Mismatches as in `reconcile`: a request whose sampled ids do not begin with what it put out, or with a sampled
        id that differs from the candidate it is said to have accepted; values are positions, never content.
    """
    slot, drafted, sampled = (rows[:, ROW_FIELDS.index(f)].astype(np.int64) for f in ("slot", "drafted", "sampled"))
    mismatches = []
    accepted = np.minimum(drafted, np.maximum(sampled - 1, 0))
    draft_at, sampled_at = np.cumsum(drafted) - drafted, np.cumsum(sampled) - sampled
    within = np.arange(accepted.sum()) - np.repeat(np.cumsum(accepted) - accepted, accepted)
    same = draft_ids[np.repeat(draft_at, accepted) + within] == sampled_ids[np.repeat(sampled_at, accepted) + within]
    for i in np.unique(np.repeat(slot, accepted)[~same]):
        wrong = int((~same & (np.repeat(slot, accepted) == i)).sum())
        mismatches.append(
            {"counter": "accepted candidate ids", "engine": 0, "step_log": wrong, "request": request_ids[i]}
        )
    owner = np.repeat(slot, sampled)
    order = np.argsort(owner, kind="stable")
    seen, bounds = sampled_ids[order], np.searchsorted(owner[order], np.arange(len(put_out) + 1))
    for i in range(len(put_out)):
        mine, theirs = seen[bounds[i] : bounds[i + 1]], put_out[i]
        if not np.array_equal(mine[: len(theirs)], theirs):
            mismatches.append(
                {
                    "counter": "output token ids",
                    "engine": len(theirs),
                    "step_log": int(np.argmin(np.append(mine[: len(theirs)] == theirs[: len(mine)], False))),
                    "request": request_ids[i],
                }
            )
    return mismatches
