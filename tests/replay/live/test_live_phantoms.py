"""Candidates nobody proposed, each kind brought about on the real engine, and told apart by the ids it verified.

The outside word is the id list of each step: the V1 runner verifies -1 for a sequence that begins or resumes with one
token to compute, zeros where the length limit keeps it from asking the proposer, and real ids for real candidates.
"""

import live_material as material
import pytest

from replay.live.launch import run_live
from schemas.tables import MISS_REASONS

pytestmark = pytest.mark.live

K, BLOCK, LIMIT = 4, 32, 112
CONFIG = material.NGRAM | {"prompt_lookup_min": 3, "num_speculative_tokens": K}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Two sequences in step, with one block too few when both need a third: the second one is put back and resumes.

    Then one prompt of whole blocks plus one token, sent twice, and two that come near the limit.
    """
    prompt = material.prompts(8, 105)
    steady = [[*range(100 + 60 * i, 160 + 60 * i)] for i in (0, 1)]  # nothing in them repeats
    whole = [ids[: 2 * BLOCK + 1] for ids in prompt if len(ids) >= 2 * BLOCK + 1][:1]
    near = [(a + a)[-100:] for a in prompt[1:4:2]]
    asked = material.requests(steady + whole * 2 + near, [9] * 4 + [12] * 2)
    engine = material.engine(2, enable_prefix_caching=True, block_size=BLOCK, num_gpu_blocks_override=6)
    folder = tmp_path_factory.mktemp("kept")
    with material.kept(folder):
        live = run_live(asked, engine, material.proposer(CONFIG), max_model_len=LIMIT)
    return live, material.verified(folder)


def steps(live, verified):
    log = live.log
    columns = log.request, log.step, log.drafted, log.filler, log.miss_reason, log.engine_step
    for request, step, drafted, filler, miss, iteration in zip(*(c.tolist() for c in columns), strict=True):
        yield request, step, drafted, filler, MISS_REASONS[miss], verified[request, iteration]


def test_every_filler_was_a_placeholder_and_nothing_else_was(served):
    live, verified = served
    assert live.reconciliation["ok"], live.reconciliation["mismatches"]
    kinds = set()
    for _, _, drafted, filler, reason, ids in steps(live, verified):
        placeholder = bool(ids) and (set(ids) == {-1} or set(ids) == {0})
        assert filler == (drafted if placeholder else 0) and len(ids) == drafted
        assert reason == ("skipped" if placeholder else None) or not drafted
        kinds.add("real" if drafted > filler else "none" if not drafted else "resumed" if ids[0] < 0 else "limit")
    assert kinds == {"real", "none", "resumed", "limit"}


def test_a_resumed_sequence_verifies_placeholders_once(served):
    live, verified = served
    assert live.reconciliation["engine"]["preemptions"] == 1
    padded = [(r, d, f, why) for r, _, d, f, why, ids in steps(live, verified) if set(ids) == {-1}]
    assert padded == [(1, K, K, "skipped")]


def test_a_hit_that_leaves_one_token_is_prefill_filler(served):
    """Its first iteration verifies placeholders: vLLM counts a round, which is no decode step."""
    live, _ = served
    assert live.log.prefill_filler.tolist() == [0, 0, 0, K, 0, 0]
    assert live.prefix_cache_hit_tokens.tolist() == [0, 0, 0, 2 * BLOCK, 0, 0]
    counts = live.log.counts()
    engine = live.reconciliation["engine"]
    assert engine["num_drafts"] == counts["engine_rounds"].sum() + 1
    assert engine["num_draft_tokens"] == counts["engine_drafted"].sum() + K > counts["drafted"].sum() + K
    assert (counts["steps"] + counts["engine_accepted"] - counts["overrun"] == live.outputs.lengths - 1).all()


def test_near_the_limit_the_whole_batch_is_filled(served):
    live, verified = served
    zeros = {(request, step) for request, step, *_, ids in steps(live, verified) if ids and set(ids) == {0}}
    assert {request for request, _ in zeros} == {4, 5}
    out_of_room = [request for request, _, drafted, _, why, _ in steps(live, verified) if why == "length_limit"]
    assert set(out_of_room) <= {4, 5} and out_of_room
