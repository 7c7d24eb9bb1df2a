"""Outputs of a live run against those of none: a verifier that accepts too much is found, placed and priced."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_traces import NGRAM, config, rows, table

from pipeline.equality import shard_of
from pipeline.plan import plan
from pipeline.run import replay
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.config import ReplayConfig
from schemas.errors import GateError, InputError

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
MODEL = Path(os.environ.get("SPECREPLAY_TEST_MODELS") or HERE.parents[1] / "examples" / "models") / "target"
FAULTY = {"method": "custom_class", "model": "faulty_proposer.Faulty", "num_speculative_tokens": 1}


def live(**run) -> ReplayConfig:
    sampling = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    engine = {"kind": "vllm", "model": str(MODEL), "dtype": "float32", "concurrency": 3, "sampling": sampling}
    return config(NGRAM, FAULTY, engine=engine, **run)


def prompts() -> list[list[int]]:
    """Two that the faulty proposer leaves alone and three that it spoils."""
    return [[100 + (7 * i + 3 * j) % 400 for j in range(length)] for i, length in enumerate((12, 14, 40, 44, 48))]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    house = Warehouse(tmp_path_factory.mktemp("equality") / "wh")
    nothing = {"output_token_ids": None, "output_tokens": None, "finish_reason": None, "model": None}
    made = [
        row | nothing | {"prompt_token_ids": ids, "prompt_tokens": len(ids)}
        for row, ids in zip(rows(5), prompts(), strict=True)
    ]
    house.write_trace("small", [table(made)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(HERE))
        outcome = replay(live(), house)
    return house, outcome


def outputs(house: Warehouse, run: str) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for path in house.files("outputs", [run]):
        for row in pq.read_table(path, partitioning=None).sort_by("request").to_pylist():
            found.setdefault(row["proposer"], []).append(row["output_token_ids"])
    return found


def test_it_says_how_many_are_equal(ran):
    house, outcome = ran
    assert outcome.status == "complete"
    found = outputs(house, outcome.run)
    assert set(found) == {"none", "ngram 2-4 k3", "custom_class k1"}
    same = {name: sum(a == b for a, b in zip(ids, found["none"], strict=True)) for name, ids in found.items()}
    assert (same["ngram 2-4 k3"], same["custom_class k1"]) == (5, 2)
    done = house.run(outcome.run).done
    said = {name: entry.get("outputs") for name, entry in done["proposers"].items()}
    assert said == {
        "none": None,
        "ngram 2-4 k3": {"compared": 5, "equal": 5},
        "custom_class k1": {"compared": 5, "equal": 2},
    }
    view = query(connect(house), "SELECT proposer, compared, equal, first_position FROM output_equality ORDER BY 1")
    assert [tuple(row.values()) for row in view.to_pylist()] == [
        ("custom_class k1", 5, 2, 2),
        ("ngram 2-4 k3", 5, 5, None),
    ]


def test_the_gap_is_the_targets_own(ran):
    """Each difference against a forward of the same model by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    house, outcome = ran
    found = outputs(house, outcome.run)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    rows_ = query(connect(house), "SELECT * FROM output_differences ORDER BY request_id").to_pylist()
    assert [row["request_id"] for row in rows_] == ["r2", "r3", "r4"]
    order = query(connect(house), "SELECT DISTINCT request_id, request FROM request_summary").to_pylist()
    place = {row["request_id"]: row["request"] for row in order}
    for row, prompt in zip(rows_, prompts()[2:], strict=True):
        i = place[row["request_id"]]
        mine, theirs = found["custom_class k1"][i], found["none"][i]
        at = next(j for j in range(12) if mine[j] != theirs[j])
        assert (row["position"], row["baseline_token"], row["token"]) == (at + 1, theirs[at], mine[at])
        with torch.no_grad():
            logits = model(torch.tensor([prompt + theirs[:at]])).logits[0, -1]
        expected = logits.log_softmax(-1)[[theirs[at], mine[at]]].tolist()
        assert [row["baseline_logprob"], row["logprob"]] == pytest.approx(expected, abs=1e-4)
        assert row["gap"] == pytest.approx(expected[0] - expected[1], abs=1e-4)
        assert row["gap"] > 1  # no near-tie: a fault


def test_the_gate(ran):
    house, outcome = ran
    outcome.raise_for_status()
    again = replay(live(min_equal_outputs=0.5), house)
    assert again.already_done
    with pytest.raises(GateError, match=r"'custom_class k1': 2 of 5 outputs equal those of none .*min_equal_outputs"):
        again.raise_for_status()
    replay(live(min_equal_outputs=0.4), house).raise_for_status()
    with pytest.raises(InputError, match="min_equal_outputs"):
        config(NGRAM, min_equal_outputs=0.5)


def test_a_comparison_that_was_lost_is_made_again_and_nothing_else(ran, monkeypatch):
    """Where all outputs are equal nothing is scored, so that an engine that fails costs the other comparison alone."""
    house, outcome = ran
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    units = {unit.proposer.method: unit for unit in plan(live(), house).units}
    commits = {m: house.root / "_commits" / f"run={outcome.run}" / f"{shard_of(units[m])}.json" for m in units}
    commit = commits["custom_class"]
    before = json.loads(commit.read_text())
    commit.unlink()
    commits["ngram"].unlink()
    (house.root / "runs" / outcome.run / "done.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", shutil.which("false"))
        failed = replay(live(), house).failed
    assert list(failed) == [shard_of(units["custom_class"])] and "exit code 1" in failed[commit.stem]
    assert json.loads(commits["ngram"].read_text())["facts"] == {"outputs": {"compared": 5, "equal": 5}}
    assert replay(live(), house).status == "complete"  # no custom class can be imported now: its unit is not run again
    after = json.loads(commit.read_text())
    assert after["facts"] == before["facts"]
    assert [file["sha256"] for file in after["files"]] == [file["sha256"] for file in before["files"]]
    assert np.all([Path(house.root / file["path"]).exists() for file in after["files"]])
