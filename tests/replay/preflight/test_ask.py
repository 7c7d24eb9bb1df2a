"""vLLM asked about a config full of faults: one child process, no engine, and every fault is found and counted."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from model_folders import DEMO, by_id, copy, shuffled

from replay.live.check import check_live
from replay.preflight.findings import ENVIRONMENT, Finding
from replay.preflight.lengths import lengths
from replay.requests import Requests, Tokens
from schemas.config import EngineSection, Proposer
from schemas.speculative import effective

pytestmark = pytest.mark.live

TARGET = DEMO / "target"
SAMPLING = {
    "plain": None,
    "p1": {"min_p": 0.1, "temperature": 1.0},
    "p2": {"min_p": 0.1, "temperature": 0.5},
    "greedy": {"min_p": 0.1, "temperature": 0.0},
    "bias": {"logit_bias": {"5": 1.0}},
    "stop": {"stop": ["\n"]},
    "two": {"n": 2},
    "grammar": {"structured_outputs": {"regex": "a+"}},
    "typo": {"temperatur": 0.2},
    "end": {"stop_token_ids": [99999]},
    "empty": None,
    "long": None,
    "foreign": None,
}
PROMPTS = {name: [5, 6, 7] for name in SAMPLING} | {"empty": [], "long": [5] * 2048, "foreign": [5, 2048]}


def proposer(name: str, config: dict) -> Proposer:
    return Proposer(name=name, config=effective(config), key="0")


def requests(names) -> Requests:
    made = Requests.from_lists([PROMPTS[name] for name in names], [[1] * 20 for _ in names])
    meta = made.meta
    for column, values in (
        ("sampling", [None if SAMPLING[n] is None else json.dumps(SAMPLING[n]) for n in names]),
        ("request_id", list(names)),
    ):
        meta = meta.set_column(meta.schema.get_field_index(column), column, pa.array(values, pa.string()))
    return Requests(made.prompts, Tokens.of([[1, 2, 3]]), made.tails, meta)


def asked(names, proposers, **engine) -> list[Finding]:
    selection = requests(names)
    section = EngineSection.model_validate({"kind": "vllm", "model": str(TARGET), "concurrency": [1, 3]} | engine)
    return check_live(selection, section, proposers, lengths(selection, section.sampling, 256), max_model_len=None)


def gemma(folder: Path) -> Path:
    """Five layers with a sliding window, then one that sees all."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=64, intermediate_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    made = transformers.Gemma3TextConfig(
        vocab_size=2048, num_hidden_layers=6, sliding_window=64, max_position_embeddings=1024, **sizes
    )
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(made.to_dict() | {"architectures": ["Gemma3ForCausalLM"]}))
    return folder


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafts")
    return {
        "moved": shuffled(copy(folder / "moved"), [300, 301, 302]),
        "short": copy(folder / "short", max_position_embeddings=64),
        "larger": copy(folder / "larger", vocab_size=2176),
        "mixed": gemma(folder / "mixed"),
    }


@pytest.fixture(scope="module")
def found(drafts) -> list[Finding]:
    draft = {"method": "draft_model", "num_speculative_tokens": 3}
    ngram = {"num_speculative_tokens": 2, "prompt_lookup_max": 2}
    proposers = [
        proposer("none", {"method": "none"}),
        proposer("ngram", ngram | {"method": "ngram"}),
        proposer("ngram_gpu", ngram | {"method": "ngram_gpu"}),
        proposer("block", ngram | {"method": "ngram", "rejection_sample_method": "block"}),
        *(proposer(name, draft | {"model": str(folder)}) for name, folder in drafts.items()),
        proposer("gone", draft | {"model": "./nowhere"}),
    ]
    return asked(list(SAMPLING), proposers)


def of(found: list[Finding], check: str, proposer: str | None, level: str | None = None) -> list[Finding]:
    return [f for f in found if (f.check, f.proposer) == (check, proposer) and level in (None, f.level)]


