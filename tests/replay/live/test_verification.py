"""Ways to draft and verify that vLLM's CPU build lacks: the V2 runner, drafts drawn there, block and synthetic.

On a GPU (marker `gpu`) they run as they are. Without one, the V2 runner's kernels are interpreted where Triton is, see
`vllm_on_cpu`.
"""

import live_material as material
import numpy as np
import pytest
from vllm_on_cpu import interpret_v2

from replay.live.launch import LiveResult, run_live

K, LIMIT = 3, 200
GREEDY, WARM = {"temperature": 0.0}, {"temperature": 0.8}
RATES = [0.8, 0.5, 0.2]
"""Asked for: the first candidate accepted, the first two, all three."""

DRAFT = {"method": "draft_model", "model": "draft"}
SAMPLED = {"method": "draft_model", "model": "soft", "draft_sample_method": "probabilistic"}
BLOCK = {"rejection_sample_method": "block"}
SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": RATES}
WINDOW = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}

ON_V2 = {
    "ngram": {"method": "ngram"} | WINDOW,
    "eagle": {"method": "eagle", "model": "eagle"},
    "sampled": SAMPLED,
    "block": DRAFT | BLOCK,
    "block, sampled": SAMPLED | BLOCK,
}
ON_V1 = {"ngram_gpu": {"method": "ngram_gpu"} | WINDOW, "draft_model": DRAFT, "sampled": SAMPLED}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    pytest.importorskip("torch")
    from tests.replay.tiny_models import build

    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def target(models):
    from distribution import load

    yield from load(models["target"])


@pytest.fixture
def interpreted(monkeypatch, tmp_path):
    interpret_v2(monkeypatch, tmp_path)


def requests(count: int, tokens: int, sampling: list[dict]):
    random = np.random.default_rng(0)
    made = material.requests([random.integers(1, 48, 12).tolist() for _ in range(count)], [tokens] * count)
    return material.with_sampling(made, [sampling[i % len(sampling)] | {"ignore_eos": True} for i in range(count)])


def live(models, asked, config: dict, runner: str) -> LiveResult:
    engine = {"model": models["target"], "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
    config = config | {"num_speculative_tokens": K}
    if "model" in config:
        config["model"] = models[config["model"]]
    engine |= {"runner": runner}
    result = run_live(asked, material.engine(8, **engine), material.proposer(config), max_model_len=LIMIT)
    assert result.reconciliation["ok"], result.reconciliation["mismatches"]
    assert result.engine["runner"] == runner
    counts = result.log.counts()
    assert 0 < counts["accepted"].sum() < counts["drafted"].sum()
    return result


def assert_drawn_right(models, target, config: dict, runner: str, count: int) -> None:
    from distribution import assert_the_targets_distribution

    sampling = [WARM, GREEDY]
    asked = requests(count, 30, sampling)
    result = live(models, asked, config, runner)
    whole = config.get("rejection_sample_method") == "block"
    assert_the_targets_distribution(target, asked, result, sampling, by_place=not whole, few=10)


def assert_accepted_as_asked(models, runner: str, count: int) -> None:
    result = live(models, requests(count, 40, [GREEDY, WARM]), DRAFT | SYNTHETIC, runner)
    accepted, rounds = result.log.accepted, len(result.log.accepted)
    for place, rate in enumerate(RATES, 1):
        error = (rate * (1 - rate) / rounds) ** 0.5
        assert abs((accepted >= place).mean() - rate) < 4 * error, (place, rate, (accepted >= place).mean())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("config", "runner"),
    [*((config, "v2") for config in ON_V2.values()), *((config, "v1") for config in ON_V1.values())],
    ids=[*(f"v2 {name}" for name in ON_V2), *(f"v1 {name}" for name in ON_V1)],
)
def test_it_is_drawn_right_on_a_gpu(models, target, config, runner):
    assert_drawn_right(models, target, config, runner, 400)


@pytest.mark.gpu
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_synthetic_acceptance_on_a_gpu(models, runner):
    assert_accepted_as_asked(models, runner, 60)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram", "eagle", "block"])  # Triton's interpreter fails on drawn drafts
def test_it_is_drawn_right_interpreted(models, target, name, interpreted):
    assert_drawn_right(models, target, ON_V2[name], "v2", 32)


@pytest.mark.live
@pytest.mark.slow
def test_synthetic_acceptance_interpreted(models, interpreted):
    assert_accepted_as_asked(models, "v2", 16)
