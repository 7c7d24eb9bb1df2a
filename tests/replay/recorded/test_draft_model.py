"""A draft model by one forward per sequence against the same model asked token by token."""

import shutil
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from upstream import FAR, logged, serve

from replay.recorded.engine import replay_recorded
from replay.recorded.exactness import label
from replay.requests import Requests
from schemas.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DEMO = Path(__file__).parents[3] / "examples" / "models" / "draft"
POSITIONS = 96
"""Maximal length of the tiny model."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Two threads on a busy machine can be fifty times slower than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a random model of 40 tokens, whose greedy text is varied enough to be half right."""
    from tests.replay.tiny_models import random_draft

    return random_draft(tmp_path_factory.mktemp("tiny"), positions=POSITIONS)


def greedy(folder, k):
    """Token by token: the whole history is read again for every candidate."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def propose(tokens, sampled):
        ids = list(tokens)
        for _ in range(k):
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(tokens) :]

    return propose


def half_right(folder, vocabulary, lengths, seed=1):
    """Records that follow the model's greedy choice at about three places of four: (prompt, output, tail)."""
    random, choose = np.random.default_rng(seed), greedy(folder, 1)
    for prompt, output, tail in lengths:
        ids = random.integers(0, vocabulary, prompt).tolist()
        while len(ids) < prompt + output + tail:
            follow = random.random() < 0.75
            ids.append(choose(ids, None)[0] if follow else int(random.integers(0, vocabulary)))
        yield ids[:prompt], ids[prompt : prompt + output], ids[prompt + output :]


def assert_serves(folder, records, k, limit=FAR, own=FAR):
    requests = Requests.from_lists(*zip(*records, strict=True))
    config = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": k}
    log = replay_recorded(requests, config, max_model_len=None if limit == FAR else limit)
    served = [serve(*record, k, greedy(folder, k), limit, own) for record in records]
    assert [logged(log, i) for i in range(len(records))] == served
    return log


@pytest.mark.parametrize("k", [1, 3, 6])
def test_every_step(tiny, k):
    lengths = [(5, 30, 8), (20, 1, 0), (1, 25, 0), (40, 2, 3), (3, 44, 2), (17, 9, 1)]
    log = assert_serves(tiny, list(half_right(tiny, 40, lengths)), k)
    accepted = set(log.accepted.tolist())
    assert {0, k} <= accepted and (log.drafted == k).all()


def test_every_step_to_the_limit(tiny):
    lengths = [(20, 30, 0), (30, 20, 0), (46, 4, 0), (10, 15, 0)]
    log = assert_serves(tiny, list(half_right(tiny, 40, lengths)), 4, limit=50)
    assert (log.filler > 0).any() and (log.filler < log.drafted).any()


def test_the_drafts_own_length_is_a_limit_too(tiny):
    """Past it vLLM verifies placeholders, however much the target could take."""
    log = assert_serves(tiny, list(half_right(tiny, 40, [(60, 55, 0), (100, 9, 2), (5, 20, 0)])), 3, own=POSITIONS)
    assert (log.filler > 0).any()


def test_batches_of_many_lengths_change_nothing(tiny, monkeypatch):
    records = list(half_right(tiny, 40, [(int(n), 12, 2) for n in np.random.default_rng(2).integers(1, 60, 12)]))
    requests = Requests.from_lists(*zip(*records, strict=True))
    config = {"method": "draft_model", "model": str(tiny), "num_speculative_tokens": 4}
    done = []
    whole = replay_recorded(requests, config, progress=done.append)
    monkeypatch.setattr("replay.recorded.draft_model._kept", OrderedDict())
    monkeypatch.setattr("replay.recorded.draft_forward.BATCH_TOKENS", 150)
    monkeypatch.setattr("replay.recorded.draft_forward.HEAD_ROWS", 5)
    parts = replay_recorded(requests, config, progress=done.append)
    assert np.array_equal(whole.accepted, parts.accepted) and sum(done) == 24


def test_every_k_from_one_forward(tiny, monkeypatch):
    """Once the record is read, any k, limit or max_model_len is counted without the model."""
    records = list(half_right(tiny, 40, [(9, 30, 4), (30, 12, 0), (3, 2, 0)], seed=5))
    assert_serves(tiny, records, 3)
    monkeypatch.setattr("replay.recorded.draft_model.agreement_runs", None)
    for k, limit in ((1, FAR), (2, 45), (7, FAR), (20, FAR)):
        assert_serves(tiny, records, k, limit, own=POSITIONS)
    with pytest.raises(TypeError):  # other ids are read
        assert_serves(tiny, records[:2], 3)


