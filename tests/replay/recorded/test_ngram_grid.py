"""Many settings over one index: every step log equals that of the setting alone."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import records, windows
from test_ngram import config
from upstream import FAR, logged, ngram, serve

from replay.recorded.engine import replay_ngram_grid, replay_recorded
from replay.requests import Requests
from schemas.errors import InputError

unhurried = settings(deadline=None, max_examples=200)


def assert_equal(a, b):
    for field in fields(a):
        assert np.array_equal(getattr(a, field.name), getattr(b, field.name)), field.name


@unhurried
@given(
    records=st.lists(records(), min_size=1, max_size=4),
    grid=st.lists(windows(), min_size=1, max_size=6),
    room=st.none() | st.integers(0, 25),
)
def test_every_setting_as_if_it_ran_alone(find, records, grid, room):
    """Alone: `ngram`'s own walk, and for one setting the oracle's."""
    requests = Requests.from_lists(*zip(*records, strict=True))
    longest = max(len(p) + len(o) for p, o, _ in records)
    limit = None if room is None else longest + room
    logs = list(replay_ngram_grid(requests, [config(*w) for w in grid], max_model_len=limit))
    assert len(logs) == len(grid)
    for w, log in zip(grid, logs, strict=True):
        assert_equal(log, replay_recorded(requests, config(*w), max_model_len=limit))
    for i, record in enumerate(records):
        expected = serve(*record, grid[0][2], ngram(find, *grid[0], limit or FAR), limit or FAR)
        assert logged(logs[0], i) == expected


@unhurried
@given(
    records=st.lists(records(), min_size=1, max_size=3),
    grid=st.lists(windows(), min_size=2, max_size=5),
    runner=st.sampled_from(["v1", "v2"]),
)
def test_both_methods_and_runners(records, grid, runner):
    requests = Requests.from_lists(*zip(*records, strict=True))
    configs = [config(*w) | {"method": m} for w in grid for m in ("ngram", "ngram_gpu")]
    logs = list(replay_ngram_grid(requests, configs, runner=runner))
    for one, log in zip(configs, logs, strict=True):
        assert_equal(log, replay_recorded(requests, one, runner=runner))


def test_real_sized_ids_and_long_windows():
    rng = np.random.default_rng(7)
    piece = rng.integers(2**31 - 60, 2**31, 400)
    text = np.concatenate([piece, piece[:200], rng.integers(0, 2**31, 90), piece[30:350], piece[:150]]).tolist()
    requests = Requests.from_lists([text[:500], text[:3], []], [text[500:], text[3:700], text[:300]])
    grid = [(1, 1, 1), (2, 2, 9), (1, 12, 5), (3, 40, 60), (40, 400, 7), (2, 4, 32767)]
    for w, log in zip(grid, replay_ngram_grid(requests, [config(*w) for w in grid]), strict=True):
        assert_equal(log, replay_recorded(requests, config(*w)))
    for w, log in zip(grid, replay_ngram_grid(requests, [config(*w) for w in grid], runner="v2"), strict=True):
        assert_equal(log, replay_recorded(requests, config(*w), runner="v2"))


def test_what_is_refused_before_anything_is_computed():
    requests = Requests.from_lists([[1]], [[2, 3]])
    with pytest.raises(InputError, match="no method 'suffix'"):
        replay_ngram_grid(requests, [{"method": "suffix"}])
    with pytest.raises(InputError, match="prompt_lookup_max = 131072 is above 131071"):
        replay_ngram_grid(requests, [config(2, 131072, 3)])
    with pytest.raises(InputError, match="more than max_model_len = 2"):
        replay_ngram_grid(requests, [config(2, 3, 3)], max_model_len=2)
    assert list(replay_ngram_grid(requests, [])) == []
