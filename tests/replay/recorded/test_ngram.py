"""N-gram lookup against vLLM's own function: every proposal token for token, every step of every walk."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sequences import ids, records, windows
from upstream import FAR, logged, ngram, serve

from replay.recorded.engine import replay_recorded
from replay.recorded.ngram import propose, replay_with_sources
from replay.recorded.walk import Limits
from replay.requests import Requests
from schemas.speculative import effective

unhurried = settings(deadline=None, max_examples=300)


def config(min_n, max_n, k):
    return effective(
        {"method": "ngram", "prompt_lookup_min": min_n, "prompt_lookup_max": max_n, "num_speculative_tokens": k}
    )


@pytest.mark.parametrize(
    ("history", "windows", "limit", "candidates"),
    [
        # metrics, worked case 1
        ([10, 11, 12, 20, 21, 99, 10, 11, 12], (2, 4, 3), None, [20, 21, 99]),
        ([10, 11, 12, 20, 21, 99, 10, 11, 12], (4, 4, 3), None, []),
        ([7, 8, 1, 7, 8, 2, 7, 8], (2, 4, 3), None, [1, 7, 8]),
        ([1, 2, 3, 4, 5], (2, 4, 3), None, []),
        # the maximum counts, not the minimum alone
        ([3, 4, 60, 1, 2, 3, 4, 50, 1, 2, 3, 4], (2, 4, 3), None, [50, 1, 2]),
        ([3, 4, 60, 1, 2, 3, 4, 50, 1, 2, 3, 4], (2, 2, 3), None, [60, 1, 2]),
        ([1, 2, 9, 1, 2, 8, 1, 2], (2, 2, 2), None, [9, 1]),
        ([5, 5, 5, 5], (2, 4, 5), None, [5]),
        # nothing past max_model_len
        ([1, 2, 3, 4] * 24 + [1], (2, 4, 8), 100, [2, 3, 4]),
        ([1, 2, 3, 4] * 24 + [1, 2, 3], (2, 4, 8), 100, [4]),
        ([1, 2, 3, 4] * 25, (2, 4, 8), 100, []),
        ([], (1, 1, 1), None, []),
    ],
)
def test_worked_cases(find, history, windows, limit, candidates):
    assert propose(history, config(*windows), limit).tolist() == candidates
    assert ngram(find, *windows, limit or FAR)(history, []) == candidates


@unhurried
@given(history=ids(min_size=0), windows=windows(), room=st.none() | st.integers(0, 4))
def test_every_proposal_is_the_functions(find, history, windows, room):
    limit = None if room is None else len(history) + room
    assert propose(history, config(*windows), limit).tolist() == ngram(find, *windows, limit or FAR)(history, [])


def test_real_sized_ids_and_windows_beyond_what_fits_a_packed_key(find):
    rng = np.random.default_rng(5)
    piece = rng.integers(2**31 - 40, 2**31, 300)
    history = np.concatenate([piece, piece[:150], rng.integers(2**31 - 9, 2**31, 50), piece[20:90]]).astype(np.int32)
    for min_n, max_n in [(1, 1), (1, 12), (3, 40), (40, 400), (2, 2), (400, 900)]:
        for end in range(1, len(history), 7):
            expected = ngram(find, min_n, max_n, 6)(history[:end], [])
            assert propose(history[:end], config(min_n, max_n, 6)).tolist() == expected


@unhurried
@given(records=st.lists(records(), min_size=1, max_size=4), windows=windows())
def test_walk_without_limit(find, records, windows):
    requests = Requests.from_lists(*zip(*records, strict=True))
    log, sources = replay_with_sources(requests, config(*windows), Limits())
    assert_serves(find, records, windows, log, FAR)
    for i, (prompt, output, _) in enumerate(records):
        rows = log.request == i
        history = len(prompt) + 1
        whole = prompt + output
        for drafted, source, emitted in zip(log.drafted[rows], sources[rows], log.emitted[rows], strict=True):
            expected = ngram(find, *windows)(whole[:history], [])
            assert (whole[source : source + drafted] if source >= 0 else []) == expected
            history += emitted


@unhurried
@given(record=records(), windows=windows(), room=st.integers(0, 25))
@example(record=([1, 2, 3, 1], [2, 3, 1, 0, 0, 0, 0, 2], []), windows=(2, 3, 3), room=0)
def test_walk_to_the_limit(find, record, windows, room):
    limit = len(record[0]) + len(record[1]) + room
    requests = Requests.from_lists(*zip(record, strict=True))
    log = replay_recorded(requests, config(*windows), max_model_len=limit)
    assert_serves(find, [record], windows, log, limit)


def assert_serves(find, records, windows, log, limit):
    for i, record in enumerate(records):
        assert logged(log, i) == serve(*record, windows[2], ngram(find, *windows, limit), limit)


def test_an_agents_session_of_many_requests(find):
    """Long histories that grow by copies and edits: the table is shared by requests of very different lengths."""
    rng = np.random.default_rng(3)
    text, prompts, outputs, tails = rng.integers(0, 900, 400).tolist(), [], [], []
    for turn in range(12):
        at = int(rng.integers(0, len(text) - 120))
        said = text[at : at + 120]
        for place in rng.integers(0, 120, 8):
            said[place] = int(rng.integers(0, 900))
        prompts.append(text if turn % 4 else text[-30:])
        outputs.append(said[:110])
        tails.append(said[110:] if turn % 2 else [])
        text = text + said
    log = replay_recorded(Requests.from_lists(prompts, outputs, tails), config(2, 4, 5))
    assert int(log.counts()["rounds"].sum()) > 150
    assert_serves(find, list(zip(prompts, outputs, tails, strict=True)), (2, 4, 5), log, FAR)


def test_progress_counts_every_request_once():
    requests = Requests.from_lists([[1, 2]] * 30, [[3, 4]] * 29 + [[]])
    done = []
    replay_recorded(requests, config(2, 4, 5), progress=done.append)
    assert sum(done) == 30
