"""The compiled suffix engine against vLLM's own proposer over arctic-inference's cache.

Every round: the same ids, the same score down to the last bit of its float32, and the same row in the step log.
"""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import ids, records
from upstream import FAR, Suffix, logged, serve

from replay.recorded import suffix_tree
from replay.recorded.compiled import cached_njit
from replay.recorded.suffix_walk import Setting, SuffixCache, proposals, shares_trees, walk_settings, walk_suffix
from replay.requests import Requests

DEPTHS = [1, 2, 3, 16, 24, 64]
CACHED = [0, 1, 2, 3, 10000]
DEFAULT = Setting()

settings_ = st.builds(
    Setting,
    st.sampled_from([1, 2, 8, 24, 100]),
    st.sampled_from([0.0, 0.3, 1.0, 1.0, 1.7, 4.0, 1e10]),
    st.sampled_from([0.0, 0.1, 0.1, 0.5, 1.0]),
)


def upstream(requests, setting, depth, cached, limit):
    """Per request: its decode steps, and (ids, score) of every call of `speculate`; vLLM's own classes."""
    pytest.importorskip("vllm.v1.spec_decode.suffix_decoding", reason="the oracle is vLLM itself")
    suffix = Suffix(
        {
            "num_speculative_tokens": setting.num_speculative_tokens,
            "suffix_decoding_max_tree_depth": depth,
            "suffix_decoding_max_cached_requests": cached,
            "suffix_decoding_max_spec_factor": setting.max_spec_factor,
            "suffix_decoding_min_token_prob": setting.min_token_prob,
        },
        limit,
    )
    cache, drafts = suffix.proposer.suffix_cache, []
    speculate = cache.speculate

    def listening(*args, **kwargs):
        draft = speculate(*args, **kwargs)
        drafts.append((draft.token_ids, np.float32(draft.score).tobytes()))
        return draft

    cache.speculate = listening
    for i in range(len(requests)):
        prompt, output, tail = (t[i].tolist() for t in (requests.prompts, requests.outputs, requests.tails))
        steps = serve(prompt, output, tail, suffix.k, suffix.of(str(i), prompt), limit) if output else []
        yield steps, drafts.copy()
        drafts.clear()


def assert_parity(requests, setting=DEFAULT, depth=24, cached=10000, limit=FAR):
    """Returns the rounds compared."""
    log, proposed, scores = proposals(requests, setting, SuffixCache(depth, cached), max_model_len=limit)
    mine = list(zip(proposed, (score.tobytes() for score in scores), strict=True))
    at = 0
    for i, (steps, drafts) in enumerate(upstream(requests, setting, depth, cached, limit)):
        assert logged(log, i) == steps
        asked = min(len(drafts), len(steps))  # the last call drafts past the end, for no step
        assert mine[at : at + asked] == drafts[:asked]
        at += asked
    assert at == len(mine)
    return at


def requests_of(records, base=0):
    shifted = [[[token + base for token in part] for part in record] for record in records]
    return Requests.from_lists(*zip(*shifted, strict=True))


@settings(deadline=None, max_examples=250)
@given(
    st.lists(records(), min_size=1, max_size=8), settings_, st.sampled_from(DEPTHS), st.sampled_from(CACHED),
    st.sampled_from([0, 0, 2**18 - 2, 2**31 - 8]),
)  # fmt: skip
def test_small_alphabets(records, setting, depth, cached, base):
    assert_parity(requests_of(records, base), setting, depth, cached)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(records(), min_size=1, max_size=5), settings_, st.sampled_from(DEPTHS), st.sampled_from(CACHED),
    st.integers(0, 60),
)  # fmt: skip
def test_up_to_the_limit(records, setting, depth, cached, room):
    assert_parity(requests_of(records), setting, depth, cached, max(len(p) + len(o) for p, o, _ in records) + room)


@st.composite
def sessions(draw):
    """Requests that begin with all of the one before, or with a part of it, or anew."""
    prompts, outputs = [draw(ids())], [draw(ids())]
    for _ in range(draw(st.integers(1, 12))):
        so_far = prompts[-1] + outputs[-1]
        kind = draw(st.sampled_from(["longer", "longer", "longer", "same", "shorter", "new"]))
        added = draw(ids(min_size=0, max_size=6))
        cut = draw(st.integers(1, len(so_far)))
        prompts.append({"longer": so_far + added, "same": so_far, "shorter": so_far[:cut], "new": [*added, 1]}[kind])
        outputs.append(draw(ids(min_size=0)))
    return Requests.from_lists(prompts, outputs)


@settings(deadline=None, max_examples=120)
@given(sessions(), settings_, st.sampled_from(DEPTHS), st.sampled_from(CACHED))
def test_sessions_that_grow_and_shrink(requests, setting, depth, cached):
    assert_parity(requests, setting, depth, cached)


