"""What is scheduled and counted, near the limit too, against vLLM's own schedulers.

AsyncScheduler for "ngram_gpu" and draft models, else Scheduler. The schedulers are vLLM's; the worker between them is
ours: it verifies against the record and proposes by the transcribed kernels, or by a draft model asked token by token.
The loop is EngineCore's, with its queue of two batches where scheduling is asynchronous.
"""

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import records, windows
from test_ngram_padded import config, kernels
from upstream import logged, ngram

from replay.recorded.engine import replay_recorded
from replay.requests import Requests

TARGET = Path(__file__).parents[3] / "examples" / "models" / "target"
BLOCK = 4


@pytest.fixture(scope="module")
def scheduler_of():
    """`(k, max_model_len, asynchronous)` to a fresh scheduler of vLLM's."""
    pytest.importorskip("vllm", reason="the oracle is vLLM itself")
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    base = EngineArgs(
        model=str(TARGET), max_model_len=128, enforce_eager=True, enable_prefix_caching=False, block_size=BLOCK,
        speculative_config={"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2},
    ).create_engine_config()  # fmt: skip
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=200, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])

    def make(k, max_model_len, asynchronous):
        base.speculative_config.num_speculative_tokens = k
        base.model_config.max_model_len = base.scheduler_config.max_model_len = max_model_len
        base.scheduler_config.async_scheduling = asynchronous
        base.cache_config.num_gpu_blocks = 200
        kind = AsyncScheduler if asynchronous else Scheduler
        return kind(base, cache, StructuredOutputManager(base), BLOCK)

    return make


def serve(scheduler, prompt, output, tail, k, rule, depth, trim=None):
    """(drafted, filler, accepted, emitted) per decode step.

    `trim`: takes off the scheduler's batch what is no candidate, before the forward; given the batch and how many are.
    """
    from vllm import SamplingParams
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request

    record = [*prompt, *output, *tail]
    request = Request("r", list(prompt), SamplingParams(max_tokens=len(output), ignore_eos=True), None)
    scheduler.add_request(request)
    total, drafts, queue, steps = len(prompt), ([], 0), deque(), []
    while not request.is_finished():
        if len(queue) < depth:
            batch = scheduler.schedule()
            answer, row = ModelRunnerOutput([], {}), None
            if "r" in batch.num_scheduled_tokens and total <= len(record):
                if trim is not None:
                    trim(batch, drafts[1])
                scheduled = len(batch.scheduled_spec_decode_tokens.get("r", ()))
                candidates, real = drafts
                accepted = 0
                while accepted < scheduled and [candidates[accepted]] == record[total + accepted :][:1]:
                    accepted += 1
                sampled = (record + [0])[total : total + accepted + 1]
                answer = ModelRunnerOutput(["r"], {"r": 0}, [sampled])
                if total > len(prompt):
                    row = scheduled, scheduled - min(scheduled, real), accepted
                total += accepted + 1
                drafts = rule(record[:total])
            queue.append((batch, answer, row))
            if len(queue) < depth:
                continue
        batch, answer, row = queue.popleft()
        before = request.num_output_tokens
        scheduler.update_from_output(batch, answer)
        if row:
            steps.append((*row, request.num_output_tokens - before))
        if depth == 1:
            scheduler.update_draft_token_ids(DraftTokenIds(["r"], [list(drafts[0])]))
    return steps


@settings(deadline=None, max_examples=150)
@given(record=records(), windows=windows(), room=st.integers(0, 30), method=st.sampled_from(["ngram", "ngram_gpu"]))
def test_walk_to_the_limit(scheduler_of, record, windows, room, method):
    limit, k = len(record[0]) + len(record[1]) + room, windows[2]
    requests = Requests.from_lists(*zip(record, strict=True))
    log = replay_recorded(requests, config(*windows, method), runner="v2", max_model_len=limit)
    depth = 2 if method == "ngram_gpu" else 1
    scheduler = scheduler_of(k, limit, depth == 2)
    assert logged(log) == serve(scheduler, *record, k, lambda tokens: kernels(tokens, *windows), depth)


@settings(deadline=None, max_examples=100)
@given(record=records(), windows=windows())
def test_ngram_gpu_on_v1(scheduler_of, find, record, windows):
    """The runner trims the scheduler's own object (`update_scheduler_for_invalid_drafts`): no filler is counted."""
    import torch
    from vllm.v1.spec_decode.ngram_proposer_gpu import update_scheduler_for_invalid_drafts

    k, there = windows[2], SimpleNamespace(synchronize=lambda: None)

    def first_match(tokens):
        real = ngram(find, *windows)(tokens, [])
        return real + [-1] * (k - len(real)), len(real)

    def trim(batch, real):
        update_scheduler_for_invalid_drafts(there, torch.tensor([real], dtype=torch.int32), batch, {"r": 0})

    log = replay_recorded(Requests.from_lists(*zip(record, strict=True)), config(*windows, "ngram_gpu"))
    assert logged(log) == serve(scheduler_of(k, 10**4, True), *record, k, first_match, 2, trim)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("k", [1, 3, 4])
def test_a_draft_model_to_the_limit(scheduler_of, tmp_path, k, asynchronous):
    """It is asked up to the limit: no zeros in place of candidates, but they are cut."""
    pytest.importorskip("transformers")
    from test_draft_model import greedy, half_right

    from tests.replay.tiny_models import random_draft

    folder = random_draft(tmp_path, positions=96)
    lengths = [(30, 15, 6), (20, 25, 0), (10, 34, 6), (40, 2, 6), (44, 1, 0)]
    given = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": k}
    drafting = greedy(folder, k)
    cut = set()
    for limit in (45, 46, 48, 51, 60, 90):
        full = [(limit - n, n, 0) for n in (8, 13, 17, 22)]
        made = list(half_right(folder, 40, lengths + full, seed=limit))
        requests = Requests.from_lists(*zip(*made, strict=True))
        log = replay_recorded(
            requests, given | {"disable_padded_drafter_batch": not asynchronous}, runner="v2", max_model_len=limit
        )
        for i, record in enumerate(made):
            scheduler = scheduler_of(k, limit, asynchronous)
            rule = lambda tokens: (drafting(tokens, None), k)  # noqa: E731
            assert logged(log, i) == serve(scheduler, *record, k, rule, 2 if asynchronous else 1)
        assert not log.filler.any()
        cut |= set((k - log.drafted).tolist())
    assert cut >= {0, 1, k}
