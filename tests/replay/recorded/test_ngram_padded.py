"""The rules that fill up to k, against a slow transcription of vLLM's kernels and of its scheduler's arithmetic."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import ids, records, windows
from upstream import FAR, logged

from replay.recorded.engine import replay_recorded
from replay.recorded.ngram_padded import propose
from replay.requests import Requests
from schemas.errors import InputError
from schemas.speculative import effective

unhurried = settings(deadline=None, max_examples=200)


def config(min_n, max_n, k, method="ngram"):
    return effective(
        {"method": method, "prompt_lookup_min": min_n, "prompt_lookup_max": max_n, "num_speculative_tokens": k}
    )


def kernels(tokens, min_n, max_n, k):
    """_ngram_scan_kernel and _ngram_finalize_kernel for one row: `(k ids, how many are no filler)`."""
    row, seq_len, l_plus_1 = list(tokens), len(tokens), FAR + 1
    score = 0
    if seq_len >= min_n:
        for n in range(min_n, max_n + 1):
            for pos in range(seq_len - n):
                if row[pos : pos + n] == row[seq_len - n :]:
                    score = max(score, n * l_plus_1 + pos + 1)
    if score == 0:
        return [row[-1]] * k, 0
    best_n, best_pos = divmod(score - 1, l_plus_1)
    real = row[best_pos + best_n :][:k]
    return real + [row[-1]] * (k - len(real)), len(real)


def serve(prompt, output, tail, k, rule, limit=FAR, depth=1):
    """One request through vLLM's scheduler (v1/core/sched), with `depth` batches in flight: 2 = AsyncScheduler.

    Names are the scheduler's. The worker runs a step when it is scheduled; the scheduler hears of it `depth` - 1 steps
    later. Returns (drafted, filler, accepted, emitted) per decode step.
    """
    record, end = [*prompt, *output, *tail], len(prompt) + len(output)
    num_tokens, num_computed, placeholders, spec = len(prompt), 0, 0, 0
    total_len, drafts = len(prompt), ([], 0)  # the worker's
    in_flight, steps = [], []
    while num_tokens < end:
        new = min(num_tokens + spec + placeholders - num_computed, limit - num_computed - 1)
        if total_len < end and len(in_flight) < depth and new > 0:
            scheduled = max(0, min(spec, new + num_computed - num_tokens - placeholders))
            num_computed += new
            candidates, real = drafts
            accepted = 0
            while accepted < scheduled and [candidates[accepted]] == record[total_len + accepted :][:1]:
                accepted += 1
            in_flight.append((scheduled, scheduled - min(scheduled, real), accepted, total_len > len(prompt)))
            total_len += accepted + 1
            drafts = rule(record[:total_len])
            spec = 0
            if depth == 2:
                placeholders, spec = placeholders + 1 + scheduled, k
            if len(in_flight) < depth:
                continue
        scheduled, filler, accepted, decode = in_flight.pop(0)
        num_computed -= scheduled - accepted
        emitted = min(accepted + 1, end - num_tokens)
        num_tokens += emitted
        if depth == 2:
            placeholders -= scheduled + 1
        else:
            spec = k
        if decode:
            steps.append((scheduled, filler, accepted, emitted))
    return steps


@pytest.mark.parametrize(
    ("history", "windows", "candidates", "filler"),
    [
        ([10, 11, 12, 20, 21, 99, 10, 11, 12], (2, 4, 3), [20, 21, 99], 0),
        ([7, 8, 1, 7, 8, 2, 7, 8], (2, 4, 3), [2, 7, 8], 0),  # the last match; V1 takes the first, [1, 7, 8]
        ([7, 8, 1, 7, 8, 2, 7, 8], (2, 4, 5), [2, 7, 8, 8, 8], 2),  # runs into the end
        ([1, 2, 3, 4, 5], (2, 4, 3), [5, 5, 5], 3),
        ([5, 5, 5, 5], (2, 4, 3), [5, 5, 5], 2),  # window 3 at distance 1
        ([9, 1, 2, 3, 8, 2, 3, 7, 1, 2, 3], (2, 3, 2), [8, 2], 0),  # a longer window before a later one
        ([9], (1, 1, 2), [9, 9], 2),
    ],
)
def test_worked_cases(history, windows, candidates, filler):
    assert kernels(history, *windows) == (candidates, len(candidates) - filler)
    ids, padding = propose(history, config(*windows))
    assert (ids.tolist(), padding) == (candidates, filler)


@unhurried
@given(history=ids(), windows=windows())
def test_every_proposal_is_the_kernels(history, windows):
    ids, filler = propose(history, config(*windows))
    assert (ids.tolist(), windows[2] - filler) == kernels(history, *windows)


@unhurried
@given(records=st.lists(records(), min_size=1, max_size=4), windows=windows())
def test_walk_without_limit(records, windows):
    requests = Requests.from_lists(*zip(*records, strict=True))
    for method, depth in (("ngram", 1), ("ngram_gpu", 2)):
        log = replay_recorded(requests, config(*windows, method), runner="v2")
        for i, record in enumerate(records):
            assert logged(log, i) == serve(*record, windows[2], lambda tokens: kernels(tokens, *windows), depth=depth)


@unhurried
@given(record=records(), windows=windows(), room=st.integers(0, 25), method=st.sampled_from(["ngram", "ngram_gpu"]))
def test_walk_to_the_limit(record, windows, room, method):
    limit = len(record[0]) + len(record[1]) + room
    requests = Requests.from_lists(*zip(record, strict=True))
    log = replay_recorded(requests, config(*windows, method), runner="v2", max_model_len=limit)
    depth = 2 if method == "ngram_gpu" else 1
    assert logged(log) == serve(*record, windows[2], lambda tokens: kernels(tokens, *windows), limit, depth)


def test_filler_that_is_accepted_counts_for_the_engine_and_for_tokens_put_out_alone():
    requests = Requests.from_lists([[1, 2, 3]], [[4, 9, 9, 9, 9, 9, 9, 5]])
    log = replay_recorded(requests, config(2, 4, 3), runner="v2")
    assert logged(log) == [(3, 3, 0, 1), (3, 3, 3, 4), (3, 2, 1, 2)]
    counts = {name: int(values[0]) for name, values in log.counts().items()}
    assert counts["rounds"] == 1 and counts["drafted"] == 1 and counts["accepted"] == 1
    assert counts["engine_rounds"] == 3 and counts["engine_drafted"] == 9 and counts["engine_accepted"] == 4
    assert counts["emitted"] == 7 == counts["steps"] + counts["engine_accepted"] - counts["overrun"]


def test_ngram_gpu_on_v1_is_not_followed_to_the_limit():
    requests = Requests.from_lists([[1, 2, 3]], [[4, 5]])
    with pytest.raises(InputError, match=r"max_model_len = 14.*at least 15 or none"):
        replay_recorded(requests, config(2, 4, 3, "ngram_gpu"), max_model_len=14)
    assert len(replay_recorded(requests, config(2, 4, 3, "ngram_gpu"), max_model_len=15)) == 1
