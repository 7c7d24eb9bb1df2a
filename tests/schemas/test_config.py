"""The config: defaults as vLLM fills them, and one clear line for everything that cannot be."""

from datetime import date, datetime
from pathlib import Path

import pytest

from schemas.config import load, parse
from schemas.errors import InputError
from schemas.speculative import effective, expand, proposer_key

PATH = Path("replay.toml")


def parse_proposer(**config):
    return parse({"proposer": [{"config": config}]}, PATH).proposer[0]


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 3}, 3, 3),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, 2, 4),
    ],
)
def test_ngram_defaults_are_vllms(given, low, high):
    config = parse_proposer(method="ngram", num_speculative_tokens=3, **given).config
    assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == (low, high)


def test_suffix_defaults_are_vllms():
    config = parse_proposer(method="suffix").config
    assert config == {
        "method": "suffix",
        "num_speculative_tokens": 24,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    }


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 5, "prompt_lookup_max": 3}, r"5.*3"),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 0}, "prompt_lookup_min = 0"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens = 0"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens = -1"),
        ({"method": "ngram", "num_speculative_tokens": 1.5}, "whole number"),
        ({"method": "ngram", "num_speculative_tokens": True}, "whole number"),
        ({"method": "ngram"}, "needs num_speculative_tokens"),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": -1}, "max_cached_requests = -1"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "min_token_prob = 1.5"),
        ({"method": "suffix", "sufix_decoding_max_tree_depth": 3}, "did you mean 'suffix_decoding_max_tree_depth'"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "needs model"),
        ({"num_speculative_tokens": 3}, "needs a method"),
    ],
)
def test_impossible_settings_are_refused(config, says):
    with pytest.raises(InputError, match=says):
        parse_proposer(**config)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"tracee": {}}, "did you mean 'trace'"),
        ({"trace": {"nam": "x"}}, "did you mean 'name'"),
        ({"trace": {"x": 1}}, "unknown key 'x'; there are: date_from, date_to, max_model_len, name, sample, seed, "),
        ({"trace": {"sample": 0}}, r"trace\.sample = 0"),
        ({"trace": {"max_model_len": "nine"}}, r"trace\.max_model_len"),
        ({"engine": {"kind": "other"}}, r"engine\.kind = 'other'"),
        ({"engine": {"quantization": "fp8"}}, "unknown key 'quantization'"),
        ({"engine": {"dtype": "float16"}}, "dtype = 'float16': recorded replay has float32 and bfloat16"),
        ({"run": {"workers": 0}}, r"run\.workers = 0"),
        ({"proposer": {"config": {}}}, r"\[\[proposer\]\]"),
        ({"proposer": [{"configs": {}}]}, "did you mean 'config'"),
        ({"proposer": [{"name": "a", "config": {"method": "suffix"}}] * 2}, "two proposers are called 'a'"),
    ],
)
def test_what_cannot_be_is_one_line(data, says):
    with pytest.raises(InputError, match=says) as error:
        parse(data, PATH)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("replay.toml")


