"""The recorder inside vLLM's worker: what each engine iteration scheduled, verified and proposed, and how long it took.

Injected by vLLM's `worker_extension_cls` and called by `collective_rpc`. It wraps methods of the model runner (private
names, vLLM 0.32.0): here those of the V1 runner, in `worker_v2` those of the V2 runner. What is kept is in `record`.
"""

import time
from typing import Any

from replay.live.cpu_sampler import spare_generators
from replay.live.record import Proposals, Record


class StepRecorder:
    """Mixed into the worker class by vLLM; `self` is the worker."""

    model_runner: Any

    def start_step_log(self) -> str:
        """Begin recording afresh; the suffix proposer's cache starts empty. Returns the model runner's class name."""
        runner = self.model_runner
        if not hasattr(runner, "step_record"):
            if hasattr(runner, "speculator"):
                from replay.live.worker_v2 import wrap_v2

                wrap_v2(runner)
            else:
                _wrap(runner)
        runner.step_record.clear()
        cache = getattr(getattr(runner, "drafter", None), "suffix_cache", None)
        if cache is not None:  # what the warm-up put in must not be proposed from
            runner.drafter.suffix_cache = type(cache)(
                max_tree_depth=cache.max_tree_depth, max_cached_requests=cache.max_cached_requests
            )
        return type(runner).__name__

    def mend_sampler(self) -> str | None:
        """See `replay.live.cpu_sampler.mend`; only the CPU build's V1 runner needs it."""
        if self.model_runner.device.type != "cpu" or hasattr(self.model_runner, "speculator"):
            return None
        from replay.live.cpu_sampler import mend

        return mend()

    def take_step_log(self) -> dict:
        """What was recorded since `start_step_log`, as arrays.

        Keys: `iterations` float64 [iterations, ITERATION_FIELDS], `rows` int32 [rows, ROW_FIELDS], `request_ids`
        (the engine's own ids, list by slot), `draft_ids` and `sampled_ids` int32, all rows' ids end to end.
        """
        return self.model_runner.step_record.arrays()


def _wrap(runner) -> None:
    """Record the V1 runner (v1/worker/gpu_model_runner.py: execute_model, sample_tokens, propose_draft_token_ids)."""
    asynchronous = runner.use_async_scheduling
    if runner.device.type == "cpu":
        spare_generators(runner)
    record = runner.step_record = Record(runner.device.type == "cuda", asynchronous)
    clock, mark = time.perf_counter, record.mark
    execute, sample, propose = runner.execute_model, runner.sample_tokens, runner.propose_draft_token_ids
    state: dict[str, Any] = {}

    def execute_model(scheduler_output, *args, **kwargs):
        start, before = clock(), mark()
        result = execute(scheduler_output, *args, **kwargs)
        state.update(start=start, marks=(before, mark()), scheduled=scheduler_output, drafting=None, asked=-1)
        return result

    def propose_draft_token_ids(scheduler_output, *args, **kwargs):
        before = mark()
        result = propose(scheduler_output, *args, **kwargs)
        state.update(drafting=(before, mark()), asked=scheduler_output.num_spec_tokens_to_schedule)
        return result

    def sample_tokens(grammar_output, *args, **kwargs):
        scheduled = state.pop("scheduled", None)
        before = mark()
        output = sample(grammar_output, *args, **kwargs)
        if scheduled is None or output is None:
            return output
        after = mark()
        # Near the limit the runner puts zeros in place of candidates without a call: they are verified all the same.
        said = runner._draft_token_ids
        names = runner.input_batch.req_ids.copy() if asynchronous else ()
        proposals = Proposals(state["asked"] >= 0, said, names)
        marks = *state["marks"], before, after, *(state["drafting"] or (before, before))
        record.launched(state["start"], marks, state["asked"], scheduled, output, grammar_output, proposals)
        return output

    runner.execute_model, runner.sample_tokens = execute_model, sample_tokens
    runner.propose_draft_token_ids = propose_draft_token_ids
