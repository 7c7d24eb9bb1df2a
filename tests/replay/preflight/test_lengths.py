"""Lengths against limits, by hand."""

import json

import numpy as np
import pytest
from model_folders import copy

from replay.preflight.folder import Model, model
from replay.preflight.lengths import Lengths, draft_fits, lengths, positions, rope, target_fits
from replay.requests import Requests

FOUND = Lengths(np.array([100, 200, 700]), np.array([50, 60, 70]))


def requests(sampling: list[dict | None]) -> Requests:
    import pyarrow as pa

    made = Requests.from_lists([[1] * 5, [1] * 6, [1] * 7, [1] * 8], [[2] * 3, [2], [], [2] * 9])
    at = made.meta.schema.get_field_index("sampling")
    column = pa.array([None if s is None else json.dumps(s) for s in sampling], pa.string())
    return Requests(made.prompts, made.outputs, made.tails, made.meta.set_column(at, "sampling", column))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({}, [3, 40, 1, 9]),  # the row's own bound goes before its recorded length; an output has at least one token
        ({"max_tokens": 12}, [12] * 4),
        ({"temperature": 0}, [3, 40, 1, 9]),
        (None, [3, 1, 0, 9]),  # recorded: as it was
    ],
)
def test_what_a_request_may_put_out(override, expected):
    found = lengths(requests([None, {"max_tokens": 40}, {"top_k": 1}, {}]), override, 256)
    assert found.output.tolist() == expected
    assert found.prompt.tolist() == [5, 6, 7, 8]


def test_typical_lengths():
    total = [150, 260, 770]
    assert FOUND.total.tolist() == total
    expected = {"mean": 394, "p50": 260, "p95": 719, "max": 770}  # 393.3…; 260 + 0.9 × 510
    assert FOUND.typical() == expected
    assert Lengths(np.zeros(0, np.int64), np.zeros(0, np.int64)).typical() == {}


@pytest.mark.parametrize(("limit", "level", "over"), [(770, "ok", 0), (769, "warning", 1), (200, "warning", 2)])
def test_the_target(limit, level, over):
    (found,) = target_fits(FOUND, limit, live=True)
    assert (found.level, found.figures["over"], found.figures["longest"]) == (level, over, 770)
    assert "700 prompt + 70 output = 770" in found.found


def test_a_target_of_unknown_limit():
    (found,) = target_fits(FOUND, None, live=True)
    assert found.level == "ok" and "unknown" in found.found


@pytest.mark.parametrize(
    ("limit", "target_limit", "level", "over"),
    # 770 tokens: the last step that drafts for another one knows 768, 4 are verified and 4 more may be drafted
    [(776, 2048, "ok", 0), (775, 2048, "warning", 1), (200, 2048, "warning", 2), (155, 2048, "warning", 3)]
    + [(706, 700, "ok", 0), (705, 700, "warning", 1)],  # no request gets longer than the target takes
)
def test_a_proposer_needs_room_for_its_candidates(tmp_path, limit, target_limit, level, over):
    draft = model(str(copy(tmp_path / "draft")))
    (found,) = draft_fits("mine", FOUND, 4, limit, target_limit, draft)
    assert (found.level, found.figures["over"]) == (level, over)
    assert f"longest request {min(770, target_limit):,} and twice 4 candidates" in found.found
    lookup = draft_fits("mine", FOUND, 4, limit, target_limit, None)  # without a model only what is wrong is said
    assert [f.figures for f in lookup] == ([found.figures] if over else [])


def test_a_sliding_window_in_every_layer(tmp_path):
    windows = dict(sliding_window=512, use_sliding_window=True, layer_types=["sliding_attention"] * 2)
    draft = model(str(copy(tmp_path / "all", **windows)))
    (found,) = draft_fits("mine", FOUND, 4, 2048, 2048, draft)
    assert found.level == "warning" and "the last 512 tokens only" in found.found
    some = model(str(copy(tmp_path / "some", **windows | dict(layer_types=["sliding_attention", "full_attention"]))))
    assert draft_fits("mine", FOUND, 4, 2048, 2048, some)[0].level == "ok"
    off = model(str(copy(tmp_path / "off", **windows | dict(use_sliding_window=False))))
    assert draft_fits("mine", FOUND, 4, 2048, 2048, off)[0].level == "ok"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (dict(rope_parameters={"rope_theta": 1e6, "rope_type": "default"}), "RoPE default, θ 1,000,000"),
        (
            dict(
                rope_theta=10000,
                rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            ),
            "RoPE yarn, θ 10,000, ×4, from 32,768",
        ),
        (
            dict(rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 5.0, "factor": 8}}),
            "RoPE linear, θ 5, ×8",
        ),
        ({}, "RoPE default"),
    ],
)
def test_rope_in_words(config, said):
    made = Model("m", None)
    made.__dict__["config"] = config
    assert rope(made) == said


def test_positions_of_a_multimodal_config(tmp_path):
    folder = copy(tmp_path / "m", text_config={"max_position_embeddings": 99, "vocab_size": 7})
    assert (positions(model(str(folder))), model(str(folder)).vocab_size) == (99, 7)