def test_what_is_kept_is_bounded(tiny, monkeypatch):
    monkeypatch.setattr("replay.recorded.draft_model._kept", kept := OrderedDict())
    monkeypatch.setattr("replay.recorded.draft_model._KEPT_BYTES", 100)
    for seed in range(4):
        records = list(half_right(tiny, 40, [(5, 21, 0)], seed))
        assert_serves(tiny, records, 2)
        assert sum(run.nbytes for held in kept.values() for run in held) <= 100
    assert len(kept) == 2  # of 40 bytes each


def test_bfloat16_is_another_draft(tiny):
    """The oracle is the model itself in bfloat16, one forward per sequence."""
    records = list(half_right(tiny, 40, [(20, 60, 0)], seed=3))
    config = {"method": "draft_model", "model": str(tiny), "num_speculative_tokens": 1}
    requests = Requests.from_lists(*zip(*records, strict=True))
    logs = {dtype: replay_recorded(requests, config, dtype=dtype) for dtype in ("float32", "bfloat16")}
    for dtype, log in logs.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=getattr(torch, dtype))
        ids = records[0][0] + records[0][1]
        with torch.inference_mode():
            best = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
        history, expected = 21, []
        while history < len(ids):
            expected.append(int(best[history - 1] == ids[history]))
            history += 1 + expected[-1]
        assert log.accepted.tolist() == expected
    with pytest.raises(InputError, match="dtype = 'int8'"):
        replay_recorded(requests, config, dtype="int8")


def test_every_step_of_the_demo_draft():
    vocabulary = transformers.AutoConfig.from_pretrained(DEMO).vocab_size
    log = assert_serves(DEMO, list(half_right(DEMO, vocabulary, [(12, 40, 5), (60, 50, 0), (33, 25, 5)])), 5)
    assert {0, 5} <= set(log.accepted.tolist())


def test_ids_beyond_the_drafts_vocabulary(tiny):
    requests = Requests.from_lists([[1], [2]], [[3, 4], [39, 40]])
    with pytest.raises(InputError, match=r"request '1' holds id 40; .* knows ids below 40"):
        replay_recorded(requests, {"method": "draft_model", "model": str(tiny), "num_speculative_tokens": 2})


def test_a_folder_that_is_no_model(tmp_path):
    requests = Requests.from_lists([[1]], [[2, 3]])
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    for folder in (tmp_path / "none", empty, broken):
        with pytest.raises(InputError) as error:
            replay_recorded(requests, {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2})
        assert str(folder) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("said", ["{", "[1]", "[" * 100_000, '{"text_config": 5}', '{"vocab_size": "40"}'])
def test_a_targets_config_that_says_nothing(tiny, tmp_path, said):
    """Its size and its limit are then unknown; the counts are those without a target."""
    config = {"method": "draft_model", "model": str(tiny), "num_speculative_tokens": 2}
    requests = Requests.from_lists([[1, 2]], [[3, 4, 5]])
    (tmp_path / "config.json").write_text(said)
    assert "own limit" not in " ".join(label(requests, config, target=str(tmp_path)))
    log = replay_recorded(requests, config, target=str(tmp_path))
    assert log.accepted.tolist() == replay_recorded(requests, config).accepted.tolist()


def test_a_tokenizer_config_that_cannot_be_read(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "draft")
    config = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
    requests = Requests.from_lists([[1, 2]], [[3, 4, 5]])
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: cannot be read as JSON$"):
        replay_recorded(requests, config)
    for useless in ("[1]", '{"model_max_length": "x"}'):
        (folder / "tokenizer_config.json").write_text(useless)
        assert len(replay_recorded(requests, config).accepted)


def test_a_length_beyond_the_drafts_own(tiny):
    config = {"method": "draft_model", "model": str(tiny), "num_speculative_tokens": 2, "max_model_len": 500}
    with pytest.raises(InputError, match="max_model_len = 500"):
        replay_recorded(Requests.from_lists([[1]], [[2, 3]]), config)
