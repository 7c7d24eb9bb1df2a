"""What a lookup that fills up found, from a live run's rows: against a slow transcription of vLLM's kernels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequences import records, windows
from test_ngram_padded import config, kernels, serve

from replay.live.lookup import fills_up, found
from replay.live.record import ROW_FIELDS
from replay.live.steplog import Lengths, Rules, step_log
from replay.requests import Tokens
from schemas.tables import MISS_REASONS


def rows_of(every):
    """The recorder's rows of requests served one after the other: (drafted, sampled) per iteration of each."""
    rows = []
    for slot, steps in enumerate(every):
        for drafted, sampled in steps:
            row = {
                "iteration": len(rows),
                "slot": slot,
                "drafted": drafted,
                "sampled": sampled,
                "scheduled": drafted + 1,
            }
            rows.append([row.get(name, 0) for name in ROW_FIELDS])
    return np.array(rows, np.int32).reshape(-1, len(ROW_FIELDS))


@given(records=st.lists(records(), min_size=1, max_size=4), windows=windows(), room=st.integers(0, 25))
def test_filler_is_what_the_kernels_put_behind_what_they_found(records, windows, room):
    """The engine's side is `serve`: vLLM's scheduler with the kernels as its proposer, which knows the filler."""
    k = windows[2]
    limit = max(len(prompt) + len(output) for prompt, output, _ in records) + room
    served = [serve(*record, k, lambda tokens: kernels(tokens, *windows), limit) for record in records]
    rows = rows_of([[(0, 1), *((drafted, accepted + 1) for drafted, _, accepted, _ in steps)] for steps in served])
    prompts, outputs = (Tokens.of([record[i] for record in records]) for i in (0, 1))
    looked_up = found(rows, prompts, outputs, config(*windows), "v2")
    size = Lengths(prompts.lengths, outputs.lengths, np.zeros(len(records), np.int64))
    log = step_log(rows, np.full(len(rows), k), size, Rules(limit, windows[0]), looked_up)
    expected = [(i, *step) for i, steps in enumerate(served) for step in steps]
    columns = log.request, log.drafted, log.filler, log.accepted, log.emitted
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    nothing = {MISS_REASONS[code] for code in log.miss_reason[log.drafted == log.filler]}
    assert nothing <= {"no_match", "too_short", "length_limit"}


def test_the_first_match_under_v1_and_the_last_under_v2():
    prompts, outputs = Tokens.of([[7, 8, 1, 2, 7, 8, 3, 7]]), Tokens.of([[8, 5, 6]])
    rows = rows_of([[(0, 1), (4, 2)]])
    for runner, tokens in (("v1", 4), ("v2", 3)):  # [1, 2, 7, 8, …] and [3, 7, 8]
        assert found(rows, prompts, outputs, config(2, 4, 4, "ngram_gpu"), runner).tolist() == [0, tokens]


def test_rows_past_the_end_and_outputs_of_one_token_are_not_looked_up():
    prompts, outputs = Tokens.of([[5, 5, 5], [5, 5, 5]]), Tokens.of([[5, 5], [5]])
    rows = rows_of([[(0, 1), (2, 3), (2, 3)], [(0, 1)]])
    assert found(rows, prompts, outputs, config(1, 2, 2), "v2").tolist() == [0, 1, 0, 0]
    assert found(rows[:0], Tokens.of([]), Tokens.of([]), config(1, 2, 2), "v2").tolist() == []


@pytest.mark.parametrize(
    ("method", "runner", "expected"),
    [("ngram", "v1", False), ("ngram", "v2", True), ("ngram_gpu", "v1", True), ("ngram_gpu", "v2", True)],
)
def test_which_lookups_fill_up(method, runner, expected):
    assert fills_up(config(2, 4, 3, method), runner) is expected
    assert not fills_up({"method": "none"}, runner)
