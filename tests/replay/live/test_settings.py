"""Settings that cannot work are refused in one line that names the key, most of them before any engine starts."""

import live_material as material
import pytest

from replay.live import settings
from replay.live.launch import run_live
from replay.requests import Requests, Tokens
from schemas.errors import InputError

ONE = Requests.from_lists([[1, 2, 3]], [[1]])
NONE = material.proposer({"method": "none"})


WAYS = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
CLASS = {"method": "custom_class", "num_speculative_tokens": 2}


def refused(error: pytest.ExceptionInfo, *parts: str) -> None:
    line = str(error.value)
    assert "\n" not in line and all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("engine", "config", "tail", "parts"),
    [
        (material.engine(1, model=None), NONE, 0, ("[engine]", "model")),
        (material.engine(1, model="/no/such/folder"), NONE, 0, ("[engine]", "/no/such/folder", "no such folder")),
        (material.engine(1), material.proposer(material.NGRAM), 4, ("ngram", "tails")),
        (
            material.engine(1, model=str(material.MODELS.parent)),
            material.proposer({"method": "draft_model", "model": "./nothing", "num_speculative_tokens": 2}),
            0,
            ("model",),
        ),
    ],
)
def test_refused_without_a_process(engine, config, tail, parts):
    with pytest.raises(InputError) as error:
        run_live(ONE, engine, config, max_model_len=None, tail_tokens=tail)
    refused(error, *parts)


def test_a_folder_without_config(tmp_path):
    with pytest.raises(InputError) as error:
        run_live(ONE, material.engine(1, model=str(tmp_path)), NONE, max_model_len=None)
    refused(error, "config.json", str(tmp_path))


def spec(speculative: dict | None = None, sampling: dict | None = None, tail: int = 0, **engine_args) -> dict:
    return {
        "model": material.TARGET,
        "engine_args": engine_args,
        "speculative": speculative,
        "proposer": "mine",
        "sampling": sampling or {},
        "concurrency": 2,
        "max_model_len": None,
        "tail_tokens": tail,
    }


@pytest.mark.live
@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (spec(concurency=4), ("[engine]", "'concurency'; did you mean 'concurrency'?")),
        (spec(max_num_batched_token=1), ("[engine]", "max_num_batched_token", "max_num_batched_tokens")),
        (spec(max_num_seqs=4), ("max_num_seqs", "concurrency")),
        (spec(stream_interval=4), ("stream_interval", "every token")),
        (spec(data_parallel_size=2), ("[engine]", "data_parallel_size = 2", "devices")),
        (spec(pipeline_parallel_size=2), ("[engine]", "pipeline_parallel_size = 2", "tensor_parallel_size")),
        (spec(dtype="float99"), ("[engine]", "float99")),
        (spec(max_model_len=10**9), ("[engine]", "max_model_len")),
        (
            spec({"method": "ngram", "num_speculative_tokens": 0, "prompt_lookup_max": 2}),
            ("'mine'", "num_speculative_tokens = 0"),
        ),
        (spec({"method": "nonesuch", "num_speculative_tokens": 2}), ("'mine'", "method = 'nonesuch'")),
        (spec({"method": "ngram_gpu", "num_speculative_tokens": 2}), ("'mine'", "ngram_gpu", "pinned memory", "GPU")),
        (spec(WAYS | {"rejection_sample_method": "block"}), ("'mine'", "block", "V2 runner", 'runner = "v2"')),
        (spec(WAYS | {"rejection_sample_method": "synthetic"}), ("'mine'", "synthetic", "CPU build", "GPU")),
        (spec(CLASS | {"model": "no_such.Thing"}), ("'mine'", "no_such.Thing", "imported", "PYTHONPATH")),
        (spec(CLASS | {"model": "json.nothing"}), ("'mine'", "json.nothing", "imported")),
        (spec(CLASS | {"model": "json.JSONDecoder"}), ("'mine'", "json.JSONDecoder", "'propose'")),
    ],
)
def test_refused_engine_settings(given, parts):
    with pytest.raises(InputError) as error:
        settings.engine_config(given)
    refused(error, *parts)


@pytest.fixture(scope="module")
def config():
    return settings.engine_config(spec() | {"max_model_len": 64})


@pytest.fixture(scope="module")
def ngram_config():
    given = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2, "prompt_lookup_max": 2}
    return settings.engine_config(spec(given) | {"max_model_len": 64})


