"""The recorder on vLLM's V2 model runner (v1/worker/gpu/model_runner.py, vLLM 0.32.0).

How it differs from V1, as far as the record goes:

- The scheduler never sees candidates: it schedules placeholders, and the runner reads the ids it wrote to
  `req_states.draft_tokens` in the iteration before (`prepare_inputs`: combine_sampled_and_draft_tokens). So the ids
  come from what `speculator.propose` returned.
- The proposer is called in every iteration that samples, near max_model_len too: no zeros in place of candidates. A
  sequence that begins or resumes with padding verifies zeros (`RequestState.add_request`).
- `sample_tokens` always answers with an asynchronous output (`async_utils.AsyncOutput`), with synchronous scheduling as
  well; its `get_output` is where tokens reach the host.
- `runner.step_timing` cannot be used: outside `_dummy_run` nothing ends what `execute_model` begins there.

With `enable_adaptive_verification` the device verifies fewer candidates than were scheduled; `drafted` is then what the
scheduler counts, as in vLLM's own figures. Pipeline parallelism, where only the last stage samples, is refused by
`replay.live.settings`.
"""

import time
from typing import Any

from replay.live.record import Proposals, Record


def wrap_v2(runner) -> None:
    """Record this runner: sets `runner.step_record` and wraps execute_model, sample_tokens and speculator.propose."""
    record = runner.step_record = Record(runner.device.type == "cuda", placeholders=True, padding=0)
    clock, mark = time.perf_counter, record.mark
    execute, sample, speculator = runner.execute_model, runner.sample_tokens, runner.speculator
    state: dict[str, Any] = {}

    def execute_model(scheduler_output, *args, **kwargs):
        start, before = clock(), mark()
        result = execute(scheduler_output, *args, **kwargs)
        if not (kwargs.get("dummy_run") or kwargs.get("is_profile")):
            state.update(start=start, marks=(before, mark()), scheduled=scheduler_output)
        return result

    def sample_tokens(grammar_output, *args, **kwargs):
        scheduled = state.pop("scheduled", None)
        state["drafting"] = None
        before = mark()
        output = sample(grammar_output, *args, **kwargs)
        if scheduled is None or output is None or not hasattr(output, "get_output"):
            return output
        after = mark()
        drafting, asked, proposals = state["drafting"], -1, Proposals(False, None)
        if drafting is not None:
            asked = scheduled.num_spec_tokens_to_schedule
            proposals = Proposals(True, state["said"][:, :asked], state["names"])
        marks = *state["marks"], before, after, *(drafting or (before, before))
        record.launched(state["start"], marks, asked, scheduled, output, grammar_output, proposals)
        return output

    runner.execute_model, runner.sample_tokens = execute_model, sample_tokens
    if speculator is None:
        return
    propose = speculator.propose

    def propose_drafts(input_batch, *args, **kwargs):
        before = mark()
        said = propose(input_batch, *args, **kwargs)
        state.update(drafting=(before, mark()), said=said, names=input_batch.req_ids)
        return said

    speculator.propose = propose_drafts
