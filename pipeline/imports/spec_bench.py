"""Spec-Bench answer files, and those of its forks: a row per question, counts per choice.

Written by `get_model_answers` in hemingkx/Spec-Bench, evaluation/eval.py: `decoding_steps` (`idxs` in its older EAGLE
script), `new_tokens` and `wall_time` (s) hold one number per turn, `accept_lengths` one per decoding step, over all
turns in one list. A length counts the target's own token too: accepted = length - 1. `model_id` names the proposer.
hemingkx/SWIFT, evaluation_llama/eval.py, names no question and ends with a row of means, which is passed over.

What a step proposed is not in these files: R, D, coverage, acceptance rate and mean acceptance length stay unknown.
Whether the first step of a turn is the prefill's differs by method and is not logged: S is at most one per turn too
high (and is T - 1 where that is less, for a decode step puts out a token).
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from pipeline.imports.counted import Counted, microseconds, whole, wholes
from pipeline.ingest.generation import RowRefused
from schemas.tables import NO_GROUP

_FAILED = "ERROR"  # what eval.py writes for an answer; its numbers are then those of the turn before

_MEANS = "Mean accepted tokens"


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is an answer with counts, or a row of means."""
    if _MEANS in record:
        return True
    choices = record.get("choices")
    return isinstance(choices, list) and any(isinstance(c, dict) and "accept_lengths" in c for c in choices)


def counted(record: dict[str, Any], row: int) -> Iterator[Counted]:
    """The turns of one row, one output each; those whose answer is ERROR are left out. `row`: its name if it has none.

    Raises:
        RowRefused: a count is missing, or they contradict each other.
    """
    if _MEANS in record:
        return
    model, question = record.get("model_id"), record.get("question_id", row)
    category = record.get("category")
    if not isinstance(model, str) or not model:
        raise RowRefused("model_id", "must be a text: it names the proposer")
    if not isinstance(question, str | int) or isinstance(question, bool):
        raise RowRefused("question_id", "must be a number or a text")
    for place, choice in enumerate(record["choices"]):
        where = f"choices[{place}]"
        if not isinstance(choice, dict):
            raise RowRefused(where, "must be an object")
        said = choice.get("turns")
        times = choice.get("wall_time")
        for turn, (tokens, lengths) in enumerate(_turns(choice, where)):
            if isinstance(said, list) and turn < len(said) and said[turn] == _FAILED:
                continue
            time = times[turn] if isinstance(times, list) and turn < len(times) else None
            yield Counted(
                request_id=f"{question}/{place}/{turn}",
                output_tokens=tokens,
                proposer=model,
                session_id=f"{question}/{place}",
                turn=turn,
                workload=category if isinstance(category, str) and category else NO_GROUP,
                steps=min(len(lengths), max(tokens - 1, 0)),
                accepted=sum(lengths) - len(lengths),
                finished_us=microseconds(time, 1e6),
            )


def _turns(choice: dict[str, Any], where: str) -> list[tuple[int, list[int]]]:
    """(T, lengths) of each turn."""
    tokens = wholes(choice.get("new_tokens"), f"{where}.new_tokens")
    lengths = wholes(choice.get("accept_lengths"), f"{where}.accept_lengths")
    if 0 in lengths:
        raise RowRefused(
            f"{where}.accept_lengths", "holds a 0: each must count the target's own token too, so 1 at least"
        )
    for ends in _ends(choice, where, tokens, lengths):
        parts = [lengths[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        if ends[-1:] == [len(lengths)] and all(n <= sum(part) + 1 for n, part in zip(tokens, parts, strict=True)):
            return list(zip(tokens, parts, strict=True))
    raise RowRefused(
        f"{where}.accept_lengths",
        f"{len(lengths)} steps of {sum(lengths)} tokens do not make {len(tokens)} turns of {sum(tokens)} tokens",
    )


def _ends(choice: dict[str, Any], where: str, tokens: list[int], lengths: list[int]) -> Iterator[list[int]]:
    """Where each turn may end in `lengths`: by its tokens, by its steps, or by its last step's index."""
    if not tokens:
        return
    if len(tokens) == 1:
        yield [len(lengths)]
    reached = {total: place for place, total in enumerate(accumulate(lengths), 1)} | {0: 0}
    if all(total in reached for total in accumulate(tokens)):
        yield [reached[total] for total in accumulate(tokens)]
    steps = choice.get("decoding_steps", choice.get("idxs"))
    if isinstance(steps, list) and len(steps) == len(tokens):
        steps = [whole(step, f"{where}.decoding_steps") for step in steps]
        yield list(accumulate(steps))
        yield list(accumulate(step + 1 for step in steps))
