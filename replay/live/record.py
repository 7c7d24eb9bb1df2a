"""What the recorder in vLLM's worker keeps: flat arrays, one entry per engine iteration and one row per sequence in it.

Only what happened is kept: no decision is made here, and nothing is known of requests, outputs or limits.
`replay.live.steplog` turns the record into a step log. Knows of the model runners only what both have in common: an
iteration is launched by `execute_model` and `sample_tokens`, and its output may reach the host later.

Nothing here waits for a device. With asynchronous scheduling (and always under the V2 runner) the scheduler hands out
placeholders, and candidates and sampled tokens are the device's: candidates are copied to the host behind the work that
made them, sampled tokens are read where vLLM itself reads them (`get_output` of its asynchronous output), and times
come from events that are read one iteration later.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ITERATION_FIELDS = ("start_s", "forward_s", "sample_s", "draft_s", "asked")
"""Per iteration, float64: start (perf_counter), target forward, sampling with drafting, drafting (seconds; the device's
on a GPU); candidates the drafter was asked for, -1 where it was not called."""

ROW_FIELDS = ("iteration", "slot", "scheduled", "drafted", "placeholders", "sampled", "proposed", "cut")
"""Per scheduled sequence, int32: iteration, slot (into the list of engine request ids), tokens scheduled, candidates
among them, how many of those stand for nothing the drafter said, tokens sampled (untrimmed), candidates the drafter
then proposed, candidates that the grammar cut after they were scheduled (at the end of `drafted`, and not counted in
it)."""

_FIELDS = len(ITERATION_FIELDS)


class Record:
    """The arrays, and what is still on its way from the device.

    Args:
        on_gpu: times are CUDA events, not the host's clock.
        placeholders: the scheduler hands out placeholders and the candidates are the device's.
        padding: the id the runner verifies where a sequence is scheduled with candidates nobody proposed.
    """

    def __init__(self, on_gpu: bool, placeholders: bool, padding: int = -1) -> None:
        self.mark: Callable[[], Any] = self._event if on_gpu else time.perf_counter
        self.on_gpu, self.placeholders, self.padding = on_gpu, placeholders, padding
        self.idle_events: list = []
        self.clear()

    def clear(self) -> None:
        """Forget everything recorded."""
        self.slots: dict[str, int] = {}
        self.iterations, self.rows = array("d"), array("i")
        self.draft_ids, self.sampled_ids = array("i"), array("i")
        self.unread: list[tuple[int, tuple]] = []
        self.offers: dict[str, tuple[_Candidates, int]] = {}

    def launched(
        self, start: float, marks: tuple, asked: int, scheduled: Any, output: Any, grammar: Any, proposals: "Proposals"
    ) -> None:
        """Take in one iteration whose work was launched.

        Args:
            start: perf_counter before the forward.
            marks: `mark()` before and after the forward, before and after sampling, before and after drafting (equal
                where the drafter was not called).
            asked: candidates the drafter was asked for, -1 = it was not called.
            scheduled: vLLM's SchedulerOutput.
            output: vLLM's ModelRunnerOutput, or its asynchronous form, whose rows follow when vLLM reads it.
            grammar: vLLM's GrammarOutput or None.
            proposals: what the drafter then proposed.
        """
        i = len(self.iterations) // _FIELDS
        self.iterations.extend((start, 0.0, 0.0, 0.0, asked))
        self.unread.append((i, marks))
        if not self.on_gpu:
            self._read_times()
        verified: dict[str, Any] = {}
        if self.placeholders:
            verified = {name: self.offers.get(name) for name in scheduled.scheduled_spec_decode_tokens}
            self._offer(scheduled, proposals)
        if not hasattr(output, "get_output"):
            self._rows(i, scheduled, output, grammar, proposals, verified)
            return
        read = output.get_output

        def get_output() -> Any:
            result = read()
            self._rows(i, scheduled, result, grammar, proposals, verified)
            return result

        output.get_output = get_output

    def _rows(self, i: int, scheduled: Any, output: Any, grammar: Any, proposals: "Proposals", verified: dict) -> None:
        if self.on_gpu:  # this iteration's tokens are here, so all that was launched before it is done
            self._read_times(before=i)
        drafts, index, sampled = (
            scheduled.scheduled_spec_decode_tokens,
            output.req_id_to_index,
            output.sampled_token_ids,
        )
        slots, rows, placeholders = self.slots, self.rows, self.placeholders
        fresh = _fresh(scheduled) if placeholders and drafts else ()
        cut = _cut(scheduled, grammar, drafts) if placeholders else {}
        for name, tokens in scheduled.num_scheduled_tokens.items():
            draft, at = drafts.get(name, ()), index[name]
            put_out = sampled[at] if sampled else ()
            slot = slots.setdefault(name, len(slots))
            lost, unasked = cut.get(name, 0), 0
            if not placeholders:
                unasked = draft.count(-1)
            elif draft:
                n = len(draft) - lost
                unasked = n if name in fresh else 0
                draft = [self.padding] * n if unasked else _ids(verified[name], n)
            rows.extend((i, slot, tokens, len(draft), unasked, len(put_out), proposals.count(name, at), lost))
            self.draft_ids.extend(draft)
            self.sampled_ids.extend(put_out)

    def _offer(self, scheduled: Any, proposals: "Proposals") -> None:
        for name in scheduled.finished_req_ids:
            self.offers.pop(name, None)
        if proposals.tensor is not None:
            # copy=True: the proposer writes its next candidates into the same tensor
            ids = _Candidates(proposals.tensor.to("cpu", non_blocking=True, copy=True))
            self.offers.update((name, (ids, row)) for row, name in enumerate(proposals.names))

    def _read_times(self, before: int | None = None) -> None:
        while self.unread and (before is None or self.unread[0][0] < before):
            i, marks = self.unread.pop(0)
            if self.on_gpu:
                forward, sample, draft = (a.elapsed_time(b) / 1e3 for a, b in zip(marks[::2], marks[1::2], strict=True))
                self.idle_events.extend({id(mark): mark for mark in marks}.values())
            else:
                forward, sample, draft = (b - a for a, b in zip(marks[::2], marks[1::2], strict=True))
            at = i * _FIELDS
            self.iterations[at + 1], self.iterations[at + 2], self.iterations[at + 3] = forward, sample, draft

    def _event(self) -> Any:
        import torch

        event = self.idle_events.pop() if self.idle_events else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def arrays(self) -> dict:
        """What was recorded, as arrays; keys as `StepRecorder.take_step_log` says."""
        if self.unread:
            self.unread[-1][1][3].synchronize()  # the end of sampling, drafting included
            self._read_times()
        rows = np.array(self.rows, np.int32).reshape(-1, len(ROW_FIELDS))
        # What was launched last, for sequences that had ended by then, is never read by vLLM.
        read = int(rows[-1, 0]) + 1 if len(rows) else 0
        return {
            "iterations": np.array(self.iterations).reshape(-1, _FIELDS)[:read],
            "rows": rows,
            "request_ids": list(self.slots),
            "draft_ids": np.array(self.draft_ids, np.int32),
            "sampled_ids": np.array(self.sampled_ids, np.int32),
        }


class Proposals:
    """What the drafter proposed in one iteration: lists (one per row of the batch) or a tensor [rows, k], or nothing.

    `names`: the engine's request ids by row of the tensor.
    """

    def __init__(self, called: bool, said: Any, names: Sequence[str] = ()) -> None:
        lists = isinstance(said, list)
        self.tensor = None if lists else said
        self.names = names
        self.lists = said if lists and called else None
        self.fixed = said.shape[1] if called and said is not None and not lists else 0

    def count(self, name: str, row: int) -> int:
        """Candidates proposed for the sequence in that row of the batch."""
        return self.fixed if self.lists is None else len(self.lists[row])


class _Candidates:
    """One iteration's candidates on the host, made into lists when the first of them is asked for."""

    def __init__(self, tensor: Any) -> None:
        self.said = tensor

    def row(self, row: int) -> list[int]:
        if not isinstance(self.said, list):
            self.said = self.said.tolist()
        return self.said[row]


