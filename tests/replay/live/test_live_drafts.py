"""Parallel drafts and drafts with another vocabulary on the real engine: recorded replay gives the same rounds."""

import live_material as material
import pytest

from replay.live.launch import run_live
from replay.recorded.engine import replay_recorded
from schemas.speculative import effective

pytestmark = pytest.mark.live

COUNT, LIMIT = 12, 200


@pytest.fixture(scope="module")
def subset(asked, trace):
    """Some requests of each kind, the three with little room among them."""
    rows = [*range(COUNT - 3), *range(len(asked) - 3, len(asked))]
    return asked.take(rows), trace.take(rows)


def assert_parity(subset, config, folder):
    asked, trace = subset
    with material.kept(folder):
        live = run_live(asked, material.engine(1), material.proposer(config), max_model_len=LIMIT)
    recorded = replay_recorded(trace, effective(config), max_model_len=LIMIT, target=material.TARGET)
    assert live.reconciliation["ok"], live.reconciliation["mismatches"]
    assert material.differences(live.log, recorded) == []
    counts = live.log.counts()
    assert 0 < counts["accepted"].sum() < counts["drafted"].sum() and live.log.filler.any()
    some = range(0, len(asked), 4)
    assert material.found_again(live, asked, effective(config), material.verified(folder), some, LIMIT) > 50
    assert [live.outputs[i].tolist() for i in range(COUNT)] == [trace.outputs[i].tolist() for i in range(COUNT)]


def test_parallel_draft(subset, tmp_path):
    model = str(material.MODELS / "parallel_draft")
    config = {"method": "draft_model", "model": model, "num_speculative_tokens": 4, "parallel_drafting": True}
    assert_parity(subset, config, tmp_path)


def test_draft_with_another_vocabulary(subset, tmp_path):
    from tests.replay.tiny_models import foreign_draft

    config = {"method": "draft_model", "model": str(foreign_draft(tmp_path)), "num_speculative_tokens": 3}
    folder = tmp_path / "kept"
    folder.mkdir()
    assert_parity(subset, config | {"use_heterogeneous_vocab": True}, folder)
