"""The accounting shared by all proposers: the record's end, the tail, limits and placeholders."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import records, windows
from upstream import logged

from replay.recorded.engine import replay_recorded
from replay.recorded.walk import NO_MATCH, PROPOSED, Limits, settle, walk
from replay.requests import Requests
from schemas.tables import MISS_REASONS

FAR = 10**6


def replayed(records, config, **options):
    return replay_recorded(Requests.from_lists(*zip(*records, strict=True)), config, **options)


def lookup(min_n, max_n, k):
    return {"method": "ngram", "prompt_lookup_min": min_n, "prompt_lookup_max": max_n, "num_speculative_tokens": k}


def reasons(log):
    return [MISS_REASONS[code] for code in log.miss_reason]


# --- one step

RECORD = np.array([1, 2, 3, 4, 5, 6, 7, 8], np.int32)


@pytest.mark.parametrize(
    ("end", "known", "proposed", "matched", "row"),
    [
        (8, 8, 3, 2, (3, 0, 2, 0)),  # plain: two of three
        (5, 5, 3, 1, (3, 0, 1, 1)),  # one token left, accepted: the bonus token is cut
        (5, 8, 3, 3, (3, 0, 3, 3)),  # the tail tells what was accepted past the end
        (5, 6, 3, 2, (3, 0, 2, 2)),  # a short tail cuts it
        (8, 8, 0, 0, (0, 0, 0, 0)),
    ],
)
def test_the_end_of_the_record(end, known, proposed, matched, row):
    assert settle(RECORD[:known], 4, end, 3, FAR, True, proposed, matched, NO_MATCH)[:4] == row


def test_placeholders_are_accepted_where_the_record_holds_zeros():
    ids = np.array([1, 2, 0, 0, 5, 6], np.int32)
    drafted, filler, accepted, overrun, reason = settle(ids, 2, 6, 5, 20, False, 0, 0, NO_MATCH)
    assert (drafted, filler, accepted, overrun, MISS_REASONS[reason]) == (5, 5, 2, 0, "skipped")
    assert settle(ids, 2, 6, 5, 6, False, 0, 0, NO_MATCH)[:3] == (3, 3, 2)  # cut to max_model_len - length - 1
    assert MISS_REASONS[settle(ids, 5, 6, 5, 6, False, 0, 0, NO_MATCH)[4]] == "length_limit"


# --- faults that tools of this kind have had


def test_nothing_after_the_first_mismatch_counts():
    """Proposals [5, 9, 7] against [4, 9, 7] accept none, [4, 8, 7] one."""
    prompt = [1, 2, 5, 9, 7, 3, 1]
    log = replayed([(prompt, [2, 4, 9, 7], [])], lookup(2, 2, 3))
    assert logged(log)[0] == (3, 0, 0, 1)
    log = replayed([([1, 2, 4, 8, 7, 3, 1], [2, 4, 9, 7], [])], lookup(2, 2, 3))
    assert logged(log)[0] == (3, 0, 1, 2)


def test_a_record_of_two_tokens_puts_out_one():
    log = replayed([([1, 2, 3, 4, 5, 1], [2, 3], [])], lookup(2, 4, 3))
    assert logged(log) == [(3, 0, 1, 1)]
    assert log.overrun.tolist() == [1]


def test_no_end_token_is_needed():
    log = replayed([([3, 1, 3], [1, 3, 1, 3], [])], lookup(1, 2, 2))
    assert int(log.emitted.sum()) == 3


def test_the_scheduler_keeps_room_for_the_bonus_token():
    """At 97 tokens of 100 the lookup returns 3 candidates, 2 are verified; the step before fits exactly."""
    cycle = [1, 2, 3, 4] * 30
    log = replayed([(cycle[:95], cycle[95:100], [])], lookup(2, 4, 2), max_model_len=100)
    assert logged(log) == [(2, 0, 2, 3), (0, 0, 0, 1)]
    assert reasons(log) == [None, "length_limit"]
    log = replayed([(cycle[:94], cycle[94:100], [])], lookup(2, 4, 3), max_model_len=100)
    # 94 + 3 fit, then 98 + 3 do not: a step of three, and at 99 no room even for a placeholder
    assert logged(log) == [(3, 0, 3, 4), (0, 0, 0, 1)]
    # 97 + 4 do not fit: at 98 tokens one placeholder has room, and the record holds a zero there
    log = replayed([(list(range(100, 195)), [1, 2, 3, 0, 5], [])], lookup(2, 4, 4), max_model_len=100)
    assert logged(log) == [(0, 0, 0, 1), (0, 0, 0, 1), (1, 1, 1, 2)]
    assert reasons(log) == ["no_match", "no_match", "skipped"]


def test_why_nothing_was_proposed():
    log = replayed([([1], [2, 3, 4, 5, 6], [])], lookup(4, 5, 3))
    assert reasons(log) == ["too_short", "too_short", "no_match", "no_match"]
    assert reasons(replayed([([1, 2], [3, 4], [])], {})) == ["skipped"]


# --- identities


@settings(deadline=None, max_examples=300)
@given(records=st.lists(records(), min_size=1, max_size=3), windows=windows())
def test_identities_of_one_request(records, windows):
    log = replayed(records, lookup(*windows))
    counts = log.counts()
    for i, (_, output, _) in enumerate(records):
        s, r, d, c = (int(counts[name][i]) for name in ("steps", "rounds", "drafted", "accepted"))
        overrun, e = int(counts["overrun"][i]), int(counts["emitted"][i])
        assert 0 <= c <= d and r <= s and r <= d
        assert e == len(output) - 1 == s + c - overrun
        if s:
            beyond = Fraction(r, s) * Fraction(c, r) if r else 0
            assert Fraction(e, s) == 1 + beyond - Fraction(overrun, s)
        rows = log.request == i
        assert (log.accepted[rows] <= log.drafted[rows]).all() and (log.emitted[rows] >= 1).all()
        assert ((log.miss_reason[rows] == PROPOSED) == (log.drafted[rows] > 0)).all()
        at = [int((log.accepted[rows] >= j).sum()) for j in range(1, windows[2] + 2)]
        assert at == sorted(at, reverse=True) and at[-1] == 0


@settings(deadline=None, max_examples=100)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_an_empty_proposer(lengths):
    records = [([5], list(range(10, 10 + n)), []) for n in lengths]
    for config in ({}, lookup(99, 99, 4)):
        counts = replayed(records, config).counts()
        assert counts["steps"].tolist() == [max(n - 1, 0) for n in lengths]
        assert not any(counts[name].any() for name in ("rounds", "drafted", "accepted", "overrun"))


@settings(deadline=None, max_examples=200)
@given(output=st.integers(1, 60), k=st.integers(1, 9))
def test_a_perfect_proposer_whose_record_is_known_past_its_end(output, k):
    requests = Requests.from_lists([[1, 2]], [[3] * output], [[3] * (k + 1)])
    log = walk(requests, k, Limits(), lambda sequence, history: (k, k, PROPOSED))
    counts = log.counts()
    assert counts["steps"][0] == ceil((output - 1) / (k + 1)) == counts["rounds"][0]
    assert counts["accepted"][0] == k * counts["steps"][0]