def traffic(seed, requests, symbols, prompt, output):
    """Requests of text that comes back: pieces of a common pool, and of themselves."""
    draw = random.Random(seed)
    pool = [draw.randrange(symbols) for _ in range(2000)]

    def text(tokens):
        out = []
        while len(out) < tokens:
            source = draw.choice([pool, pool, out or pool])
            at = draw.randrange(len(source))
            out += source[at : at + draw.randrange(1, 40)]
            out += [draw.randrange(symbols) for _ in range(draw.randrange(4))]
        return out[:tokens]

    made = [(text(draw.randrange(1, prompt)), text(draw.randrange(1, output))) for _ in range(requests)]
    return Requests.from_lists(*zip(*made, strict=True))


@pytest.mark.parametrize(("symbols", "cached"), [(3, 10000), (20, 2), (500, 7), (5000, 10000)])
def test_longer_traffic(symbols, cached):
    rounds = assert_parity(traffic(symbols, 60, symbols, 600, 150), cached=cached)
    assert rounds > 1000


def test_eviction_gives_every_node_back():
    requests = traffic(1, 400, 6, 10, 60)
    old, new = SuffixCache(16, 3), SuffixCache(16, 3)
    walk_suffix(requests, [DEFAULT], old)
    walk_suffix(requests.take([397, 398, 399]), [DEFAULT], new)
    held, fresh = old.memory(), new.memory()
    assert (held.cached_requests, held.cached_tokens, held.evictions) == (3, fresh.cached_tokens, 397)
    # Nodes that two sequences shared stay as nodes when one of them goes, where a fresh tree has a lazy leaf.
    assert fresh.nodes <= held.nodes <= 16 * held.cached_tokens
    walk_suffix(Requests.from_lists([[1]] * 3, [[2]] * 3), [DEFAULT], old)
    assert (old.memory().nodes, old.memory().cached_tokens) == (1, 3)


def test_memory_stays_flat_under_a_cap():
    cache = SuffixCache(24, 10)
    held = []
    for seed in range(4):
        walk_suffix(traffic(seed, 150, 50, 30, 300), [DEFAULT], cache)
        held.append(cache.memory().allocated_bytes)
    assert held[3] <= 2 * held[0]
    assert cache.memory().evictions == 4 * 150 - 10


@settings(deadline=None, max_examples=30)
@given(sessions(), st.sampled_from([0, 2, 10000]), st.data())
def test_a_cache_goes_on_where_it_stood(requests, cached, data):
    cut = data.draw(st.integers(0, len(requests)))
    (whole,) = walk_suffix(requests, [DEFAULT], SuffixCache(24, cached))
    cache = SuffixCache(24, cached)
    for part in (range(cut), range(cut, len(requests))):
        (log,) = walk_suffix(requests.take(part), [DEFAULT], cache)
        for i, request in enumerate(part):
            assert logged(log, i) == logged(whole, request)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(records(), min_size=1, max_size=6), st.lists(settings_, min_size=2, max_size=6),
    st.sampled_from(DEPTHS), st.sampled_from(CACHED), st.sampled_from([0, 20, 300]),
)  # fmt: skip
def test_a_grid_equals_single_runs(records, grid, depth, cached, room):
    """With tails or near the limit each setting feeds its own cache; otherwise all share one."""
    requests = requests_of(records)
    limit = max(len(p) + len(o) for p, o, _ in records) + room
    how = {"max_tree_depth": depth, "max_cached_requests": cached, "max_model_len": limit}
    together = walk_settings(requests, grid, **how)
    for setting, (log, memory) in zip(grid, together, strict=True):
        ((alone, memory_alone),) = walk_settings(requests, [setting], **how)
        assert memory == memory_alone
        assert all(logged(log, i) == logged(alone, i) for i in range(len(requests)))
    if not shares_trees(requests, grid, limit):
        with pytest.raises(ValueError, match="do not share"):
            walk_suffix(requests, grid, SuffixCache(depth, cached), max_model_len=limit)


def test_nothing_to_walk():
    (log,) = walk_suffix(Requests.from_lists([], []), [DEFAULT], cache := SuffixCache())
    assert len(log) == 0
    (log,) = walk_suffix(Requests.from_lists([[1], [], [2]], [[], [3], [4]]), [DEFAULT], cache)
    assert len(log) == 0
    assert cache.memory().cached_tokens == 2
    assert SuffixCache().memory().bytes_per_cached_token is None


def test_progress_adds_up_to_the_requests():
    told = []
    requests = traffic(3, 900, 50, 20, 400)
    walk_suffix(requests, [DEFAULT], SuffixCache(), progress=told.append)
    assert len(told) > 1
    assert sum(told) == len(requests)


def test_compiled_code_is_keyed_by_the_text_it_was_made_of(tmp_path):
    def function(x):
        return x

    keys = []
    for module in (suffix_tree, random):
        compiled = cached_njit(module)(function)
        compiled._cache._cache_path = str(tmp_path)
        assert compiled(1) == 1
        library = compiled.overloads[compiled.signatures[0]].library
        keys.append(compiled._cache._index_key(compiled.signatures[0], library.codegen))
    assert keys[0] != keys[1]
