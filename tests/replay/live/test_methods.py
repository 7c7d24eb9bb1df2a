"""Every method that drafts with a model, a class or a cache of its own, on the real engine with tiny models.

What each proposes is known from how the models were made, so what the engine drafted and accepted can be worked out by
hand along the target's own text: see `expected`.
"""

from collections.abc import Callable
from pathlib import Path

import live_material as material
import numpy as np
import pytest
from continuing_proposer import follow

from replay.live.launch import LiveResult, run_live
from replay.recorded.engine import replay_recorded
from replay.requests import Requests
from schemas.speculative import effective
from schemas.tables import MISS_REASONS

pytestmark = pytest.mark.live

torch = pytest.importorskip("torch")

LIMIT, TAIL, K = 200, 12, 3
BATCHES = [[1, 1, 3], [2, 2, 1], [3, 4, 0]]
"""Candidates by batch size."""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    from tests.replay.tiny_models import build

    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def step_of_the_map() -> list[int]:
    """The token that the models' common map puts behind each token."""
    from tests.replay.tiny_models import Weights

    return Weights().next.tolist()


@pytest.fixture(scope="module")
def asked() -> Requests:
    random = np.random.default_rng(0)
    lengths = [44, 16, 40, 30, 40, 24]
    return material.requests([random.integers(1, 48, 12).tolist() for _ in lengths], lengths)


def live(models, asked: Requests, config: dict, concurrency: int, target: str = "target", **more) -> LiveResult:
    engine = {"model": models[target], "skip_tokenizer_init": True, "trust_remote_code": target == "mimo"}
    proposer = material.proposer(config)
    return run_live(asked, material.engine(concurrency, **engine), proposer, max_model_len=LIMIT, **more)


@pytest.fixture(scope="module")
def plain(models, asked) -> LiveResult:
    """Without speculation."""
    return live(models, asked, {"method": "none"}, 2, tail_tokens=TAIL)


def assert_sound(result: LiveResult, plain: LiveResult) -> None:
    """It adds up, some candidates passed and some failed, and the text is the target's own."""
    assert result.reconciliation["ok"], result.reconciliation["mismatches"]
    counts = result.log.counts()
    assert 0 < counts["accepted"].sum() < counts["drafted"].sum() == result.reconciliation["engine"]["num_draft_tokens"]
    outputs = [result.outputs[i].tolist() for i in range(len(result.outputs))]
    assert outputs == [plain.outputs[i].tolist() for i in range(len(plain.outputs))]


def expected(asked: Requests, plain: LiveResult, propose: Callable[[list[int]], list[int]]) -> list[tuple]:
    """(request, drafted, accepted) of every decode step, from the target's text and what is proposed behind it."""
    steps = []
    for i in range(len(asked)):
        text = asked.prompts[i].tolist() + plain.outputs[i].tolist() + plain.tails[i].tolist()
        at, end = len(asked.prompts[i]) + 1, len(asked.prompts[i]) + len(plain.outputs[i])
        while at < end:
            candidates = propose(text[:at])
            right = [a == b for a, b in zip(candidates, text[at:], strict=False)]
            accepted = right.index(False) if False in right else len(right)
            steps.append((i, len(candidates), accepted))
            at += accepted + 1
    return steps


def steps(result: LiveResult) -> list[tuple]:
    log = result.log
    return list(zip(log.request.tolist(), log.drafted.tolist(), log.accepted.tolist(), strict=True))


def along(step_of_the_map: list[int], known: Callable[[int], bool] = lambda token: True) -> Callable:
    def propose(history: list[int]) -> list[int]:
        out, token = [], history[-1]
        for _ in range(K):
            token = step_of_the_map[token]
            out.append(token if known(token) else -1)  # whatever stands there, it is wrong
        return out

    return propose


@pytest.mark.parametrize(
    ("method", "target"), [("eagle", "target"), ("medusa", "target"), ("mtp", "mimo")], ids=lambda value: value
)
def test_heads_that_know_the_map(models, asked, plain, step_of_the_map, method, target):
    config = {"method": method, "num_speculative_tokens": K}
    if method != "mtp":  # MTP layers lie in the target's checkpoint
        config["model"] = models[method]
    result = live(models, asked, config, 2, target)
    assert_sound(result, plain)
    assert steps(result) == expected(asked, plain, along(step_of_the_map))


def test_eagle3_with_a_vocabulary_of_its_own(models, asked, plain, step_of_the_map):
    """Its draft vocabulary lacks every third token: the first of those ends what can be accepted."""
    config = {"method": "eagle3", "model": models["eagle3"], "num_speculative_tokens": K}
    result = live(models, asked, config, 2)
    assert_sound(result, plain)
    got, right = steps(result), expected(asked, plain, along(step_of_the_map, lambda token: token % 3 > 0))
    assert got == right


@pytest.mark.parametrize("size", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_suffix_with_a_small_cache_and_with_none(models, asked, plain, size):
    config = {"method": "suffix", "suffix_decoding_max_cached_requests": size}
    result = live(models, asked, config, 1)
    assert_sound(result, plain)
    trace = material.captured(asked, plain)
    assert material.differences(result.log, replay_recorded(trace, effective(config), max_model_len=LIMIT)) == []


def test_a_class_of_our_own(models, asked, plain, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = {"model": "continuing_proposer.Continuing", "num_speculative_tokens": 2}
    result = live(models, asked, config, 2)
    assert_sound(result, plain)
    assert steps(result) == expected(asked, plain, follow)
    assert (result.log.drafted == 0).any()


def test_the_number_of_candidates_follows_the_batch_before(models, asked, plain, step_of_the_map):
    config = {"method": "draft_model", "model": models["draft"], "num_speculative_tokens": K}
    result = live(models, asked, config | {"num_speculative_tokens_per_batch_size": BATCHES}, 4)
    assert_sound(result, plain)
    most = np.array([0, 3, 1, 0, 0])
    sequences = result.engine_steps["sequences"].to_numpy()
    assert set(sequences.tolist()) == {1, 2, 3, 4}
    log = result.log
    assert log.drafted.tolist() == most[sequences[log.engine_step - 1]].tolist()
    nothing = log.miss_reason[log.drafted == 0]
    assert len(nothing) and (nothing == MISS_REASONS.index("skipped")).all()
    counts = log.counts()
    assert 0 < counts["rounds"].sum() < counts["steps"].sum()
