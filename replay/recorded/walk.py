"""One sequence at a time along its recorded ids: the accounting that every recorded proposer shares.

Mirrors vLLM 0.32.0's runners and scheduler with a single sequence, no prefix caching and no preemption. Knows how a
step is counted and which limits cut it; knows nothing of how candidates are found.

A step starts at a *history*: prompt and outputs so far, its last token not yet read by the target. The record is
prompt + output + tail; what verification would say past it is unknown, so `accepted` is cut there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from replay.requests import Requests
from replay.steps import StepLog
from schemas.tables import MISS_REASONS

NO_LIMIT = 2**31 - 1
"""Stands for "no max_model_len": longer than any history (token positions are int32)."""

PROPOSED, NO_MATCH, TOO_SHORT, LENGTH_LIMIT, SKIPPED = (
    MISS_REASONS.index(reason) for reason in (None, "no_match", "too_short", "length_limit", "skipped")
)

Progress = Callable[[int], None]
"""Called with how many more requests are done."""


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens of prompt + output.

    `model` is the target's max_model_len; `drafter` the length that the drafter may reach (vLLM's
    effective_drafter_max_model_len: smaller where the draft model's own limit is).
    """

    model: int = NO_LIMIT
    drafter: int = NO_LIMIT


def drafts_on_v2(config: Mapping, runner: str) -> bool:
    """Whether a draft model runs on the V2 runner; a parallel draft, or one with another vocabulary, stays on V1
    (`_get_v2_model_runner_unsupported_features` in vllm/config/vllm.py).

    Args:
        config: effective `speculative_config`.
        runner: "v1" or "v2": the one asked for.
    """
    of_its_own = config.get("parallel_drafting") or config.get("use_heterogeneous_vocab")
    return config["method"] == "draft_model" and runner == "v2" and not of_its_own


def scheduled_ahead(config: Mapping, runner: str) -> bool:
    """Whether recorded replay follows asynchronous scheduling: a step is scheduled before the one before has settled.

    As vLLM chooses on a GPU; on V1 a draft model is followed as on its CPU build, which does not. Arguments as above.
    """
    if config.get("disable_padded_drafter_batch"):
        return False
    return config["method"] == "ngram_gpu" or drafts_on_v2(config, runner)


def fits(sequence: int, k: int, drafter_limit: int) -> bool:
    """Whether the runner asks the drafter after a forward over `sequence` tokens (candidates included).

    If not it puts k zeros in place of candidates (`_input_fits_in_drafter`, `sample_tokens`).
    """
    return sequence + k <= drafter_limit


def settle(ids, history, end, k, model_limit, asked, proposed, matched, reason):
    """Count one decode step: `(drafted, filler, accepted, overrun, miss_reason code)`.

    Compiled by the n-gram walk as it stands here, so it keeps to integers and one array.

    Args:
        ids: int32 array of prompt, output and tail.
        history: tokens before the step.
        end: length of prompt + output, above `history`.
        k: num_speculative_tokens.
        model_limit: max_model_len.
        asked: whether the drafter was asked (see `fits`).
        proposed: candidates the drafter returned; any number if it was not asked.
        matched: how many of the first candidates equal `ids[history:]`.
        reason: why the drafter proposed nothing, if so.
    """
    room = max(0, model_limit - history - 1)  # the scheduler keeps one place for the correction or bonus token
    if asked:
        drafted, filler = min(proposed, room), 0
        if drafted > 0:
            reason = PROPOSED
        elif room == 0:
            reason = LENGTH_LIMIT
    else:
        drafted = filler = min(k, room)
        reason = SKIPPED if drafted > 0 else LENGTH_LIMIT
        matched = 0
        while matched < drafted and history + matched < len(ids) and ids[history + matched] == 0:
            matched += 1
    accepted = min(matched, drafted)
    emitted = min(accepted + 1, end - history)
    return drafted, filler, accepted, accepted + 1 - emitted, reason


class Sequence:
    """One request as the walk sees it: `ids` (prompt, output, tail; int32), `start` = prompt length, `end`."""

    def __init__(self, requests: Requests, i: int):
        prompt, output = requests.prompts[i], requests.outputs[i]
        self.index = i
        self.ids = np.concatenate([prompt, output, requests.tails[i]])
        self.start, self.end = len(prompt), len(prompt) + len(output)


def walk(
    requests: Requests,
    k: int,
    limits: Limits,
    look: Callable[[Sequence, int], tuple[int, int, int]],
    ingest: Callable[[Sequence, int, int], None] | None = None,
    progress: Progress | None = None,
    asynchronous: bool = False,
) -> StepLog:
    """Walk every request with a proposer written in Python.

    Args:
        requests: with recorded outputs.
        k: num_speculative_tokens.
        limits: see `Limits`.
        look: `(sequence, history) -> (proposed, matched, reason)`, as `settle` takes them.
        ingest: `(sequence, old, new)`: the step put out `ids[old:new]`, before any cut at the end (past the record
            where the tail does not reach). Called where vLLM calls the proposer: after the prefill and after every
            step, the last one included, except where the drafter is not asked.
        progress: told of each request done.
        asynchronous: a step is scheduled before the rejections of the one before are known, so that max_model_len
            counts all of that one's candidates as accepted.
    """
    rows: list[tuple[int, ...]] = []
    for i in range(len(requests)):
        sequence = Sequence(requests, i)
        history, step = sequence.start, 0
        computed, emitted = history, min(1, sequence.end - history)  # the prefill puts out one token and no step
        new = foreseen = history + emitted
        while emitted:
            asked = fits(computed, k, limits.drafter)
            if asked and ingest is not None and new < limits.model:
                ingest(sequence, history, new)
            history += emitted
            if history == sequence.end:
                break
            proposed, matched, reason = look(sequence, history) if asked else (0, 0, SKIPPED)
            # A step that does not fit before the last one has settled waits for it.
            ahead = foreseen - history if asynchronous and foreseen < limits.model else 0
            drafted, filler, accepted, overrun, reason = settle(
                sequence.ids, history, sequence.end, k, limits.model - ahead, asked, proposed, matched, reason
            )
            step += 1
            rows.append((i, step, drafted, accepted, overrun, reason, filler))
            foreseen = history + drafted + 1
            computed, new, emitted = history + drafted, history + accepted + 1, accepted + 1 - overrun
        if progress is not None:
            progress(1)
    columns = np.array(rows, np.int64).reshape(-1, 7).T
    return StepLog.of(len(requests), *columns)


def replay_none(requests: Requests, config: dict, limits: Limits, progress: Progress | None) -> StepLog:
    """No speculation: T - 1 steps that propose nothing (miss_reason "skipped": no proposer is asked)."""
    return walk(requests, 0, Limits(limits.model, NO_LIMIT), lambda sequence, history: (0, 0, SKIPPED), None, progress)
