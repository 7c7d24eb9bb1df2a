"""Above temperature 0: what speculation puts out has the target's own distribution, at every place of a round.

The exact probabilities come from another library (transformers), read along each sequence put out. Whether a place of a
round is reached depends on the tokens before it alone, so at each place the tokens put out may be set against the
probabilities there: their total variation distance must be what draws from those probabilities themselves give.
"""

import live_material as material
import numpy as np
import pytest

from replay.live.launch import LiveResult, run_live
from replay.recorded.engine import replay_recorded
from schemas.speculative import effective

pytestmark = pytest.mark.live

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCABULARY, LIMIT, K = 48, 200, 3
WARM = {"temperature": 0.8}
NARROW = {"temperature": 1.2, "top_k": 6, "top_p": 0.9}
GREEDY = {"temperature": 0.0}
BONUS = 9
"""Place of the token behind a round's last candidate."""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    from tests.replay.tiny_models import build

    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def target(models):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield transformers.AutoModelForCausalLM.from_pretrained(models["target"], dtype=torch.float32)
    torch.set_num_threads(threads)


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


def probabilities(model, asked, result: LiveResult, i: int, sampling: dict) -> np.ndarray:
    """[tokens put out, VOCABULARY]: what the target gives for each, temperature, top-k and top-p applied in turn."""
    prompt = asked.prompts[i].tolist()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + result.outputs[i].tolist()])).logits[0, len(prompt) - 1 : -1]
    if not sampling["temperature"]:
        return torch.nn.functional.one_hot(logits.argmax(-1), VOCABULARY).double().numpy()
    logits = logits.double() / sampling["temperature"]
    if "top_k" in sampling:
        logits[logits < logits.topk(sampling["top_k"]).values[:, -1:]] = -torch.inf
    p, order = logits.softmax(-1).sort(descending=True)
    p[p.cumsum(-1) - p >= sampling.get("top_p", 1.0)] = 0
    p = torch.zeros_like(p).scatter(1, order, p)
    return (p / p.sum(-1, keepdim=True)).numpy()


def places(result: LiveResult) -> list[np.ndarray]:
    """Per request and token put out: 1, 2, … = that candidate's place in its round, 0 = no candidate stood there."""
    out = [np.zeros(n, int) for n in result.outputs.lengths]
    at = [1] * len(out)
    log = result.log
    for i, drafted, accepted in zip(log.request.tolist(), log.drafted.tolist(), log.accepted.tolist(), strict=True):
        for place in range(1, accepted + 2):
            if at[i] < len(out[i]):
                out[i][at[i]] = place if place <= drafted else BONUS if drafted else 0
                at[i] += 1
    return out


def assert_the_targets_distribution(model, asked, result: LiveResult, sampling: list[dict], few: int = 100) -> None:
    where, put_out = places(result), [result.outputs[i] for i in range(len(asked))]
    random = np.random.default_rng(1)
    for turn, settings in enumerate(sampling):
        mine = range(turn, len(asked), len(sampling))
        p = np.concatenate([probabilities(model, asked, result, i, settings) for i in mine])
        tokens, place = (np.concatenate([of[i] for i in mine]) for of in (put_out, where))
        assert (p[np.arange(len(p)), tokens] > 0).all()  # nothing that top-k, top-p or greed leave out
        seen = [at for at in np.unique(place) if (place == at).sum() >= few]
        assert {1, 2} <= set(seen)
        for at in seen:
            here = place == at
            distance = variation(tokens[here], p[here])
            drawn = (random.random((300, here.sum(), 1)) > p[here].cumsum(1)).sum(2).clip(0, VOCABULARY - 1)
            likely = [variation(one, p[here]) for one in drawn]
            assert distance <= np.mean(likely) + 4 * np.std(likely), (settings, at, distance, np.mean(likely))
            assert abs(surprise(tokens[here], p[here])) < 4, (settings, at)


def variation(tokens: np.ndarray, p: np.ndarray) -> float:
    """Total variation distance between how often each token came and how often it was to be expected."""
    return 0.5 * np.abs(np.bincount(tokens, minlength=VOCABULARY) - p.sum(0)).sum() / len(p)


def surprise(tokens: np.ndarray, p: np.ndarray) -> float:
    """How far the tokens' log-probability is from what was to be expected, in standard errors; 0 if all was certain."""
    log = np.log(np.where(p > 0, p, 1))
    mean = (p * log).sum(1)
    error = np.sqrt(((p * log**2).sum(1) - mean**2).clip(0).sum())
    off = (log[np.arange(len(p)), tokens] - mean).sum()
    return off / error if error > 0 else off


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
    sampling = [WARM, NARROW, GREEDY]  # side by side in one batch
    asked = requests(count, 40, sampling)
    result = live(models, asked, proposers(models)[name])
    counts = result.log.counts()
    assert 0 < counts["accepted"].sum() < counts["drafted"].sum()
    assert result.engine["seeds"] == {"recorded": 0, "derived": count * 2 // 3}
    assert result.engine["replaced"] == "vllm.v1.sample.rejection_sampler.expand_batch_to_tokens"
    assert_the_targets_distribution(target, asked, result, sampling)


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
        assert abs(ours[0] - theirs[0]) < 4 * np.hypot(ours[1], theirs[1]), (above, below, ours, theirs)


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """Ratio of sums over requests, and its standard error (requests are independent)."""
    value = above.sum() / below.sum()
    return value, np.sqrt(((above - value * below) ** 2).sum()) / below.sum()
