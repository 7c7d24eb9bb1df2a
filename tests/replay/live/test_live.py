"""The real engine: every proposer runs, adds up, says the same as without speculation, and as recorded replay."""

import dataclasses
import os
import signal

import live_material as material
import numpy as np
import psutil
import pytest

from replay.live.launch import run_live
from replay.live.reconcile import reconcile
from replay.requests import Requests
from schemas.errors import EnvironmentProblem, InputError
from schemas.tables import DECODE_STEPS, ENGINE_STEPS, MISS_REASONS

pytestmark = pytest.mark.live

PAIRS = ["ngram_one", "ngram_eight", "suffix_one", "draft_one"]


@pytest.fixture(params=PAIRS)
def pair(request):
    return request.getfixturevalue(request.param)


def test_it_reconciles_and_the_lengths_are_identities(pair):
    live = pair.live
    assert live.reconciliation["ok"], live.reconciliation["mismatches"]
    counts, put_out = live.log.counts(), live.outputs.lengths
    assert (counts["emitted"] == put_out - 1).all()
    assert (put_out == 1 + counts["steps"] + counts["engine_accepted"] - counts["overrun"]).all()
    assert live.reconciliation["engine"]["num_draft_tokens"] == counts["engine_drafted"].sum() > 0


def test_outputs_are_those_without_speculation(pair, capture):
    """vLLM's own ends are the oracle for where the capture cut its run-on, and greedy speculation loses nothing."""
    for i in range(len(pair.requests)):
        assert pair.live.outputs[i].tolist() == capture.outputs[i].tolist()
    assert pair.live.finish_reason == capture.finish_reason[: len(pair.requests)]


def test_recorded_equals_live(pair):
    assert material.differences(pair.live.log, pair.recorded) == []


def test_what_a_step_proposed_is_found_again_from_the_ids(pair):
    """The candidates the worker really verified are the other witness; placeholders are no proposer's."""
    some = range(0, len(pair.requests), 1 if pair.config["method"] == "ngram" else 5)
    checked = material.found_again(pair.live, pair.requests, pair.config, pair.verified, some)
    assert checked > 50


@pytest.mark.parametrize("name", ["ngram_one", "suffix_one", "draft_one"])
def test_the_parity_set_holds_every_kind_of_step(name, request):
    pair = request.getfixturevalue(name)
    found = material.kinds(pair.live.log, pair.live.finish_reason)
    if name == "draft_one":
        assert found.pop("misses") == 0  # a draft model always proposes
    assert all(found.values()), found


def test_every_iteration_is_logged(pair):
    live, table = pair.live, pair.live.engine_steps
    assert table.schema == ENGINE_STEPS
    counts = live.log.counts()
    column = {name: table[name].to_numpy() for name in table.column_names}
    assert column["emitted"].sum() == counts["emitted"].sum()
    assert column["draft_tokens"].sum() == counts["engine_drafted"].sum() + counts["prefill_filler"].sum()
    assert column["prefill_tokens"].sum() == pair.requests.prompts.lengths.sum()
    assert column["decode_tokens"].sum() == counts["steps"].sum() + counts["engine_drafted"].sum()
    assert column["sequences"].max() <= table["concurrency"][0].as_py()
    assert (column["step_us"] >= column["verify_us"] + column["draft_us"] - 2).all()  # each rounded to a microsecond
    assert (np.diff(column["started_us"]) > 0).all() and column["draft_us"].sum() > 0
    assert (live.first_token_us > 0).all() and (live.finished_us >= live.first_token_us).all()
    decode = live.log.table("p", 1)
    assert decode.schema == DECODE_STEPS
    nothing = np.array([reason is not None for reason in decode["miss_reason"].to_pylist()])
    assert (nothing == (live.log.drafted == live.log.filler)).all()


def test_none_takes_one_step_per_token(capture, asked):
    counts = capture.log.counts()
    assert capture.reconciliation["ok"], capture.reconciliation["mismatches"]
    assert (counts["steps"] == capture.outputs.lengths - 1).all() and counts["engine_drafted"].sum() == 0
    room = 200 - asked.prompts.lengths - capture.outputs.lengths
    assert (capture.tails.lengths == np.minimum(12, room)).all()
    assert {"stop", "length"} == set(capture.finish_reason)


@pytest.mark.parametrize("column", ["drafted", "accepted", "overrun"])
def test_a_tampered_log_is_caught_and_the_counter_named(ngram_one, column):
    log, outputs = ngram_one.live.log, ngram_one.live.outputs.lengths
    changed = getattr(log, column).copy()
    changed[np.flatnonzero(log.accepted > 0)[0]] -= 1
    tampered = dataclasses.replace(log, **{column: changed})
    ids = ngram_one.requests.meta["request_id"].to_pylist()
    counters = ngram_one.live.reconciliation["engine"]
    result = reconcile(tampered, counters, outputs, np.zeros_like(outputs), [None] * len(ids), ids)
    expected = {
        "drafted": "vllm:spec_decode_num_draft_tokens",
        "accepted": "vllm:spec_decode_num_accepted_tokens",
        "overrun": "vllm:generation_tokens",
    }
    assert not result["ok"] and expected[column] in [m["counter"] for m in result["mismatches"]]


def test_prefix_hits_preemptions_and_grammars_are_told_apart():
    """Prompts of whole blocks plus one token, each sent thrice, a KV cache for about two, up to max_model_len; two more
    requests under a grammar that the draft model does not know.
    """
    base = [ids for ids in material.prompts(12, 129) if len(ids) == 129]
    ids = [ids for one in base[:3] for ids in (one, one, one)] + material.prompts(2, 20)
    engine = material.engine(4, enable_prefix_caching=True, block_size=32, num_gpu_blocks_override=14)
    sampling: list[dict] = [{}] * 9 + [{"structured_outputs": {"regex": "(7q8z){8}"}}] * 2
    asked = material.with_sampling(material.requests(ids, [40] * 9 + [12] * 2), sampling)
    live = run_live(asked, engine, material.proposer(material.DRAFT_MODEL), max_model_len=169)
    counts = live.log.counts()
    assert live.reconciliation["ok"], live.reconciliation["mismatches"]
    assert live.reconciliation["engine"]["preemptions"] > 0
    assert counts["prefill_filler"].sum() > 0 and live.prefix_cache_hit_tokens.max() == 128
    assert live.log.filler.sum() == counts["engine_drafted"].sum() - counts["drafted"].sum() > 0
    assert (counts["emitted"] == live.outputs.lengths - 1).all()
    grammar = live.log.miss_reason == MISS_REASONS.index("grammar")
    assert grammar.any() and set(live.log.request[grammar]) <= {9, 10}


def test_an_engine_that_dies_is_one_line(tmp_path):
    def kill(done: int) -> None:
        for child in psutil.Process().children():
            if any("replay.live.child" in part for part in child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)

    asked = material.requests(material.prompts(9, 40), [4] * 9)
    none = material.proposer({"method": "none"}, "plain")
    with pytest.raises(EnvironmentProblem, match=r"proposer 'plain': the engine was killed by signal 9") as caught:
        run_live(asked, material.engine(1), none, max_model_len=None, progress=kill, log_dir=tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path / "plain.log") in str(caught.value)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"], "model_type": "llama"}')
    asked = Requests.from_lists([[1, 2]], [[1]])
    none = material.proposer({"method": "none"})
    with pytest.raises(InputError, match="NoSuchForCausalLM") as caught:
        run_live(asked, material.engine(1, model=str(tmp_path)), none, max_model_len=None)
    assert "\n" not in str(caught.value)