@pytest.mark.parametrize(
    ("proposer", "words", "count", "example"),
    [
        (None, "is empty", 1, "empty"),
        (None, "leaves no room within max_model_len = 2048", 1, "long"),
        (None, "token id 2048 is outside the model's 2048", 1, "foreign"),
        (None, "stop strings", 1, "stop"),
        (None, "n = 2:", 1, "two"),
        (None, "temperatur", 1, "typo"),
        (None, "in stop_token_ids contain", 1, "end"),
        ("ngram", "min_p and logit_bias", 3, "p1"),
        ("short", "min_p and logit_bias", 3, "p1"),
        ("moved", "min_p and logit_bias", 3, "p1"),
    ],
)
def test_refused_requests_are_counted(found, proposer, words, count, example):
    (one,) = [f for f in of(found, "requests", proposer, "refusal") if words in f.found]
    assert one.figures == {"requests": count, "example": example}
    assert one.found.startswith(f"{count} of 13 requests (such as {example!r}): ")


def test_what_all_share_is_said_once(found):
    for name in ("ngram", "moved", "short"):
        assert len(of(found, "requests", name)) == 1


def test_a_grammar_is_a_warning(found):
    (one,) = of(found, "requests", None, "warning")
    assert one.figures == {"requests": 1} and "grammar" in one.found


@pytest.mark.parametrize(
    ("proposer", "check", "words"),
    [
        ("ngram_gpu", ENVIRONMENT, "pinned memory"),
        ("block", "settings", 'rejection_sample_method = "block"'),
        ("larger", "vocabulary", "the target's vocab_size is 2,048, the draft's 2,176"),
        ("mixed", "memory", "mixes kinds of attention layers"),
        ("gone", "settings", "./nowhere"),
    ],
)
def test_proposers_that_cannot_run(found, proposer, check, words):
    (one,) = [f for f in found if f.proposer == proposer and f.level == "refusal" and f.check != "requests"]
    assert one.check == check and words in one.found


def test_moved_ids(found, drafts):
    (one,) = of(found, "vocabulary", "moved")
    assert (one.level, one.figures["other"]) == ("warning", 3)
    assert repr(by_id(drafts["moved"])[301]) in one.found


def test_a_short_draft(found):
    (one,) = of(found, "context", "short")
    # the longest is a prompt of 2,048; all others end at 3 + 20 tokens at most, and fit into 64 with 3 candidates
    assert (one.level, one.figures["over"], one.figures["max_model_len"]) == ("warning", 1, 64)


def test_the_target_itself(found):
    (one,) = of(found, "context", None)
    assert (one.level, one.figures["longest"], one.figures["over"]) == ("warning", 2068, 1)


def test_a_clean_config():
    ngram = proposer("ngram", {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2})
    clean = asked(["plain", "p1"], [proposer("none", {"method": "none"}), ngram], sampling={"min_p": 0})
    # p1 is sampled at temperature 1, which the CPU build verifies wrongly unless its function is replaced
    assert [(f.check, f.level) for f in clean if f.level != "ok"] == [("requests", "warning")]
    assert of(clean, "requests", "ngram")[0].figures == {"requests": 1}
    assert clean[0].found == "vLLM takes the settings of 2 proposers and all 2 requests"


@pytest.mark.slow
def test_one_wrong_engine_setting_is_one_line():
    both = [
        proposer(n, {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 2})
        for n, k in (("a", 2), ("b", 3))
    ]
    (one,) = asked(["plain"], both, gpu_memory_utilisation=0.5)
    assert (one.check, one.proposer, one.level) == ("settings", None, "refusal")
    assert "gpu_memory_utilisation" in one.found and "'gpu_memory_utilization'" in one.found


def test_shapes():
    assert np.array_equal(requests(["plain", "empty"]).prompts.lengths, [3, 0])