def test_files(tmp_path):
    with pytest.raises(InputError, match="no such config file"):
        load(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[trace\n")
    with pytest.raises(InputError, match="not valid TOML"):
        load(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load(bad)


def test_a_list_is_a_grid():
    configs = expand({"method": "ngram", "num_speculative_tokens": [3, 5], "prompt_lookup_max": [2, 4]})
    assert [(c["num_speculative_tokens"], c["prompt_lookup_max"]) for c in configs] == [(3, 2), (3, 4), (5, 2), (5, 4)]
    proposers = parse(
        {"proposer": [{"name": "look", "config": {"method": "ngram", "num_speculative_tokens": [3, 5]}}]}, PATH
    ).proposer
    assert [p.name for p in proposers] == ["look · ngram 5-5 k3", "look · ngram 5-5 k5"]
    assert len({p.key for p in proposers}) == 2


def test_none_is_always_there_live_and_only_there():
    live = parse({"engine": {"kind": "vllm"}, "proposer": [{"config": {"method": "suffix"}}]}, PATH)
    assert [p.method for p in live.proposer] == ["none", "suffix"]
    assert [p.method for p in parse({"proposer": [{"config": {"method": "suffix"}}]}, PATH).proposer] == ["suffix"]


def test_dtype_is_an_engine_arg_live_and_the_drafts_recorded():
    assert parse({"engine": {"dtype": "bfloat16"}}, PATH).engine.dtype == "bfloat16"
    live = parse({"engine": {"kind": "vllm", "dtype": "auto", "seed": 3}}, PATH).engine
    assert live.engine_args == {"dtype": "auto", "seed": 3}
    assert parse({"engine": {"kind": "vllm"}}, PATH).engine.engine_args == {}


def test_relative_models_are_anchored_at_the_config(tmp_path):
    (tmp_path / "draft").mkdir()
    config = {"method": "draft_model", "num_speculative_tokens": 2}
    path = tmp_path / "replay.toml"
    found = parse({"proposer": [{"config": {**config, "model": "draft"}}]}, path).proposer[0]
    assert found.config["model"] == str(tmp_path / "draft")
    hub = parse({"proposer": [{"config": {**config, "model": "org/name"}}]}, path).proposer[0]
    assert hub.config["model"] == "org/name"


def test_the_key_is_of_the_settings_not_the_place(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"hidden_size": 8}')
    base = {"method": "draft_model", "num_speculative_tokens": 2}
    keys = {proposer_key(effective({**base, "model": str(tmp_path / n)}), "v1") for n in ("a", "b")}
    assert len(keys) == 1
    (tmp_path / "b" / "config.json").write_text('{"hidden_size": 9}')
    assert proposer_key(effective({**base, "model": str(tmp_path / "b")}), "v1") not in keys


@pytest.mark.parametrize("section", ["trace", "engine", "run"])
@pytest.mark.parametrize("value", ["1", "'x'", "[1]", "[[1]]", "true", "1979-05-27", "[{a = 1}]"])
def test_a_section_that_is_none_is_said(section, value, tmp_path):
    path = tmp_path / "replay.toml"
    path.write_text(f"{section} = {value}\n")
    with pytest.raises(InputError, match=rf"{section} = .* must be a section"):
        load(path)


NGRAM = 'method = "ngram", num_speculative_tokens = 3'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("config = 1", "config = 1 must be a table"),
        ("config = ''", "config = '' must be a table"),
        ("config = []", r"config = \[\] must be a table"),
        ("config = [{a = 1}]", "must be a table"),
        ("config = { method = 1 }", "method = 1 must be a name"),
        ("config = { method = [[1]] }", "must be a name"),
        ("config = { model = 1, num_speculative_tokens = 3 }", "model = 1 must be a folder"),
        ("config = { model = '', num_speculative_tokens = 3 }", "model = '' must be a folder"),
        ("config = { method = 'none', num_speculative_tokens = 3 }", "takes no other setting"),
        ("config = { method = 'ngram', num_speculative_tokens = [] }", "a grid of no proposers"),
        ("config = { method = 'ngram', num_speculative_tokens = 99999999999999999999 }", "from 1 to 2147483647"),
        ("config = { method = 'suffix', suffix_decoding_min_token_prob = nan }", "min_token_prob = nan"),
        ("config = { method = 'suffix', suffix_decoding_max_spec_factor = nan }", "max_spec_factor = nan"),
        ("config = { method = 'suffix', suffix_decoding_max_spec_factor = inf }", "max_spec_factor = inf"),
        (f"name = ''\nconfig = {{ {NGRAM} }}", "one line of printable text"),
        (f"name = 1\nconfig = {{ {NGRAM} }}", "one line of printable text"),
        (f'name = "a\\nb"\nconfig = {{ {NGRAM} }}', "one line of printable text"),
        (f'name = "\\u001b[31ma"\nconfig = {{ {NGRAM} }}', "one line of printable text"),
        (f"config = {{ {NGRAM} }}\n[engine]\nmodel = 1", "model = 1 must be a folder"),
        (
            f"config = {{ {NGRAM} }}\n[trace]\nmax_model_len = 0",
            r"trace\.max_model_len: max_model_len = 0 must be a whole number from 1, or",
        ),
    ],
)
def test_a_setting_of_another_kind_is_said_in_one_line(text, says, tmp_path):
    path = tmp_path / "replay.toml"
    path.write_text(f"[[proposer]]\n{text}\n")
    with pytest.raises(InputError, match=says) as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[engine]\nrevision = 2026-11-24", r"\[engine\]: revision = 2026-11-24 is a date or a time"),
        ("[engine]\nhf_overrides = { a = [ 07:32:00 ] }", r"hf_overrides: a: 1 = 07:32:00 is a date or a time"),
        ("[engine]\nsampling = { seed = 2026-11-24T07:32:00Z }", "sampling: seed = 2026-11-24 07"),
        ("[engine]\nsampling = { temperature = inf }", "temperature = inf must be a finite number"),
        ("[engine]\ngpu_memory_utilization = nan", "gpu_memory_utilization = nan must be a finite number"),
        (f"[[proposer]]\nconfig = {{ {NGRAM}, revision = 2026-11-24 }}", "config: revision = 2026-11-24 is a date"),
    ],
)
def test_what_json_has_not_is_refused_before_it_is_handed_on(text, says, tmp_path):
    path = tmp_path / "replay.toml"
    path.write_text(text.replace("[engine]", '[engine]\nkind = "vllm"') + "\n")
    with pytest.raises(InputError, match=says) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_two_length_limits_that_differ_are_refused():
    engine = {"kind": "vllm", "max_model_len": 512}
    with pytest.raises(InputError, match=r"\[trace\] max_model_len = 256 and \[engine\] max_model_len = 512"):
        parse({"engine": engine, "trace": {"max_model_len": 256}}, PATH)
    for same in (512, "none"):
        parse({"engine": engine, "trace": {"max_model_len": same}}, PATH)


