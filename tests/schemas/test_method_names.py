"""vLLM's methods: what is inferred from a model, what a method needs, how candidates are drawn and verified."""

import json

import pytest

from schemas.errors import InputError
from schemas.methods import METHODS, MTP, SAMPLED
from schemas.speculative import default_name, effective, proposer_key

DRAFT = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 3}
SYNTHETIC = {"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic"}


def folder(path, **config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    ("name", "config", "method"),
    [
        ("small", {"model_type": "llama"}, "draft_model"),
        ("small", {"model_type": "medusa"}, "medusa"),
        ("small", {"model_type": "mlp_speculator", "n_predict": 2}, "mlp_speculator"),
        ("small", {"model_type": "mimo", "num_nextn_predict_layers": 1}, "mtp"),
        ("small", {"model_type": "deepseek_mtp"}, "mtp"),
        ("EAGLE-Llama", {"model_type": "llama"}, "eagle"),
        ("Llama-EAGLE3", {"model_type": "llama"}, "eagle3"),
        ("qwen-dflash", {"model_type": "qwen3"}, "dflash"),
    ],
)
def test_the_method_is_inferred_from_the_model(tmp_path_factory, name, config, method):
    model = folder(tmp_path_factory.mktemp("m") / name, **config)
    full = effective({"model": model, "num_speculative_tokens": 2})
    assert full == {"model": model, "num_speculative_tokens": 2, "method": method} == effective(full)


def test_a_class_is_a_custom_proposer():
    full = effective({"model": "mine.Proposer", "num_speculative_tokens": 2})
    assert full["method"] == "custom_class" and default_name(full) == "custom_class k2"
    assert effective({"model": "ngram", "num_speculative_tokens": 2})["prompt_lookup_min"] == 5


def test_an_old_name_of_mtp_is_mtp():
    assert "deepseek_mtp" in MTP
    assert effective({"method": "deepseek_mtp", "num_speculative_tokens": 1})["method"] == "mtp"


def test_the_checkpoint_says_how_many_candidates(tmp_path_factory):
    model = folder(tmp_path_factory.mktemp("m") / "x", model_type="mimo", num_nextn_predict_layers=2)
    assert effective({"method": "mtp", "model": model})["num_speculative_tokens"] == 2
    assert effective({"method": "mtp", "model": model, "num_speculative_tokens": 4})["num_speculative_tokens"] == 4


def test_vllms_own_default_written_out_is_the_same_proposer():
    written = DRAFT | {"draft_sample_method": "greedy", "rejection_sample_method": "standard"}
    assert proposer_key(effective(written), "v1") == proposer_key(effective(DRAFT), "v1")


def test_names_tell_ways_apart():
    more = {
        "draft_model k3": {},
        "draft_model sampled k3": {"draft_sample_method": "probabilistic"},
        "draft_model block k3": {"rejection_sample_method": "block"},
        "draft_model by batch size k3": {"num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 9, 0]]},
        "draft_model synthetic k3": {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5},
    }
    assert {default_name(effective(DRAFT | config)): config for config in more.values()} == more


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"method": "eagle2", "model": "x/y", "num_speculative_tokens": 2}, ["'eagle2'", "'eagle'"]),
        ({"method": 3}, ["method = 3"]),
        ({"method": "eagle", "num_speculative_tokens": 2}, ["eagle", "needs model"]),
        ({"method": "medusa", "num_speculative_tokens": 2}, ["medusa", "needs model"]),
        ({"method": "eagle3", "model": "x/y"}, ["needs num_speculative_tokens"]),
        ({"method": "mtp"}, ["needs num_speculative_tokens"]),
        ({"method": "custom_class", "num_speculative_tokens": 2}, ["needs model", "my_module.MyProposer"]),
        ({"method": "custom_class", "model": "mine", "num_speculative_tokens": 2}, ["'mine'", "path of a class"]),
        ({"model": "mine.Proposer"}, ["needs num_speculative_tokens"]),
        (DRAFT | {"model": "x/EAGLE3-head"}, ["'draft_model'", "'eagle3'", "x/EAGLE3-head"]),
        (DRAFT | {"draft_sample_method": "random"}, ["draft_sample_method", "'random'", "probabilistic"]),
        (DRAFT | {"rejection_sample_method": "typical"}, ["rejection_sample_method", "'typical'", "block"]),
        (SYNTHETIC | {"draft_sample_method": "probabilistic"}, ["probabilistic", "ngram"]),
        (SYNTHETIC, ["synthetic_acceptance_rates", "synthetic_acceptance_length"]),
        (SYNTHETIC | {"synthetic_acceptance_rates": [0.5]}, ["[0.5]", "2 numbers"]),
        (SYNTHETIC | {"synthetic_acceptance_rates": [0.5, 0.6]}, ["[0.5, 0.6]", "none above"]),
        (SYNTHETIC | {"synthetic_acceptance_rates": [1.5, 0.6]}, ["[1.5, 0.6]", "from 0 to 1"]),
        (SYNTHETIC | {"synthetic_acceptance_length": 3.5}, ["3.5", "from 1 to 3"]),
        (DRAFT | {"synthetic_acceptance_length": 2}, ["synthetic_acceptance_length needs"]),
        (DRAFT | {"num_speculative_tokens_per_batch_size": []}, ["= []", "must be a list"]),
        (DRAFT | {"num_speculative_tokens_per_batch_size": [[2, 3, 1]]}, ["[[2, 3, 1]]", "begin at 1"]),
        (DRAFT | {"num_speculative_tokens_per_batch_size": [[1, 3, 1], [3, 4, 2]]}, ["overlap"]),
        (DRAFT | {"num_speculative_tokens_per_batch_size": [[1, 3, -1]]}, ["[1, 3, -1]"]),
    ],
)
def test_refused(config, parts):
    with pytest.raises(InputError) as error:
        effective(config, "here")
    assert all(part in str(error.value) for part in [*parts, "here: "]) and "\n" not in str(error.value)


def test_more_candidates_than_a_medusa_checkpoint_has_heads(tmp_path_factory):
    model = folder(tmp_path_factory.mktemp("m") / "x", model_type="medusa", medusa_num_heads=2)
    assert effective({"method": "medusa", "model": model, "num_speculative_tokens": 2})
    with pytest.raises(InputError, match=r"num_speculative_tokens = 3, but .* has 2 Medusa heads"):
        effective({"method": "medusa", "model": model, "num_speculative_tokens": 3})


def test_these_are_vllms_methods():
    from typing import get_args

    speculative = pytest.importorskip("vllm.config.speculative")
    theirs = set(get_args(speculative.SpeculativeMethod))
    assert theirs == (METHODS - {"none"}) | MTP
    assert set(get_args(speculative.MTPModelTypes)) == MTP | {"mtp"}
    assert theirs > SAMPLED


@pytest.mark.parametrize("rates", [[0.5], [0.5, 0.6], [1.0, 1.0], [0.9, 0.0], [1.2, 0.1], [0.5, -0.1]])
def test_synthetic_rates_are_refused_where_vllm_refuses_them(rates):
    check = pytest.importorskip("vllm.config.speculative").SpeculativeConfig._resolve_synthetic_acceptance_rates

    def refuses(function, *args):
        try:
            function(*args)
        except (ValueError, InputError):
            return True
        return False

    assert refuses(check, 2, rates, None) == refuses(effective, SYNTHETIC | {"synthetic_acceptance_rates": rates})
    length = sum(rates) * 2
    assert refuses(check, 2, None, length) == refuses(effective, SYNTHETIC | {"synthetic_acceptance_length": length})
