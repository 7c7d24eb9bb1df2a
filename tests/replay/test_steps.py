"""The step log's counts: worked cases 2 to 4 of the metrics, filler, steps that were never verified."""

from fractions import Fraction

import numpy as np
import pytest

from replay.steps import NOT_VERIFIED, StepLog
from schemas.tables import DECODE_STEPS, MISS_REASONS

NO_MATCH, SKIPPED = MISS_REASONS.index("no_match"), MISS_REASONS.index("skipped")


def log_of(*steps, overrun=0):
    """One request from (drafted, filler, accepted) per step; `overrun` is the last step's."""
    drafted, filler, accepted = zip(*steps, strict=True)
    n = len(steps)
    reason = [0 if d > f else SKIPPED if d else NO_MATCH for d, f, _ in steps]
    cut = [0] * (n - 1) + [overrun]
    return StepLog.of(1, [0] * n, range(1, n + 1), drafted, accepted, cut, reason, filler)


def counts_of(log):
    return {name: int(values[0]) for name, values in log.counts().items()}


def test_worked_case_2():
    n = counts_of(log_of((4, 0, 2), (0, 0, 0), (4, 0, 4)))
    assert [n[k] for k in ("steps", "rounds", "drafted", "accepted", "emitted")] == [3, 2, 8, 6, 9]
    assert Fraction(n["accepted"], n["drafted"]) == Fraction(3, 4)
    assert 1 + Fraction(n["accepted"], n["rounds"]) == 4
    assert Fraction(n["rounds"], n["steps"]) == Fraction(2, 3)
    assert Fraction(n["emitted"], n["steps"]) == 3


def test_worked_case_3():
    log = log_of((1, 0, 1), (4, 0, 0))
    n = counts_of(log)
    assert Fraction(n["accepted"], n["drafted"]) == Fraction(1, 5)
    assert 1 + Fraction(n["accepted"], n["rounds"]) == Fraction(3, 2)
    assert 1 + int(log.drafted.max()) * Fraction(n["accepted"], n["drafted"]) == Fraction(9, 5)  # the conversion trap
    at = 2
    assert int((log.drafted >= at).sum()) == 1
    assert int(((log.drafted >= at) & (log.accepted >= at - 1)).sum()) == 0
    assert int((log.accepted >= at).sum()) == 0


def test_worked_case_4():
    n = counts_of(log_of((4, 4, 2), (4, 1, 3), (4, 4, 0), (4, 0, 4)))
    assert [n[k] for k in ("steps", "rounds", "drafted", "accepted", "emitted")] == [4, 2, 7, 7, 13]
    assert Fraction(n["rounds"], n["steps"]) == Fraction(1, 2)
    assert 1 + Fraction(n["accepted"], n["rounds"]) == Fraction(9, 2)
    assert [n[k] for k in ("engine_rounds", "engine_drafted", "engine_accepted")] == [4, 16, 9]


def test_accepted_filler_puts_out_tokens_but_is_no_acceptance():
    n = counts_of(log_of((3, 2, 3), overrun=1))
    assert (n["drafted"], n["accepted"], n["emitted"], n["engine_accepted"]) == (1, 1, 3, 3)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_steps_never_verified_are_counted_apart(at):
    """A step that was scheduled and put out nothing: never accepted = -1 in a sum, wherever it stands."""
    steps = [(4, 0, 2), (2, 0, 1)]
    steps.insert(at, (4, 0, NOT_VERIFIED))
    log = log_of(*steps)
    n = counts_of(log)
    assert [n[k] for k in ("steps", "rounds", "drafted", "accepted", "emitted", "unverified")] == [2, 2, 6, 3, 5, 1]
    assert (n["engine_drafted"], n["engine_accepted"]) == (6, 3)
    assert log.emitted[at] == 0
    assert log.table("p", 1).column("accepted").to_pylist()[at] is None


def test_a_request_that_was_only_cancelled():
    n = counts_of(log_of((4, 0, NOT_VERIFIED)))
    assert n["unverified"] == 1 and not any(v for k, v in n.items() if k != "unverified")


def test_requests_without_steps_have_zero_counts():
    log = StepLog.of(3, [1], [1], [2], [1], [0], [0], prefill_filler=[0, 0, 5])
    counts = log.counts()
    assert counts["steps"].tolist() == [0, 1, 0]
    assert counts["prefill_filler"].tolist() == [0, 0, 5]
    assert all(values.dtype == np.int32 and len(values) == 3 for values in counts.values())


def test_table():
    log = StepLog.of(2, [0, 0, 1], [1, 2, 1], [3, 0, 2], [1, 0, 2], [0, 0, 1], [0, NO_MATCH, 0], engine_step=[4, 5, -1])
    table = log.table("lookup", 8, first_request=10)
    assert table.schema.equals(DECODE_STEPS)
    table.validate(full=True)
    assert table.column("request").to_pylist() == [10, 10, 11]
    assert table.column("miss_reason").to_pylist() == [None, "no_match", None]
    assert table.column("engine_step").to_pylist() == [4, 5, None]
    assert set(table.column("proposer").to_pylist()) == {"lookup"}
    assert set(table.column("concurrency").to_pylist()) == {8}


def test_an_empty_log():
    log = StepLog.of(2, *[[]] * 6)
    assert len(log) == 0 and log.counts()["steps"].tolist() == [0, 0]
    assert log.table("p", 1).num_rows == 0
