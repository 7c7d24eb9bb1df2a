"""An imported run on the pages: what its source does not say is n/a, and no page claims anything about it."""

import json

import pytest
from ingested import jsonl

from pipeline.imports.run import import_counts
from pipeline.warehouse import Warehouse

VLLM = {
    "acceptance_histogram": [1, 2, 0],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 2,
    "num_draft_tokens": 5,
    "num_spec_tokens": 2,
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> Warehouse:
    folder = tmp_path_factory.mktemp("imported")
    house = Warehouse(folder / "wh")
    choice = {"new_tokens": [4], "accept_lengths": [1, 3], "turns": ["said"], "decoding_steps": [2]}
    answers = [{"question_id": q, "category": "qa", "model_id": "eagle", "choices": [choice]} for q in range(3)]
    import_counts([jsonl(folder / "answers.jsonl", answers)], house, "published")
    rows = [
        {"id": str(i), "choices": [], "usage": {"completion_tokens": 9}, "metrics": {"speculative_decoding": VLLM}}
        for i in range(3)
    ]
    import_counts([jsonl(folder / "server.jsonl", rows)], house, "served")
    return house


@pytest.mark.parametrize("run", ["published", "served"])
def test_coverage_page(imported, open_app, run):
    app = open_app(imported.root)
    app = app.selectbox(key="run").set_value(run).run()
    assert not app.exception
    said = " ".join(c.value for c in app.caption)
    assert "imported · complete" in said
    assert "None" not in said
    assert "No point where coverage is unknown" in said
    assert "Imported counts say nothing of steps that proposed nothing." in said
    assert "nothing was ever proposed" not in said
    assert "Every decode step of the proposers chosen proposed something." not in said
    (shown,) = [d.value for d in app.dataframe if "accepted" in d.value][:1]
    expected = {"published": {"accepted": 6, "steps": 6}, "served": {"accepted": 6, "rounds": 9, "drafted": 15}}[run]
    assert {name: int(shown[name][0]) for name in expected} == expected
    unknown = {"published": {"rounds", "drafted", "coverage"}, "served": {"steps", "coverage", "tokens_per_step"}}[run]
    assert not unknown & set(shown.columns)  # a column without any value is left out
    assert not app.get("vega_lite_chart")  # axes without a point say nothing


def test_names_that_differ_at_their_end_do_not_look_alike(tmp_path, open_app):
    """The width is checked against what the browser's table needs: 8 pixels a character at its font."""
    house = Warehouse(tmp_path / "wh")
    names = [f"vicuna-7b-v1.3-sps-68m-float16-temp-{end}" for end in ("0.0", "1.0")]
    choice = {"new_tokens": [4], "accept_lengths": [1, 3]}
    answers = [{"question_id": 1, "model_id": name, "choices": [choice]} for name in names]
    import_counts([jsonl(tmp_path / "answers.jsonl", answers)], house, "published")
    app = open_app(house.root)
    assert not app.exception
    for table in app.dataframe:
        assert json.loads(table.proto.columns)["proposer"]["width"] >= 8 * len(names[0])


def test_positions_page(imported, open_app):
    app = open_app(imported.root).switch_page("pages/positions.py").run()
    assert not app.exception
    assert "imported without positions" in app.info[0].value