def test_a_model_in_a_grid_is_found_beside_the_config(tmp_path):
    (tmp_path / "one").mkdir()
    path = tmp_path / "replay.toml"
    path.write_text('[[proposer]]\nconfig = { model = ["one"], num_speculative_tokens = [3, 4] }\n')
    assert [p.config["model"] for p in load(path).proposer] == [str(tmp_path / "one")] * 2


def live_engine(**keys):
    return parse({"engine": {"kind": "vllm", **keys}}, PATH).engine


def test_one_concurrency_in_a_list_is_that_one():
    assert live_engine(concurrency=[4]) == live_engine(concurrency=4)
    several = live_engine(concurrency=[8, 1], pace="arrival", speed=2)
    assert several.concurrencies == (8, 1) and live_engine(concurrency=4).concurrencies == (4,)
    assert several.at(1) == live_engine(concurrency=1, pace="arrival", speed=2)
    assert several.engine_args == {}  # none of these is an EngineArg


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"engine": {"kind": "vllm", "concurrency": []}}, r"concurrency = \[\]: give a number"),
        ({"engine": {"kind": "vllm", "concurrency": 0}}, "concurrency = 0 must be a whole number from 1"),
        ({"engine": {"kind": "vllm", "concurrency": [1, "8"]}}, "concurrency = '8' must be a whole number"),
        ({"engine": {"kind": "vllm", "concurrency": [1, True]}}, "concurrency = True must be a whole number"),
        ({"engine": {"kind": "vllm", "concurrency": [1, 1]}}, r"concurrency = \[1, 1\]: each value once"),
        ({"engine": {"pace": "arrival"}}, 'pace = "arrival" needs an engine'),
        ({"engine": {"kind": "vllm", "speed": 2.0}}, 'speed = 2.0 needs pace = "arrival"'),
        (
            {"engine": {"kind": "vllm", "pace": "arrival", "speed": 0}},
            r"engine\.speed = 0: .*greater than or equal to 0\.001",
        ),
        ({"engine": {"kind": "vllm", "pace": "recorded"}}, r"engine\.pace = 'recorded'"),
        ({"run": {"devices": "0"}}, "devices = '0' must be a list"),
        ({"run": {"devices": ["0", ""]}}, "devices: '' must name devices"),
        ({"run": {"devices": ["0,1", "1"]}}, "devices: '1' is named twice"),
        ({"run": {"devices": [True]}}, "devices: True must name devices"),
        ({"run": {"hang_after_s": 0}}, r"run\.hang_after_s = 0: .*greater than or equal to 0\.1"),
        ({"run": {"hang_after_s": 1e308}}, r"run\.hang_after_s = 1e\+308: .*less than or equal to 1000000"),
        ({"engine": {"kind": "vllm", "pace": "arrival", "speed": 1e-320}}, r"engine\.speed = 1e-320: .*0\.001"),
        ({"run": {"devices": ["0\n1"]}}, r"devices: '0\\n1' must name devices"),
        ({"run": {"devices": ["0\0"]}}, r"devices: '0\\x00' must name devices"),
        ({"run": {"devices": [-1]}}, "devices: '-1' must name devices"),  # CUDA_VISIBLE_DEVICES then hides them all
        ({"run": {"devices": ["a b"]}}, "devices: 'a b' must name devices"),
    ],
)
def test_concurrency_pace_and_devices_that_cannot_be(data, says):
    with pytest.raises(InputError, match=says) as error:
        parse(data, PATH)
    assert "\n" not in str(error.value) and str(error.value).startswith("replay.toml: ")


