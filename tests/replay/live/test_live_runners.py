"""Asynchronous scheduling and the V2 runner: the log adds up to vLLM's own counters, phantoms told from candidates.

On the CPU build asynchronous scheduling is forced on, and the V2 runner's kernels are interpreted where Triton is; see
`vllm_on_cpu`. On a GPU (marker `gpu`) nothing is forced.
"""

import live_material as material
import numpy as np
import pytest
from vllm_on_cpu import interpret_v2, keep_async

from replay.live.launch import run_live
from replay.recorded.engine import replay_recorded
from schemas.errors import EnvironmentProblem
from schemas.tables import MISS_REASONS

NGRAM_GPU = material.NGRAM | {"method": "ngram_gpu"}
GRAMMAR = {"structured_outputs": {"regex": "(7q8z){8}"}}
"""A text that no draft here would write."""
LIMIT, TAIL = 169, 12


def requests():
    """Prompts of whole blocks plus one token, each sent thrice, up to the length limit; two more under a grammar."""
    base = [ids for ids in material.prompts(12, 129) if len(ids) == 129]
    ids = [ids for one in base[:3] for ids in (one, one, one)] + material.prompts(2, 20)
    return material.with_sampling(material.requests(ids, [40] * 9 + [12] * 2), [{}] * 9 + [GRAMMAR] * 2)


def run(config, runner, **args):
    """Prefix hits, a KV cache for about two of four sequences, the length limit and a grammar, in one engine."""
    engine = material.engine(4, runner=runner, enable_prefix_caching=True, block_size=32, **args)
    return run_live(requests(), engine, material.proposer(config), max_model_len=LIMIT)


def reasons(log):
    return np.array([reason or "" for reason in MISS_REASONS])[log.miss_reason]


def assert_it_adds_up(live, runner, asynchronous):
    assert (live.engine["runner"], live.engine["async_scheduling"]) == (runner, asynchronous)
    assert live.reconciliation["ok"], live.reconciliation["mismatches"]
    counts, put_out = live.log.counts(), live.outputs.lengths
    assert (counts["emitted"] == put_out - 1).all()
    assert (put_out == 1 + counts["steps"] + counts["engine_accepted"] - counts["overrun"]).all()
    assert 0 < counts["accepted"].sum() < counts["drafted"].sum()
    assert counts["prefill_filler"].sum() > 0 and live.prefix_cache_hit_tokens.max() == 128
    table = {name: live.engine_steps[name].to_numpy() for name in live.engine_steps.column_names}
    assert table["emitted"].sum() == counts["emitted"].sum() and (table["sequences"] > 0).all()
    assert (table["step_us"] > 0).all() and table["verify_us"].sum() > 0 and table["draft_us"].sum() > 0


def assert_a_draft_model_is_told_from_phantoms(live):
    grammar = reasons(live.log) == "grammar"
    assert grammar.any() and set(live.log.request[grammar]) <= {9, 10}
    cut = live.log.drafted[grammar] == 0
    assert cut.all() and live.reconciliation["engine"]["num_drafts"] > live.log.counts()["engine_rounds"].sum()


@pytest.mark.live
def test_v1_asynchronous(tmp_path, monkeypatch):
    """The scheduler sees placeholders, the grammar cuts afterwards, near the limit zeros stand in for candidates."""
    keep_async(monkeypatch, tmp_path)
    live = run(material.DRAFT_MODEL, "v1", num_gpu_blocks_override=14)
    assert_it_adds_up(live, "v1", True)
    assert_a_draft_model_is_told_from_phantoms(live)
    assert live.reconciliation["engine"]["preemptions"] > 0
    zeros = live.log.filler > 0
    assert zeros.any() and set(reasons(live.log)[zeros]) == {"skipped"}


@pytest.mark.live
@pytest.mark.parametrize("asynchronous", [False, True])
def test_v2_draft_model(tmp_path, monkeypatch, asynchronous):
    interpret_v2(monkeypatch, tmp_path)
    keep_async(monkeypatch, tmp_path)
    live = run(material.DRAFT_MODEL, "v2", num_gpu_blocks_override=14, async_scheduling=asynchronous)
    assert_it_adds_up(live, "v2", asynchronous)
    assert live.reconciliation["engine"]["preemptions"] > 0
    if asynchronous:
        assert_a_draft_model_is_told_from_phantoms(live)


