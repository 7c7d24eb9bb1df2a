"""A parallel draft by one reading of all masks against vLLM's layout taken literally: one forward per round."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from upstream import FAR, logged, serve

from replay.recorded.engine import replay_recorded
from replay.requests import Requests
from schemas.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DEMO = Path(__file__).parents[3] / "examples" / "models" / "parallel_draft"
MASK, POSITIONS = 39, 96


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a random model of 40 tokens, the last of them its mask."""
    from tests.replay.tiny_models import random_draft

    return random_draft(tmp_path_factory.mktemp("tiny"), positions=POSITIONS, pard_token=MASK)


def one_forward_per_round(folder, mask, k):
    """[history, mask, …, mask] in one forward; the last k positions answer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def propose(tokens, sampled):
        with torch.inference_mode():
            return model(torch.tensor([[*tokens, *[mask] * (k - 1)]])).logits[0, -k:].argmax(-1).tolist()

    return propose


def agreeing(folder, mask, k, vocabulary, lengths, seed=1):
    """Records that follow a round's candidates for some of their length: (prompt, output, tail)."""
    random, propose = np.random.default_rng(seed), one_forward_per_round(folder, mask, k)
    for prompt, output, tail in lengths:
        ids = random.integers(0, vocabulary, prompt).tolist()
        while len(ids) < prompt + output + tail:
            ids += propose(ids, None)[: random.integers(0, k + 1)] + [int(random.integers(0, vocabulary))]
        yield ids[:prompt], ids[prompt : prompt + output], ids[prompt + output : prompt + output + tail]


def assert_serves(folder, mask, records, k, limit=FAR, own=FAR):
    requests = Requests.from_lists(*zip(*records, strict=True))
    config = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": k, "parallel_drafting": True}
    log = replay_recorded(requests, config, max_model_len=None if limit == FAR else limit)
    served = [serve(*record, k, one_forward_per_round(folder, mask, k), limit, own) for record in records]
    assert [logged(log, i) for i in range(len(records))] == served
    return log


@pytest.mark.parametrize("k", [1, 2, 5])
def test_every_round(tiny, k):
    lengths = [(5, 30, 8), (20, 1, 0), (1, 25, 0), (40, 2, 3), (3, 44, 2), (17, 9, 1)]
    log = assert_serves(tiny, MASK, list(agreeing(tiny, MASK, k, 40, lengths)), k)
    assert {0, k} <= set(log.accepted.tolist()) and (log.drafted == k).all()


def test_every_round_to_the_limits(tiny):
    """The target's limit, then the draft's own: no mask stands past either."""
    records = list(agreeing(tiny, MASK, 4, 40, [(20, 30, 0), (30, 20, 0), (46, 4, 0), (49, 1, 0), (10, 15, 0)]))
    log = assert_serves(tiny, MASK, records, 4, limit=50)
    assert (log.filler > 0).any() and (log.filler < log.drafted).any()
    records = list(agreeing(tiny, MASK, 3, 40, [(60, 35, 0), (100, 9, 2), (94, 2, 0), (5, 20, 0)]))
    assert (assert_serves(tiny, MASK, records, 3, own=POSITIONS).filler > 0).any()


def test_parts_change_nothing(tiny, monkeypatch):
    """A few sequences at once, a few histories at once."""
    lengths = [(int(n), 14, 2) for n in np.random.default_rng(2).integers(1, 60, 9)]
    monkeypatch.setattr("replay.recorded.draft_forward.BATCH_TOKENS", 150)
    monkeypatch.setattr("replay.recorded.parallel_draft.MASK_CELLS", 1000)
    assert_serves(tiny, MASK, list(agreeing(tiny, MASK, 4, 40, lengths)), 4)


def test_every_round_of_the_demo_draft():
    mask = json.loads((DEMO / "config.json").read_text())["pard_token"]
    records = list(agreeing(DEMO, mask, 4, 2048, [(12, 40, 5), (60, 50, 0), (33, 25, 5)]))
    assert {0, 4} <= set(assert_serves(DEMO, mask, records, 4).accepted.tolist())


def test_a_draft_without_a_mask_token(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "maskless")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "pard_token"}))
    settings = {"model": str(folder), "num_speculative_tokens": 2, "parallel_drafting": True}
    with pytest.raises(InputError, match="names no mask token"):
        replay_recorded(Requests.from_lists([[1]], [[2, 3]]), settings)
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": ["full_attention", "sliding_attention"]}))
    with pytest.raises(InputError, match="sliding_attention"):
        replay_recorded(Requests.from_lists([[1]], [[2, 3]]), settings)