@pytest.mark.live
@pytest.mark.parametrize(
    ("prompt", "sampling", "given", "parts"),
    [
        ([], None, spec(), ("'r1'", "empty")),
        ([1] * 64, None, spec(), ("'r1'", "64", "max_model_len")),
        ([1, 2**31 - 1], None, spec(), ("'r1'", "position 1", "2147483647", "outside the model's")),
        ([1], "{", spec(), ("'r1'", "JSON")),
        ([1], "[]", spec(), ("'r1'", "object")),
        ([1], '{"temperatur": 1}', spec(), ("temperatur", "'temperature'")),
        ([1], '{"stop": ["x"]}', spec(), ("stop_token_ids",)),
        ([1], '{"n": 2}', spec(), ("n = 2",)),
        ([1], '{"temperature": -1}', spec(), ("'r1'", "temperature")),
        ([1], '{"max_tokens": 0}', spec(), ("'r1'", "max_tokens")),
        ([1], '{"min_tokens": 3}', spec(tail=2), ("min_tokens", "tail")),
        ([1], '{"max_tokens": 8.5}', spec(), ("'r1'", "max_tokens", "Expected `int", "got `float`")),
        ([1], '{"seed": "x", "temperature": 1}', spec(), ("'r1'", "seed", "Expected `int", "got `str`")),
        ([1], '{"seed": 18446744073709551616, "temperature": 1}', spec(), ("'r1'", "seed", "64 bits")),
        ([1], '{"ignore_eos": 1}', spec(), ("'r1'", "ignore_eos", "Expected `bool`")),
        ([1], '{"allowed_token_ids": [true]}', spec(), ("'r1'", "allowed_token_ids", "Expected `int")),
        ([1], '{"structured_outputs": "x"}', spec(), ("'r1'", "structured_outputs", "got `str`")),
        ([1], '{"structured_outputs": {"regexp": "x"}}', spec(), ("'r1'", "regexp", "'regex'")),
        ([1], '{"structured_outputs": {"regex": "x", "choice": ["x"]}}', spec(), ("'r1'", "one kind")),
        ([1], '{"repetition_detection": {"max_pattern_size": "x"}}', spec(), ("'r1'", "repetition_detection", "int")),
        ([1], '{"stream_interval": 4}', spec(), ("'r1'", "stream_interval", "every token")),
    ],
)
def test_refused_requests(config, prompt, sampling, given, parts):
    with pytest.raises(InputError) as error:
        row = {"sampling": sampling, "output_tokens": 4}
        settings.sampling_params([row], ["r1"], Tokens.of([prompt]), given, config)
    refused(error, *parts)


@pytest.mark.live
@pytest.mark.parametrize(
    ("sampling", "part"),
    [({"min_p": 0.2, "temperature": 0.7}, "min_p"), ({"logit_bias": {1: 5.0}}, "logit_bias")],
)
def test_refused_with_speculation(ngram_config, sampling, part):
    row = {"sampling": None, "output_tokens": 4}
    with pytest.raises(InputError) as error:
        settings.sampling_params([row], ["r1"], Tokens.of([[1]]), spec({"method": "ngram"}, sampling), ngram_config)
    refused(error, "'r1'", part)


@pytest.mark.live
@pytest.mark.parametrize(
    ("row", "override", "tokens", "temperature"),
    [
        ({"sampling": None, "output_tokens": None}, {}, 256, 0.0),
        ({"sampling": None, "output_tokens": 7}, {}, 7, 0.0),
        ({"sampling": '{"max_tokens": 9, "temperature": 0.5, "seed": null}', "output_tokens": 7}, {}, 9, 0.5),
        (
            {"sampling": '{"max_tokens": 9, "temperature": 0.5}', "output_tokens": 7},
            {"max_tokens": 3, "temperature": 0},
            3,
            0.0,
        ),
    ],
)
def test_config_goes_before_the_row_and_the_row_before_its_length(config, row, override, tokens, temperature):
    (params,) = settings.sampling_params([row], ["r1"], Tokens.of([[1]]), spec(sampling=override), config)
    assert (params.max_tokens, params.temperature) == (tokens, temperature)


@pytest.mark.live
def test_the_kv_cache_holds_what_may_be_in_flight(config):
    cache = config.cache_config
    assert settings.size_kv_cache(config, [300, 10, 200], 2) == "specreplay"
    assert cache.block_size == 128 and cache.num_gpu_blocks_override == (3 + 1) + (2 + 1) + 1


@pytest.mark.live
def test_recorded_seeds_are_kept_and_others_follow_from_trace_and_request(config):
    sampling = ['{"temperature": 1, "seed": 7}', '{"temperature": 1}', None, '{"temperature": 1}', '{"seed": 5}']
    rows = [{"sampling": text, "output_tokens": 4} for text in sampling]
    names = ["r1", "r2", "r3", "r4", "r5"]

    def seeds(names, seed):
        params = settings.sampling_params(rows, names, Tokens.of([[1]] * 5), spec(), config)
        assert settings.fill_seeds(params, names, seed) == {"recorded": 1, "derived": 2}
        return [p.seed for p in params]

    first = seeds(names, 0)
    assert first[0] == 7 and first[1] != first[3] and (first[2], first[4]) == (None, 5)  # greedy ones draw nothing
    assert seeds(names, 0) == first and seeds(names, 1)[1] != first[1]
    moved = ["r1", "r4", "r3", "r2", "r5"]
    assert seeds(moved, 0) == [first[0], first[3], None, first[1], 5]