@pytest.mark.live
@pytest.mark.parametrize("config", [material.NGRAM, NGRAM_GPU], ids=["ngram", "ngram_gpu"])
def test_v2_lookup_equals_recorded(tmp_path, monkeypatch, config):
    """The engine verifies k candidates in every step; what it found is less, and what recorded replay says."""
    interpret_v2(monkeypatch, tmp_path)
    keep_async(monkeypatch, tmp_path)
    assert_lookup_equals_recorded(config)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [material.NGRAM, NGRAM_GPU], ids=["ngram", "ngram_gpu"])
def test_v2_lookup_equals_recorded_on_a_gpu(config):
    assert_lookup_equals_recorded(config, dtype="float32")


@pytest.mark.gpu
@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("config", [material.DRAFT_MODEL, NGRAM_GPU], ids=["draft_model", "ngram_gpu"])
def test_asynchronous_on_a_gpu(runner, config):
    live = run(config, runner, num_gpu_blocks_override=14, dtype="float32")
    assert_it_adds_up(live, runner, True)


@pytest.mark.gpu
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_synchronous_on_a_gpu(runner):
    live = run(material.DRAFT_MODEL, runner, num_gpu_blocks_override=14, dtype="float32", async_scheduling=False)
    assert_it_adds_up(live, runner, False)


@pytest.mark.live
@pytest.mark.parametrize("asynchronous", [True, False])
def test_v2_draft_model_equals_recorded(tmp_path, monkeypatch, asynchronous):
    """Near max_model_len too: the draft is asked all the same, and what it says is cut."""
    interpret_v2(monkeypatch, tmp_path)
    keep_async(monkeypatch, tmp_path)
    assert_draft_equals_recorded(asynchronous)


@pytest.mark.gpu
@pytest.mark.parametrize("asynchronous", [True, False])
def test_v2_draft_model_equals_recorded_on_a_gpu(asynchronous):
    assert_draft_equals_recorded(asynchronous, dtype="float32")


def assert_draft_equals_recorded(asynchronous, **args):
    config = material.DRAFT_MODEL | {"disable_padded_drafter_batch": not asynchronous}
    live, recorded = live_and_recorded(config, asynchronous, **args)
    assert material.differences(live.log, recorded) == []
    assert set(live.log.drafted.tolist()) >= {1, 2, 3} and not live.log.filler.any()
    assert set(reasons(live.log)[live.log.drafted == 0]) <= {"length_limit"}
    counts = live.log.counts()
    assert 0 < counts["accepted"].sum() < counts["drafted"].sum()


def live_and_recorded(config, asynchronous, **args):
    """Some prompts leave little room; a capture's tail says what verification meets past the end."""
    short = material.prompts(9, 90)
    near = [(a + b)[-86:] for a, b in zip(short[::3], short[1::3], strict=True)]
    asked = material.requests(short + near, [24, 30, 17] * 3 + [40] * 3)
    none = material.proposer({"method": "none"})
    capture = run_live(asked, material.engine(4, runner="v1", **args), none, max_model_len=120, tail_tokens=TAIL)
    live = run_live(asked, material.engine(4, runner="v2", **args), material.proposer(config), max_model_len=120)
    assert live.engine["runner"] == "v2" and live.engine["async_scheduling"] == asynchronous
    assert live.reconciliation["ok"], live.reconciliation["mismatches"]
    assert live.outputs.flat.tolist() == capture.outputs.flat.tolist()
    return live, replay_recorded(material.captured(asked, capture), config, runner="v2", max_model_len=120)


def assert_lookup_equals_recorded(config, **args):
    live, recorded = live_and_recorded(config, config["method"] == "ngram_gpu", **args)
    assert material.differences(live.log, recorded) == []
    counts = {name: int(values.sum()) for name, values in live.log.counts().items()}
    assert 0 < counts["rounds"] < counts["engine_rounds"] and 0 < counts["accepted"] < counts["engine_accepted"]
    assert "no_match" in reasons(live.log) and live.log.filler.any()


def test_v2_without_triton_is_one_line():
    import importlib.util

    if importlib.util.find_spec("triton") is not None:
        pytest.skip("Triton is installed here")
    pytest.importorskip("vllm", reason="the engine itself is asked for first")
    engine = material.engine(1, runner="v2")
    with pytest.raises(EnvironmentProblem, match=r'runner = "v2" needs Triton.*use runner = "v1"') as caught:
        run_live(requests(), engine, material.proposer({"method": "none"}), max_model_len=None)
    assert "\n" not in str(caught.value)
