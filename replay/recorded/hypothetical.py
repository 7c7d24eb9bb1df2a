"""Combinations of proposers that no engine offers, along recorded ids: would they be worth building?

At a decode step the first of several proposers that proposes anything, or the one that proposes most. Floors on match
length and score, a length that follows acceptance, and a pause after rounds that accept nothing come on top. Limits
and accounting are those of one proposer in vLLM's V1 runner, with the longest k and the shortest limit of all; the
suffix trees take in every step, whoever proposed. What running several proposers costs is not known here.
"""

from collections.abc import Callable

from replay.recorded.walk import NO_MATCH, PROPOSED, SKIPPED, TOO_SHORT, Limits, Progress, Sequence, walk
from replay.requests import Requests
from replay.steps import StepLog
from schemas.errors import InputError

Look = Callable[[Sequence, int], tuple[int, int, int]]
Ingest = Callable[[Sequence, int, int], None]


def replay_hypothetical(
    requests: Requests,
    config: dict,
    limits: Limits,
    progress: Progress | None,
    dtype: str = "float32",
    target: str | None = None,
) -> StepLog:
    """Replay with a combination of proposers.

    Args:
        requests: with recorded outputs, in serving order.
        config: effective settings of method "hypothetical" (`schemas.speculative`).
        limits: see `walk.Limits`; a draft model's own maximal length narrows `drafter`.
        progress: told of each request done.
        dtype: what draft models compute in.
        target: folder of the target, for a draft with another vocabulary.

    Raises:
        EnvironmentProblem: a package that a proposer needs is not installed.
        InputError: an n-gram window too long for the index; a draft model cannot be loaded, or not for these ids.
    """
    looks: list[Look] = []
    ingests: list[Ingest] = []
    for member in config["of"]:
        if member["method"] == "ngram":
            looks.append(_ngram(requests, member, limits, config["min_match_length"]))
        elif member["method"] == "suffix":
            look, ingest = _suffix(requests, member, limits, config["min_match_length"], config["min_score"])
            looks.append(look)
            ingests.append(ingest)
        elif member["method"] == "draft_model":
            from replay.recorded.draft_model import draft_look

            look, limits = draft_look(requests, member, limits, None, dtype, target)
            looks.append(look)

    def ingest_all(sequence: Sequence, old: int, new: int) -> None:
        for ingest in ingests:
            ingest(sequence, old, new)

    k = config["num_speculative_tokens"]
    look = _adapted(_combined(looks, config["combine"]), k, config["adaptive"], config["cool_down"])
    return walk(requests, k, limits, look, ingest_all, progress)


def _combined(looks: list[Look], combine: str) -> Look:
    def look(sequence: Sequence, history: int) -> tuple[int, int, int]:
        best = 0, 0, SKIPPED
        for one in looks:
            answer = one(sequence, history)
            if answer[0] > best[0] or best[0] == 0:
                best = answer
            if combine == "first" and best[0]:
                break
        return best

    return look


def _adapted(look: Look, k: int, adaptive: bool, cool_down: int) -> Look:
    """`look` with a length that follows acceptance and a pause after rounds that accept nothing.

    Both start afresh with every request. The length: two more candidates after a round that accepted all of them, one
    fewer after any other, from 1 to k, as transformers' "heuristic" schedule has it.
    """
    request, length, wait = -1, k, 0

    def adapted(sequence: Sequence, history: int) -> tuple[int, int, int]:
        nonlocal request, length, wait
        if sequence.index != request:
            request, length, wait = sequence.index, k, 0
        if wait:
            wait -= 1
            return 0, 0, SKIPPED
        proposed, matched, reason = look(sequence, history)
        if proposed:
            proposed = min(proposed, length) if adaptive else proposed
            matched = min(matched, proposed)
            length = min(k, length + 2) if matched == proposed else max(1, length - 1)
            wait = cool_down if matched == 0 else 0
        return proposed, matched, reason

    return adapted


def _ngram(requests: Requests, config: dict, limits: Limits, shortest: int) -> Look:
    """N-gram lookup by the V1 rule; a floor on the match is what prompt_lookup_min is."""
    from replay.recorded.ngram_index import LONGEST_WINDOW, agreement, distance, index, window

    least, top, k = (config[key] for key in ("prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens"))
    least = max(shortest, least)
    if top > LONGEST_WINDOW:
        raise InputError(f"prompt_lookup_max = {top} is above {LONGEST_WINDOW}")
    if least > top:
        return lambda sequence, history: (0, 0, NO_MATCH)
    (entries,) = index(requests, [top], base=1 if least == 1 or top == 1 else 2, last=False, depth=k)

    def look(sequence: Sequence, history: int) -> tuple[int, int, int]:
        if history < least:
            return 0, 0, TOO_SHORT
        entry = int(entries[requests.outputs.offsets[sequence.index] + history - sequence.start])
        most = min(k, limits.model - history)
        if most <= 0 or window(entry) < least:
            return 0, 0, NO_MATCH
        proposed = min(most, distance(entry))
        return proposed, min(proposed, agreement(entry)), PROPOSED

    return look


def _suffix(requests: Requests, config: dict, limits: Limits, shortest: int, least: float) -> tuple[Look, Ingest]:
    """Suffix decoding, as vLLM drives it with one sequence at a time."""
    from replay.recorded.suffix_look import suffix_look

    find, ingest = suffix_look(requests, config, limits.model)

    def look(sequence: Sequence, history: int) -> tuple[int, int, int]:
        proposed, matched, context, score = find(sequence, history)
        if not proposed or context < shortest or score < least:
            return 0, 0, NO_MATCH
        return proposed, matched, PROPOSED

    return look, ingest
