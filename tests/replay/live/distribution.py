"""Is what an engine put out drawn from the target's own distribution, at every place of a round?

The exact probabilities come from another library (transformers), read along each sequence put out. Whether a place of a
round is reached depends on the tokens before it alone, so at each place the tokens put out may be set against the
probabilities there: their total variation distance must be what draws from those probabilities themselves give.
"""

from collections.abc import Iterator

import numpy as np
import torch
import transformers

from replay.live.launch import LiveResult
from tests.replay.tiny_models import VOCABULARY

BONUS = 9
"""Place of the token behind a round's last candidate."""


def load(folder: str) -> Iterator:
    """The target for `assert_the_targets_distribution`, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.set_num_threads(threads)


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


def assert_the_targets_distribution(
    model, asked, result: LiveResult, sampling: list[dict], by_place: bool = True, few: int = 100
) -> None:
    """The sampling settings took turns over the requests. Block verification decides on a round as a whole, so there
    only all places together may be looked at (`by_place` off).
    """
    where, put_out = places(result), [result.outputs[i] for i in range(len(asked))]
    random = np.random.default_rng(1)
    for turn, settings in enumerate(sampling):
        mine = range(turn, len(asked), len(sampling))
        p = np.concatenate([probabilities(model, asked, result, i, settings) for i in mine])
        tokens, place = (np.concatenate([of[i] for i in mine]) for of in (put_out, where))
        assert (p[np.arange(len(p)), tokens] > 0).all()  # nothing that top-k, top-p or greed leave out
        seen = [at for at in np.unique(place) if (place == at).sum() >= few]
        assert {1, 2} <= set(seen)
        for here in [place == at for at in seen] if by_place else [place >= 0]:
            distance = variation(tokens[here], p[here])
            drawn = (random.random((300, here.sum(), 1)) > p[here].cumsum(1)).sum(2).clip(0, VOCABULARY - 1)
            likely = [variation(one, p[here]) for one in drawn]
            stratum = settings, place[here].min(), here.sum()
            assert distance <= np.mean(likely) + 4 * np.std(likely), (stratum, distance, np.mean(likely))
            assert abs(surprise(tokens[here], p[here])) < 4, stratum


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
