"""An imported run on the pages: what its source does not say is n/a, and no page claims anything about it."""

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


def test_positions_page(imported, open_app):
    app = open_app(imported.root).switch_page("pages/positions.py").run()
    assert not app.exception
    assert "imported without positions" in app.info[0].value
