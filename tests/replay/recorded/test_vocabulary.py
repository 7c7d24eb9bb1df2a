"""A draft with another vocabulary, against vLLM's own mapping and its steps taken token by token."""

import json

import numpy as np
import pytest
from upstream import FAR, logged, serve

from replay.recorded.engine import replay_recorded
from replay.recorded.vocabulary import between
from replay.requests import Requests
from schemas.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    from tests.replay.tiny_models import foreign_draft

    return foreign_draft(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def target():
    from tests.replay.tiny_models import DEMO

    return DEMO / "target"


@pytest.fixture(scope="module")
def upstream_mapping(foreign, target):
    mapping = pytest.importorskip("vllm.v1.spec_decode.vocab_mapping")
    known = [transformers.AutoTokenizer.from_pretrained(folder) for folder in (target, foreign)]
    return mapping.VocabMapping(*known, 2048, 600, torch.device("cpu"))


def test_the_mapping_is_vllms(foreign, target, upstream_mapping):
    ours = between(str(target), str(foreign))
    assert upstream_mapping.intersection_size == ours.shared.sum() and 100 < ours.shared.sum() < 600
    assert ours.to_draft.tolist() == upstream_mapping.map_target_to_draft_ids(torch.arange(2048)).tolist()
    assert ours.to_target.tolist() == upstream_mapping.map_draft_to_target_ids(torch.arange(600)).tolist()
    assert ours.shared.tolist() == upstream_mapping.intersection_mask_draft.tolist()
    assert (ours.to_target[ours.shared] != np.flatnonzero(ours.shared)).any()  # the ids really differ


def test_every_step(foreign, target, upstream_mapping):
    k = 3
    model = transformers.AutoModelForCausalLM.from_pretrained(foreign, dtype=torch.float32)

    def propose(tokens, sampled, k=k):
        ids = upstream_mapping.map_target_to_draft_ids(torch.tensor([tokens]))
        out = []
        for _ in range(k):
            with torch.inference_mode():
                logits = upstream_mapping.constrain_draft_logits(model(ids).logits[0, -1:])
            out.append(int(upstream_mapping.map_draft_to_target_ids(logits.argmax(-1))))
            ids = torch.cat((ids, upstream_mapping.map_target_to_draft_ids(torch.tensor([out[-1:]]))), 1)
        return out

    random, records = np.random.default_rng(1), []
    for prompt, output, tail in [(12, 40, 5), (40, 20, 0), (3, 25, 3)]:
        ids = random.integers(0, 2048, prompt).tolist()
        while len(ids) < prompt + output + tail:
            ids.append(propose(ids, None, 1)[0] if random.random() < 0.7 else int(random.integers(0, 2048)))
        records.append((ids[:prompt], ids[prompt : prompt + output], ids[prompt + output :]))
    config = {
        "method": "draft_model", "model": str(foreign), "num_speculative_tokens": k, "use_heterogeneous_vocab": True,
    }  # fmt: skip
    log = replay_recorded(Requests.from_lists(*zip(*records, strict=True)), config, target=str(target))
    served = [serve(*record, k, propose, FAR, 2048) for record in records]
    assert [logged(log, i) for i in range(len(records))] == served and {0, k} <= set(log.accepted.tolist())


def test_what_it_needs(foreign, target, tmp_path):
    config = {"model": str(foreign), "num_speculative_tokens": 2, "use_heterogeneous_vocab": True}
    one = Requests.from_lists([[1]], [[2, 2047]])
    with pytest.raises(InputError, match=r"needs the target's tokenizer: set \[engine\] model"):
        replay_recorded(one, config)
    with pytest.raises(InputError, match='needs method = "draft_model"'):
        replay_recorded(one, {"method": "suffix", "use_heterogeneous_vocab": True}, target=str(target))
    with pytest.raises(InputError, match=r"holds id 2048; .*target.* knows ids below 2048"):
        replay_recorded(Requests.from_lists([[1]], [[2, 2048]]), config, target=str(target))
    with pytest.raises(InputError, match=r"holds id 2047; .* knows ids below 600"):  # unmapped, the draft's own ids
        replay_recorded(one, config | {"use_heterogeneous_vocab": False})
    with pytest.raises(InputError, match=r"has 600 ids, the target .* 2048: set use_heterogeneous_vocab = true"):
        replay_recorded(one, config | {"use_heterogeneous_vocab": False}, target=str(target))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(InputError, match=r"use_heterogeneous_vocab: .* holds no tokenizer") as error:
        replay_recorded(one, config, target=str(tmp_path))
    assert "\n" not in str(error.value)
