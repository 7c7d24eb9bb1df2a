"""The recorder's arrays from hand-made outputs of scheduler and runner: whose candidates, which ids, read when."""

from types import SimpleNamespace

import numpy as np
import pytest

from replay.live.record import ITERATION_FIELDS, ROW_FIELDS, Proposals, Record

torch = pytest.importorskip("torch", reason="candidates are tensors")
MARKS = (0.0, 1.0, 1.0, 1.5, 1.25, 1.5)


def scheduled(tokens, drafts=None, new=(), resumed=(), finished=(), invalid=None, pending=False):
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        scheduled_spec_decode_tokens=drafts or {},
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
        finished_req_ids=set(finished),
        num_invalid_spec_tokens=invalid,
        pending_structured_output_tokens=pending,
    )


class Later:
    """An output whose tokens reach the host when it is read."""

    def __init__(self, sampled):
        self.sampled = sampled

    def get_output(self):
        names = list(self.sampled)
        index = {name: i for i, name in enumerate(names)}
        return SimpleNamespace(sampled_token_ids=list(self.sampled.values()), req_id_to_index=index)


def tensor(names, *rows):
    return Proposals(True, torch.tensor(rows), names)


NOTHING = Proposals(False, None)


def rows_of(arrays, *fields):
    return [tuple(int(row[ROW_FIELDS.index(f)]) for f in fields) for row in arrays["rows"]]


def test_candidates_are_those_of_the_iteration_before_and_tokens_come_when_they_are_read():
    record = Record(on_gpu=False, placeholders=True)
    buffer = torch.tensor([[5, 6], [7, 8]])
    first, second = Later({"a": [1], "b": [2]}), Later({"b": [7, 9], "a": [4]})
    record.launched(
        1.0, MARKS, 2, scheduled({"a": 3, "b": 4}, new="ab"), first, None, Proposals(True, buffer, ["a", "b"])
    )
    buffer[:] = 0  # a proposer writes into the same tensor again
    # the batch is ordered anew; one sequence is scheduled with one candidate only
    step = scheduled({"b": 3, "a": 2}, {"b": [-1, -1], "a": [-1]})
    record.launched(2.0, MARKS, 2, step, second, None, tensor(["b", "a"], [1, 1], [2, 2]))
    assert record.arrays()["rows"].size == 0
    first.get_output()
    second.get_output()
    out = record.arrays()
    assert out["request_ids"] == ["a", "b"]
    assert rows_of(out, "iteration", "slot", "drafted", "placeholders", "sampled", "proposed") == [
        (0, 0, 0, 0, 1, 2),
        (0, 1, 0, 0, 1, 2),
        (1, 1, 2, 0, 2, 2),
        (1, 0, 1, 0, 1, 2),
    ]
    assert out["draft_ids"].tolist() == [7, 8, 5] and out["sampled_ids"].tolist() == [1, 2, 7, 9, 4]
    times = dict(zip(ITERATION_FIELDS, out["iterations"].T.tolist(), strict=True))
    assert times["forward_s"] == [1, 1] and times["sample_s"] == [0.5, 0.5] and times["draft_s"] == [0.25, 0.25]


def test_what_is_launched_and_never_read_is_left_out():
    record = Record(on_gpu=False, placeholders=True)
    first, second = Later({"a": [1]}), Later({"a": [2]})
    for output in (first, second):
        record.launched(1.0, MARKS, -1, scheduled({"a": 1}), output, None, NOTHING)
    first.get_output()
    assert len(record.arrays()["iterations"]) == 1 and rows_of(record.arrays(), "iteration") == [(0,)]


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_of_a_sequence_that_begins_or_resumes_is_no_candidate(padding):
    record = Record(on_gpu=False, placeholders=True, padding=padding)
    output = Later({"a": [1], "b": [2, 3], "c": [4]})
    record.launched(0.0, MARKS, 2, scheduled({"b": 1}), Later({"b": [9]}), None, tensor(["b"], [2, 5]))
    drafts = {"a": [-1, -1], "b": [-1, -1], "c": [-1, -1]}
    step = scheduled({"a": 3, "b": 3, "c": 3}, drafts, new="a", resumed="c")
    record.launched(1.0, MARKS, 2, step, output, None, tensor(["a", "b", "c"], [0, 0], [0, 0], [0, 0]))
    output.get_output()
    out = record.arrays()
    assert rows_of(out, "drafted", "placeholders") == [(2, 2), (2, 0), (2, 2)]
    assert out["draft_ids"].tolist() == [padding, padding, 2, 5, padding, padding]


@pytest.mark.parametrize("told", ["by the scheduler", "by the mask"])
def test_candidates_the_grammar_cut_afterwards_are_counted_apart(told):
    record = Record(on_gpu=False, placeholders=True)
    record.launched(0.0, MARKS, 3, scheduled({"a": 1, "b": 1}), Later({"a": [1], "b": [1]}), None,
                    tensor(["a", "b"], [4, 5, 6], [7, 8, 9]))  # fmt: skip
    step = scheduled({"a": 4, "b": 4}, {"a": [-1] * 3, "b": [-1] * 3}, pending=True)
    grammar = SimpleNamespace(structured_output_request_ids=["a"], num_acceptable_drafts=[1])
    output = Later({"a": [4], "b": [7]})
    record.launched(1.0, MARKS, 3, step, output, grammar, NOTHING)
    if told == "by the scheduler":  # it does so between forward and sampling, in the same object
        step.num_invalid_spec_tokens = {"a": 2}
    output.get_output()
    out = record.arrays()
    assert rows_of(out, "drafted", "cut") == [(1, 2), (3, 0)] and out["draft_ids"].tolist() == [4, 7, 8, 9]


def test_synchronous_v1_takes_the_candidates_the_scheduler_was_given():
    record = Record(on_gpu=False, placeholders=False)
    output = SimpleNamespace(sampled_token_ids=[[4, 5], [6]], req_id_to_index={"a": 0, "b": 1})
    step = scheduled({"a": 3, "b": 3}, {"a": [4, 7], "b": [-1, -1]})
    record.launched(0.0, MARKS, 2, step, output, None, Proposals(True, [[1], []]))
    out = record.arrays()
    assert rows_of(out, "drafted", "placeholders", "proposed") == [(2, 0, 1), (2, 2, 0)]
    assert out["draft_ids"].tolist() == [4, 7, -1, -1] and np.isfinite(out["iterations"]).all()


def test_times_on_a_gpu_are_read_when_a_later_iteration_is_here():
    """Events are asked for their distance only when what came after them has reached the host, and then used again."""

    class Event:
        done = False

        def __init__(self, at):
            self.at = at

        def elapsed_time(self, other):
            assert Event.done, "a time was asked for before the device had passed it"
            return 1e3 * (other.at - self.at)

        def synchronize(self):
            Event.done = True

    record = Record(on_gpu=True, placeholders=True)
    outputs = [Later({"a": [1]}), Later({"a": [2]})]
    for output in outputs:
        events = [Event(at) for at in (0.0, 1.0, 2.0, 5.0)]
        # where the drafter was not called its marks are one and the same
        record.launched(0.0, (*events, events[2], events[2]), -1, scheduled({"a": 1}), output, None, NOTHING)
    outputs[0].get_output()
    assert not record.idle_events
    Event.done = True
    outputs[1].get_output()
    assert len(record.idle_events) == 4  # the first iteration's
    Event.done = False
    assert record.arrays()["iterations"][:, 1:4].tolist() == [[1, 3, 0], [1, 3, 0]]
