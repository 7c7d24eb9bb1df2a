"""Exact or proxy, and why: one reason per column that tells."""

import json

import pytest
from test_engine import with_columns

from replay.recorded.exactness import label
from replay.requests import Requests

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 5}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}
WHOLE = with_columns(
    Requests.from_lists([[1, 2]] * 2, [[3, 4, 5], [6]], [[7, 8, 9, 1, 2], []]),
    model=["target", "target"],
    finish_reason=["length", "stop"],
    extra=[json.dumps({"token_ids": "captured"}), None],
)


def test_a_captured_trace_is_exact():
    assert label(WHOLE, NGRAM, target="/models/target", max_model_len=100, concurrency=8)[0] == "exact"
    assert label(WHOLE, SUFFIX, target=None)[0] == "exact"


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"model": ["target", "gpt-4o"]}, {}, "1 outputs come from another model (gpt-4o), not from target"),
        ({"model": ["target", None]}, {}, "1 rows do not say which model"),
        ({"extra": ['{"token_ids": "tokenised"}', None]}, {}, "ids of 1 requests were made from text"),
        ({"extra": ['{"reasoning": "left out"}', None]}, {}, "1 outputs lack the reasoning"),
        ({"extra": ['{"text": "disagrees"}'] * 2}, {}, "text of 2 requests is not what their ids say"),
        ({"sampling": ['{"logit_bias": {"5": 1}}', '{"min_p": 0.0}']}, {}, "does not speculate on 1 requests"),
        ({"sampling": ['{"structured_outputs": "json"}', None]}, {}, "drafted, rounds and coverage are upper bounds"),
        (
            {"sampling": ['{"temperature": 0.7}'] * 2},
            {"sampling": {"temperature": 0, "max_tokens": 9}},
            "2 outputs were",
        ),
        ({"sampling": ['{"min_p": 0.1}', None]}, {}, "does not speculate on 1 requests"),
        ({"sampling": ['{"structured_outputs": {"json": {}}}', None]}, {}, "1 requests have a grammar"),
        ({}, {"concurrency": 8, "max_model_len": 8}, "placeholders"),
    ],
)
def test_what_makes_a_proxy(columns, options, words):
    kind, reason = label(with_columns(WHOLE, **columns), NGRAM, **({"target": "models/target"} | options))
    assert kind == "proxy" and words in reason


def test_a_lookup_names_its_rule():
    said = {}
    for runner in ("v1", "v2"):
        kind, said[runner] = label(WHOLE, NGRAM, target=None, max_model_len=8, concurrency=8, runner=runner)
        assert kind == ("proxy" if runner == "v1" else "exact")  # placeholders for the whole batch: V1 alone
    assert said["v1"].endswith("; ngram on v1: longest window, its first match")
    assert "ngram on v2: longest window, its last match, filled up to k" in said["v2"]
    assert "never run" in label(WHOLE, NGRAM | {"method": "ngram_gpu"}, target=None)[1]
    assert "window" not in label(WHOLE, SUFFIX, target=None, runner="v2")[1]


def test_near_the_limit_that_the_replay_was_not_told(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    for own, kind in ((15, "exact"), (14, "proxy")):  # the longest has 5 tokens, and k = 5
        (folder / "config.json").write_text(json.dumps({"max_position_embeddings": own}))
        found, reason = label(WHOLE, NGRAM, target=str(folder))
        assert (found, "1 requests come near the target's own limit of 14 tokens" in reason) == (kind, kind == "proxy")
        assert label(WHOLE, NGRAM, target=str(folder), max_model_len=own)[0] == "exact"


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_draft_model_near_a_limit(tmp_path, runner):
    """Longest request: 5 tokens; k = 2. V1 is asynchronous on a GPU, V2 is followed as it is."""
    draft = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 2}
    given = {"target": None, "runner": runner}
    for limit, kind in ((12, "exact"), (11, "proxy" if runner == "v1" else "exact")):
        found, reason = label(WHOLE, draft, max_model_len=limit, **given)
        assert (found, "1 requests come, an engine that schedules asynchronously" in reason) == (kind, kind == "proxy")
        assert label(WHOLE, draft | {"disable_padded_drafter_batch": True}, max_model_len=limit, **given)[0] == "exact"
    at_once = label(WHOLE, draft | {"disable_padded_drafter_batch": True}, max_model_len=8, concurrency=2, **given)
    assert at_once[0] == ("proxy" if runner == "v1" else "exact")
    parallel = draft | {"parallel_drafting": True}
    assert label(WHOLE, parallel, max_model_len=11, **given)[0] == "proxy"
    says = {"v1": "another engine", "v2": "draft_model on v2: asked in every step up to max_model_len, scheduled async"}
    assert says[runner] in label(WHOLE, draft, **given)[1]
    assert ("vLLM runs it on V1" in label(WHOLE, parallel, **given)[1]) == (runner == "v2")
    assert ("vLLM runs it on V1" in label(WHOLE, SUFFIX, **given)[1]) == (runner == "v2")


def test_a_draft_model_near_its_own_limit(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 7}))
    draft = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 2}
    assert label(WHOLE, draft, target=None, runner="v2")[0] == "exact"  # 5 + 2 tokens are within it
    kind, reason = label(WHOLE, draft | {"num_speculative_tokens": 3}, target=None, max_model_len=100, runner="v2")
    assert kind == "proxy" and "past its own 7 positions, in 1 requests" in reason
    kind, reason = label(WHOLE, draft, target=None, max_model_len=100)
    assert kind == "proxy" and "near the draft's own limit of 7 tokens" in reason
    assert label(WHOLE, draft | {"max_model_len": 12}, target=None, max_model_len=100)[0] == "exact"


def test_suffix_at_concurrency():
    assert "interleave" in label(WHOLE, SUFFIX, target=None, concurrency=2)[1]


def test_without_tails_the_last_round_is_unknown():
    bare = Requests.from_lists([[1]] * 3, [[2, 3], [2], []])
    kind, reason = label(bare, NGRAM, target=None)
    assert kind == "proxy"
    assert "1 requests have no tail_token_ids" in reason and "1 do not say why they ended" in reason


def test_no_speculation_is_always_exact():
    assert label(Requests.from_lists([[1]], [[2, 3]]), {"method": "none"}, target="x")[0] == "exact"
