"""What recorded replay refuses, each in one line that names it; and the example of its docstring."""

import doctest
import sys
from importlib import import_module

import pyarrow as pa
import pytest

from replay.recorded.engine import METHODS, replay_recorded
from replay.requests import Requests
from schemas.errors import InputError

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 5}
SUFFIX = {"method": "suffix"}
DRAFT = {"method": "draft_model", "model": "no/such", "num_speculative_tokens": 3}
ONE = Requests.from_lists([[1, 2, 3]], [[4, 5]])


def with_columns(requests, **columns):
    meta = requests.meta
    for name, values in columns.items():
        at = meta.schema.get_field_index(name)
        meta = meta.set_column(at, meta.schema.field(name), pa.array(values, meta.schema.field(name).type))
    return Requests(requests.prompts, requests.outputs, requests.tails, meta)


@pytest.mark.parametrize("module", ["engine", "ngram", "ngram_padded", "draft_forward"])
def test_the_docstrings_hold(module):
    result = doctest.testmod(import_module(f"replay.recorded.{module}"))
    assert result.attempted and not result.failed


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (NGRAM | {"prompt_lookup_min": 5, "prompt_lookup_max": 3}, ["prompt_lookup_min = 5", "prompt_lookup_max = 3"]),
        (NGRAM | {"prompt_lookup_min": 0}, ["prompt_lookup_min = 0"]),
        (NGRAM | {"num_speculative_tokens": 0}, ["num_speculative_tokens = 0"]),
        (NGRAM | {"num_speculative_tokens": -1}, ["num_speculative_tokens = -1"]),
        (NGRAM | {"num_speculative_tokens": 40000}, ["num_speculative_tokens = 40000", "32767"]),
        (SUFFIX | {"suffix_decoding_max_cached_requests": -1}, ["suffix_decoding_max_cached_requests = -1"]),
        (SUFFIX | {"suffix_decoding_min_token_prob": 1.5}, ["suffix_decoding_min_token_prob = 1.5"]),
        (NGRAM | {"promt_lookup_max": 3}, ["promt_lookup_max", "prompt_lookup_max"]),
        ({"method": "eagle", "model": "m", "num_speculative_tokens": 3}, ["eagle", *METHODS]),
        (DRAFT | {"draft_sample_method": "probabilistic"}, ["draft_sample_method = 'probabilistic'", "probabilities"]),
        (DRAFT | {"use_heterogeneous_vocab": True}, ["use_heterogeneous_vocab = true", "[engine] model"]),
        (DRAFT | {"quantization": "fp8"}, ["quantization = 'fp8'"]),
        (NGRAM | {"rejection_sample_method": "synthetic"}, ["rejection_sample_method = 'synthetic'"]),
        (NGRAM | {"num_speculative_tokens_per_batch_size": [[1, 8, 3]]}, ["num_speculative_tokens_per_batch_size"]),
    ],
)
def test_settings_that_no_walk_can_follow(config, words):
    with pytest.raises(InputError) as error:
        replay_recorded(ONE, config)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_settings_spelled_out_as_their_default_are_taken():
    config = NGRAM | {
        "draft_sample_method": "greedy",
        "parallel_drafting": False,
        "rejection_sample_method": "standard",
    }
    assert len(replay_recorded(ONE, config)) == 1


def test_the_runners_rules():
    seen = {runner: replay_recorded(ONE, NGRAM, runner=runner).counts() for runner in ("v1", "v2")}
    assert [int(seen[runner]["engine_drafted"][0]) for runner in ("v1", "v2")] == [0, 5]
    with pytest.raises(InputError, match="runner = 'v3'"):
        replay_recorded(ONE, NGRAM, runner="v3")


def test_a_prompt_without_recorded_output():
    requests = with_columns(Requests.from_lists([[1]] * 3, [[2, 3], [], []]), output_tokens=[2, None, None])
    with pytest.raises(InputError, match=r"request '1' \(and 1 more\) has no recorded output.*capture"):
        replay_recorded(requests, NGRAM)


def test_a_trace_of_lengths():
    with pytest.raises(InputError, match="request '0' says 7 output tokens but holds 2 token ids"):
        replay_recorded(with_columns(ONE, output_tokens=[7]), NGRAM)
    with pytest.raises(InputError, match="request '0' says 9 prompt tokens but holds 3 token ids"):
        replay_recorded(with_columns(ONE, prompt_tokens=[9]), NGRAM)


def test_a_recorded_output_of_no_tokens_is_kept():
    counts = replay_recorded(Requests.from_lists([[1], [1, 2, 1]], [[], [2, 1, 2]]), NGRAM).counts()
    assert all(values[0] == 0 for values in counts.values())
    assert counts["emitted"].tolist() == [0, 2]


def test_no_requests_at_all():
    for method in (NGRAM, SUFFIX, {}):
        assert len(replay_recorded(Requests.from_lists([], []), method)) == 0


def test_a_record_beyond_the_limit():
    with pytest.raises(InputError, match="request '0' has 5 prompt \\+ output tokens, more than max_model_len = 4"):
        replay_recorded(ONE, NGRAM, max_model_len=4)


def test_suffix_needs_no_package_of_others(monkeypatch):
    monkeypatch.setitem(sys.modules, "arctic_inference", None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert len(replay_recorded(ONE, SUFFIX)) == 1
