"""The recorder inside vLLM's worker: what each engine iteration scheduled, verified and proposed, and how long it took.

Injected by vLLM's `worker_extension_cls` and called by `collective_rpc`. It wraps three methods of the V1 model runner
(private names, vLLM 0.32.0) and only appends to flat arrays: no decision is made here, and nothing is known of
requests, outputs or limits. `replay.live.steplog` turns the record into a step log.
"""

import time
from array import array
from typing import Any

import numpy as np

ITERATION_FIELDS = ("start_s", "forward_s", "sample_s", "draft_s", "asked")
"""Per iteration, float64: start (perf_counter), target forward, sampling with drafting, drafting (seconds); candidates
the drafter was asked for, -1 where it was not called."""

ROW_FIELDS = ("iteration", "slot", "scheduled", "drafted", "placeholders", "sampled", "proposed")
"""Per scheduled sequence, int32: iteration, slot (into the list of engine request ids), tokens scheduled, candidates
among them, how many of those are -1, tokens sampled (untrimmed), candidates the drafter then proposed."""


class StepRecorder:
    """Mixed into the worker class by vLLM; `self` is the worker."""

    model_runner: Any

    def start_step_log(self) -> str:
        """Begin recording afresh; the suffix proposer's cache starts empty. Returns the model runner's class name."""
        runner = self.model_runner
        if not hasattr(runner, "step_record"):
            _wrap(runner)
        runner.step_record.clear()
        cache = getattr(getattr(runner, "drafter", None), "suffix_cache", None)
        if cache is not None:  # what the warm-up put in must not be proposed from
            runner.drafter.suffix_cache = type(cache)(
                max_tree_depth=cache.max_tree_depth, max_cached_requests=cache.max_cached_requests
            )
        return type(runner).__name__

    def take_step_log(self) -> dict:
        """What was recorded since `start_step_log`, as arrays.

        Keys: `iterations` float64 [iterations, ITERATION_FIELDS], `rows` int32 [rows, ROW_FIELDS], `request_ids`
        (the engine's own ids, list by slot), `draft_ids` and `sampled_ids` int32, all rows' ids end to end.
        """
        return self.model_runner.step_record.arrays()


class _Record:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.slots: dict[str, int] = {}
        self.iterations, self.rows = array("d"), array("i")
        self.draft_ids, self.sampled_ids = array("i"), array("i")
        self.cuda_events: list = []

    def arrays(self) -> dict:
        iterations = np.array(self.iterations).reshape(-1, len(ITERATION_FIELDS))
        if self.cuda_events:
            self.cuda_events[-1][2].synchronize()
            for i, start, end in self.cuda_events:
                iterations[i, ITERATION_FIELDS.index("draft_s")] = start.elapsed_time(end) / 1e3
        return {
            "iterations": iterations,
            "rows": np.array(self.rows, np.int32).reshape(-1, len(ROW_FIELDS)),
            "request_ids": list(self.slots),
            "draft_ids": np.array(self.draft_ids, np.int32),
            "sampled_ids": np.array(self.sampled_ids, np.int32),
        }


def _wrap(runner) -> None:
    record = runner.step_record = _Record()
    clock = time.perf_counter
    execute, sample, propose = runner.execute_model, runner.sample_tokens, runner.propose_draft_token_ids
    on_gpu = runner.device.type == "cuda"
    state: dict[str, Any] = {}

    def execute_model(scheduler_output, *args, **kwargs):
        start = clock()
        result = execute(scheduler_output, *args, **kwargs)
        state.update(start=start, forward=clock() - start, scheduled=scheduler_output, draft=0.0, asked=-1)
        return result

    def propose_draft_token_ids(scheduler_output, *args, **kwargs):
        events = _cuda_event() if on_gpu else None
        start = clock()
        result = propose(scheduler_output, *args, **kwargs)
        state.update(draft=clock() - start, asked=scheduler_output.num_spec_tokens_to_schedule)
        if events is not None:  # a draft model runs asynchronously: its time is the device's, read at the end
            record.cuda_events.append((len(record.iterations) // len(ITERATION_FIELDS), events, _cuda_event()))
        return result

    def sample_tokens(*args, **kwargs):
        scheduled = state.pop("scheduled", None)
        start = clock()
        output = sample(*args, **kwargs)
        end = clock()
        if scheduled is not None:
            _append(record, runner, scheduled, output, state, end - start)
        return output

    runner.execute_model, runner.sample_tokens = execute_model, sample_tokens
    runner.propose_draft_token_ids = propose_draft_token_ids


def _append(record: _Record, runner, scheduled, output, state: dict, sample_s: float) -> None:
    iteration = len(record.iterations) // len(ITERATION_FIELDS)
    record.iterations.extend((state["start"], state["forward"], sample_s, state["draft"], state["asked"]))
    slots, rows, drafts = record.slots, record.rows, scheduled.scheduled_spec_decode_tokens
    sampled, index = output.sampled_token_ids, output.req_id_to_index
    proposals = runner._draft_token_ids if state["asked"] >= 0 else None
    fixed = 0 if proposals is None or isinstance(proposals, list) else proposals.shape[1]
    for request_id, tokens in scheduled.num_scheduled_tokens.items():
        i = index[request_id]
        draft, put_out = drafts.get(request_id, ()), sampled[i] if sampled else ()
        proposed = fixed if proposals is None or fixed else len(proposals[i])
        slot = slots.setdefault(request_id, len(slots))
        rows.extend((iteration, slot, tokens, len(draft), draft.count(-1), len(put_out), proposed))
        record.draft_ids.extend(draft)
        record.sampled_ids.extend(put_out)


def _cuda_event():
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