def _ids(offer: tuple | None, n: int) -> list[int]:
    """The first n candidates of an offer, -1 where they are not known."""
    ids = [] if offer is None else offer[0].row(offer[1])[:n]
    return ids + [-1] * (n - len(ids))


def _fresh(scheduled: Any) -> set[str]:
    """Sequences that begin or resume here: candidates scheduled for them are padding (`pad_spec_decode`,
    v1/core/sched/scheduler.py:schedule). The V2 runner is told of a resumed one as of a new one."""
    return {new.req_id for new in scheduled.scheduled_new_reqs} | scheduled.scheduled_cached_reqs.resumed_req_ids


def _cut(scheduled: Any, grammar: Any, drafts: dict) -> dict[str, int]:
    """Candidates per sequence that the grammar ruled out after they were scheduled.

    The scheduler says so itself (`update_draft_token_ids_in_output`) where it shares our process; a worker of another
    process learns it from the grammar's mask, which is made afterwards (`get_grammar_bitmask`).
    """
    if scheduled.num_invalid_spec_tokens is not None:
        return scheduled.num_invalid_spec_tokens
    if grammar is None or not scheduled.pending_structured_output_tokens or grammar.num_acceptable_drafts is None:
        return {}
    names = zip(grammar.structured_output_request_ids, grammar.num_acceptable_drafts, strict=True)
    return {name: len(drafts[name]) - kept for name, kept in names if name in drafts and kept < len(drafts[name])}
