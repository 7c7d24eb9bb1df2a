"""Recorded suffix replay against vLLM's own proposer class over arctic-inference's cache: every step, the cache carried
from request to request."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import records
from upstream import FAR, Suffix, logged, serve

from replay.recorded.engine import replay_recorded
from replay.recorded.suffix import new_cache
from replay.requests import Requests
from schemas.errors import InputError
from schemas.speculative import effective


def suffix(k=8, depth=24, cached=10000, factor=1.0, prob=0.1):
    return effective(
        {
            "method": "suffix",
            "num_speculative_tokens": k,
            "suffix_decoding_max_tree_depth": depth,
            "suffix_decoding_max_cached_requests": cached,
            "suffix_decoding_max_spec_factor": factor,
            "suffix_decoding_min_token_prob": prob,
        }
    )


configs = st.builds(
    suffix,
    k=st.sampled_from([1, 3, 8, 24]),
    depth=st.sampled_from([4, 16, 24]),
    cached=st.sampled_from([0, 1, 2, 10000]),
    factor=st.sampled_from([1.0, 2.0]),
    prob=st.sampled_from([0.0, 0.1, 0.6]),
)


def assert_serves(records, config, limit=FAR):
    pytest.importorskip("vllm.v1.spec_decode.suffix_decoding", reason="the oracle is vLLM itself")
    requests = Requests.from_lists(*zip(*records, strict=True))
    log = replay_recorded(requests, config, max_model_len=None if limit == FAR else limit)
    upstream = Suffix(config, limit)
    for i, record in enumerate(records):
        served = serve(*record, config["num_speculative_tokens"], upstream.of(str(i), record[0]), limit)
        assert logged(log, i) == served


@settings(deadline=None, max_examples=300)
@given(records=st.lists(records(), min_size=1, max_size=6), config=configs)
def test_every_step_without_limit(records, config):
    assert_serves(records, config)


@settings(deadline=None, max_examples=200)
@given(records=st.lists(records(), min_size=1, max_size=4), config=configs, room=st.integers(0, 30))
def test_every_step_to_the_limit(records, config, room):
    """Near the limit vLLM does not ask the proposer, so the cache misses those tokens too."""
    assert_serves(records, config, max(len(p) + len(o) for p, o, _ in records) + room)


def test_a_request_without_output_leaves_the_cache_alone():
    phrase = list(range(30))
    filled = Requests.from_lists([[99]] * 2, [phrase] * 2)
    gap = Requests.from_lists([[99]] * 3, [phrase, [], phrase])
    second = replay_recorded(filled, suffix()).counts()["accepted"][1]
    assert second > 0
    assert replay_recorded(gap, suffix()).counts()["accepted"].tolist()[1:] == [0, second]


def test_later_requests_see_the_tokens_past_the_cut():
    """The last step is ingested untrimmed: with the tail known, the next request finds it."""
    phrase = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    prompts, outputs = [phrase, [1, 2]], [[*phrase[:4]], [8, 9, 10, 11, 12, 13]]
    assert_serves(list(zip(prompts, outputs, [phrase[4:], []], strict=True)), suffix(k=4, prob=0.0))
    assert_serves(list(zip(prompts, outputs, [[], []], strict=True)), suffix(k=4, prob=0.0))


@settings(deadline=None, max_examples=30)
@given(records=st.lists(records(), min_size=2, max_size=6), config=configs, data=st.data())
def test_a_cache_carried_over_is_what_one_call_would_have(records, config, data):
    requests = Requests.from_lists(*zip(*records, strict=True))
    cut = data.draw(st.integers(0, len(records)))
    cache = new_cache(config)
    replay_recorded(requests.take(range(cut)), config, cache=cache)
    rest = replay_recorded(requests.take(range(cut, len(records))), config, cache=cache)
    whole = replay_recorded(requests, config)
    assert [logged(rest, i) for i in range(len(records) - cut)] == [logged(whole, i) for i in range(cut, len(records))]


def test_only_suffix_takes_a_cache():
    ngram = {"method": "ngram", "num_speculative_tokens": 2}
    with pytest.raises(InputError, match="'ngram' keeps no cache"):
        replay_recorded(Requests.from_lists([[1]], [[2]]), ngram, cache=new_cache(suffix()))