def test_devices_are_as_cuda_visible_devices_has_them():
    run = parse({"engine": {"kind": "vllm"}, "run": {"devices": [0, "1, 2", "GPU-8932f937"]}}, PATH).run
    assert run.devices == ("0", "1,2", "GPU-8932f937")


NUMBERS = {
    "trace": ("sample", "seed", "max_model_len"),
    "engine": ("concurrency", "speed"),
    "run": ("workers", "shard_size", "hang_after_s", "min_equal_outputs"),
}


@pytest.mark.parametrize("value", [True, False, "2", [], {}, float("nan"), float("inf"), -1])
@pytest.mark.parametrize(("section", "key"), [(section, key) for section, keys in NUMBERS.items() for key in keys])
def test_a_number_is_a_number_and_nothing_is_made_one(section, key, value):
    if (key, value) == ("seed", -1):
        return
    data: dict = {"engine": {"kind": "vllm", "pace": "arrival"}}
    data[section] = data.get(section, {}) | {key: value}
    with pytest.raises(InputError, match=rf"^replay\.toml: {section}\.{key}\b.*") as error:
        parse(data, PATH)
    assert repr(value) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [0, 1e10, True, "24.11.2026", datetime(2026, 11, 24)])
def test_a_day_is_a_day(value):
    for key in ("date_from", "date_to"):
        with pytest.raises(InputError, match=rf"trace\.{key}: .* is no day; write it as 2026-11-24$"):
            parse({"trace": {key: value}}, PATH)
        for good in ("2026-11-24", date(2026, 11, 24)):
            assert getattr(parse({"trace": {key: good}}, PATH).trace, key) == date(2026, 11, 24)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("engine", "concurrency", [1, 8]),
        ("engine", "concurrency", 4),
        ("engine", "sampling", {"temperature": 1.0}),
        ("engine", "pace", "arrival"),
        ("run", "devices", ["0"]),
        ("run", "hang_after_s", 5),
        ("run", "min_equal_outputs", 0.5),
    ],
)
def test_what_only_an_engine_heeds_is_not_passed_over(section, key, value):
    with pytest.raises(InputError, match=rf"{key}.* needs an engine.*kind = \"vllm\""):
        parse({section: {key: value}}, PATH)
    live = {"engine": {"kind": "vllm"}}
    assert parse(live | {section: live.get(section, {}) | {key: value}}, PATH).engine.kind == "vllm"


@pytest.mark.parametrize(
    ("section", "key", "where"),
    [
        ("run", "concurrency", "engine"),
        ("trace", "devices", "run"),
        ("engine", "devices", "run"),
        ("engine", "sample", "trace"),
        ("engine", "max_model_len", "trace"),
    ],
)
def test_a_key_in_the_wrong_section(section, key, where):
    with pytest.raises(InputError, match=rf"^replay\.toml: \[{section}\] {key}: belongs into \[{where}\]$"):
        parse({section: {key: 1}}, PATH)
    if key == "max_model_len":  # vLLM's own has that name
        assert live_engine(max_model_len=1).engine_args == {"max_model_len": 1}


def test_files_as_editors_write_them(tmp_path):
    path = tmp_path / "replay.toml"
    path.write_bytes(b'\xef\xbb\xbf[trace]\r\nname = "t"\r\n')
    assert load(path).trace.name == "t"
    path.write_text("a = " + "[" * 5000)
    with pytest.raises(InputError, match=r"replay\.toml: not valid TOML: nested too deep$"):
        load(path)
