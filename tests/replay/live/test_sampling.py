"""Above temperature 0: what speculation puts out has the target's own distribution, whatever drafts."""

import live_material as material
import numpy as np
import pytest

from replay.live.launch import LiveResult, run_live
from replay.recorded.engine import replay_recorded
from schemas.speculative import effective

pytestmark = pytest.mark.live

VOCABULARY, LIMIT, K = 48, 200, 3
WARM = {"temperature": 0.8}
NARROW = {"temperature": 1.2, "top_k": 6, "top_p": 0.9}
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    from tests.replay.tiny_models import build

    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def target(models):
    from distribution import load

    yield from load(models["target"])


def requests(count: int, tokens: int, sampling: list[dict]):
    """Random prompts; the sampling settings take turns."""
    random = np.random.default_rng(0)
    made = material.requests([random.integers(1, VOCABULARY, 12).tolist() for _ in range(count)], [tokens] * count)
    return material.with_sampling(made, [sampling[i % len(sampling)] | {"ignore_eos": True} for i in range(count)])


def live(models, asked, config: dict, **more) -> LiveResult:
    engine = material.engine(8, model=models["target"], skip_tokenizer_init=True)
    result = run_live(asked, engine, material.proposer(config), max_model_len=LIMIT, **more)
    assert result.reconciliation["ok"], result.reconciliation["mismatches"]
    return result


def proposers(models) -> dict[str, dict]:
    draft = {"method": "draft_model", "model": models["draft"], "num_speculative_tokens": K}
    return {
        "none": {"method": "none"},
        "draft": draft,
        "sampled": draft | {"model": models["soft"], "draft_sample_method": "probabilistic"},
        "eagle": {"method": "eagle", "model": models["eagle"], "num_speculative_tokens": K},
        "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3, "num_speculative_tokens": K},
        "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    }


def assert_drawn_right(models, target, name: str, count: int) -> None:
    import distribution

    sampling = [WARM, NARROW, GREEDY]  # side by side in one batch
    asked = requests(count, 40, sampling)
    result = live(models, asked, proposers(models)[name])
    counts = result.log.counts()
    assert 0 < counts["accepted"].sum() < counts["drafted"].sum()
    assert result.engine["seeds"] == {"recorded": 0, "derived": count * 2 // 3}
    assert result.engine["replaced"] == "vllm.v1.sample.rejection_sampler.expand_batch_to_tokens"
    distribution.assert_the_targets_distribution(target, asked, result, sampling)


@pytest.mark.slow
def test_drafts_drawn_from_their_own_probabilities(models, target):
    assert_drawn_right(models, target, "sampled", 120)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draft", "eagle", "ngram", "suffix"])
def test_drafts_without_probabilities(models, target, name):
    assert_drawn_right(models, target, name, 300)


@pytest.mark.slow
def test_the_same_replay_samples_the_same(models):
    """In another order and batch: a request's seed is its own."""
    asked = requests(12, 20, [WARM])
    first = live(models, asked, {"method": "none"}, seed=3)
    back = live(models, asked.take(range(11, -1, -1)), {"method": "none"}, seed=3)
    other = live(models, asked, {"method": "none"}, seed=4)
    assert first.engine["seeds"] == {"recorded": 0, "derived": 12} and first.engine["replaced"] is None
    texts = [[result.outputs[i].tolist() for i in range(12)] for result in (first, back, other)]
    assert texts[0] == texts[1][::-1] and all(a != b for a, b in zip(texts[0], texts[2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draft", "ngram"])
def test_recorded_replay_has_the_law_of_live(models, name):
    """Deterministic candidates: along ids sampled without speculation, acceptance and coverage are as live."""
    config = proposers(models)[name]
    asked = requests(400, 40, [WARM])
    capture = live(models, asked, {"method": "none"}, tail_tokens=K + 1)
    afresh = live(models, asked, config, seed=1)
    along = replay_recorded(material.captured(asked, capture), effective(config), max_model_len=LIMIT)
    for above, below in (("accepted", "drafted"), ("rounds", "steps"), ("emitted", "steps")):
        a, b = (log.counts() for log in (afresh.log, along))
        ours, theirs = (ratio(one[above], one[below]) for one in (a, b))
        assert abs(ours[0] - theirs[0]) <= 4 * np.hypot(ours[1], theirs[1]), (above, below, ours, theirs)


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """Ratio of sums over requests, and its standard error (requests are independent)."""
    value = above.sum() / below.sum()
    return value, np.sqrt(((above - value * below) ** 2).sum()) / below.sum()


def test_a_seeded_prompt_in_parts_says_what_it_says_whole(models):
    """Three times the same prompt and seed, 12 tokens each, 16 an iteration: the first goes in whole, others in two."""
    asked = requests(1, 30, [WARM | {"seed": 5}]).take([0, 0, 0])
    engine = material.engine(3, model=models["target"], skip_tokenizer_init=True, max_num_batched_tokens=16)
    result = run_live(asked, engine, material.proposer({"method": "none"}), max_model_len=LIMIT)
    assert result.engine_steps["prefill_tokens"].to_pylist()[:3] == [16, 15, 5]  # 12 + 4, 8 + 7, 5 + two decode steps
    first = result.outputs[0].tolist()
    assert [result.outputs[i].tolist() for i in (1, 2)] == [first, first]
    assert len(set(first)) > 5
