"""The step log from hand-written engine records: every rule once, with the numbers a person works out on paper."""

import numpy as np
import pytest

from replay.live.reconcile import reconcile, reconcile_ids
from replay.live.record import ROW_FIELDS
from replay.live.steplog import Lengths, Rules, emptied, engine_steps, step_log
from replay.requests import Tokens
from schemas.tables import MISS_REASONS

CALLED, SKIPPED = 3, -1


def lengths(prompt, output, run_on=None):
    run_on = [0] * len(output) if run_on is None else run_on
    return Lengths(*(np.array(x, np.int64) for x in (prompt, output, run_on)))


def wide(rows):
    """Rows as the recorder keeps them; the last field, candidates cut by the grammar, is 0 where it is left out."""
    return np.array([[*row, 0][: len(ROW_FIELDS)] for row in rows], np.int32).reshape(-1, len(ROW_FIELDS))


def log_of(rows, asked, prompt, output, rules=None, run_on=None, found=None):
    return step_log(wide(rows), np.array(asked), lengths(prompt, output, run_on), rules or Rules(1000), found)


def shown(log):
    reasons = [MISS_REASONS[code] for code in log.miss_reason]
    columns = (log.request, log.step, log.drafted, log.filler, log.accepted, log.overrun)
    return [(*map(int, row), reason) for *row, reason in zip(*columns, reasons, strict=True)]


# iteration, slot, scheduled, drafted, placeholders, sampled, proposed
def test_worked_case_2():
    rows = [(0, 0, 9, 0, 0, 1, 4), (1, 0, 5, 4, 0, 3, 0), (2, 0, 1, 0, 0, 1, 4), (3, 0, 5, 4, 0, 5, 0)]
    log = log_of(rows, [CALLED] * 4, [9], [10])
    assert shown(log) == [
        (0, 1, 4, 0, 2, 0, None),
        (0, 2, 0, 0, 0, 0, "no_match"),
        (0, 3, 4, 0, 4, 0, None),
    ]
    counts = {k: int(v[0]) for k, v in log.counts().items()}
    assert (counts["steps"], counts["rounds"], counts["drafted"], counts["accepted"], counts["emitted"]) == (
        3,
        2,
        8,
        6,
        9,
    )
    assert log.engine_step.tolist() == [1, 2, 3]


def test_overrun_is_cut_from_the_last_step_only():
    rows = [(0, 0, 9, 0, 0, 1, 3), (1, 0, 4, 3, 0, 2, 3), (2, 0, 4, 3, 0, 4, 3)]
    assert shown(log_of(rows, [CALLED] * 3, [9], [5])) == [(0, 1, 3, 0, 1, 0, None), (0, 2, 3, 0, 3, 2, None)]


def test_chunked_prefill_is_no_step():
    rows = [(0, 0, 64, 0, 0, 0, 0), (1, 0, 36, 0, 0, 1, 0), (2, 0, 1, 0, 0, 1, 0)]
    assert shown(log_of(rows, [CALLED] * 3, [100], [2])) == [(0, 1, 0, 0, 0, 0, "no_match")]


def test_zeros_in_place_of_drafts_are_filler():
    rows = [(0, 0, 9, 0, 0, 1, 0), (1, 0, 4, 3, 0, 1, 3), (2, 0, 4, 3, 0, 2, 0)]
    log = log_of(rows, [SKIPPED, CALLED, CALLED], [9], [4])
    assert shown(log) == [(0, 1, 3, 3, 0, 0, "skipped"), (0, 2, 3, 0, 1, 0, None)]


def test_filler_that_is_accepted_still_puts_out_tokens():
    rows = [(0, 0, 9, 0, 0, 1, 0), (1, 0, 4, 3, 0, 3, 0)]
    log = log_of(rows, [SKIPPED, SKIPPED], [9], [4])
    counts = {k: int(v[0]) for k, v in log.counts().items()}
    assert counts["accepted"] == 0 and counts["engine_accepted"] == 2 and counts["emitted"] == 3
    assert counts["rounds"] == 0 and counts["engine_rounds"] == 1


def test_placeholders_on_the_first_iteration_are_prefill_filler():
    rows = [(0, 0, 5, 4, 4, 1, 2), (1, 0, 3, 2, 0, 1, 0)]
    log = log_of(rows, [CALLED] * 2, [33], [2])
    assert log.prefill_filler.tolist() == [4] and shown(log) == [(0, 1, 2, 0, 0, 0, None)]


def test_placeholders_after_preemption_are_filler():
    rows = [(0, 0, 9, 0, 0, 1, 2), (1, 0, 5, 4, 4, 1, 2)]
    assert shown(log_of(rows, [CALLED] * 2, [9], [2])) == [(0, 1, 4, 4, 0, 0, "skipped")]


def test_a_step_never_verified_is_kept_apart():
    rows = [(0, 0, 9, 0, 0, 1, 4), (1, 0, 5, 4, 0, 0, 0), (2, 0, 1, 0, 0, 1, 0)]
    log = log_of(rows, [CALLED] * 3, [9], [2])
    counts = {k: int(v[0]) for k, v in log.counts().items()}
    assert log.accepted.tolist() == [-1, 0]
    assert (counts["unverified"], counts["steps"], counts["drafted"], counts["emitted"]) == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("rules", "proposed", "asked", "reason"),
    [
        (Rules(1000), 0, CALLED, "no_match"),
        (Rules(1000, shortest_window=4), 0, CALLED, "too_short"),
        (Rules(1000, shortest_window=3), 0, CALLED, "no_match"),
        (Rules(4, shortest_window=4), 0, CALLED, "length_limit"),
        (Rules(4), 3, CALLED, "length_limit"),
        (Rules(4), 0, SKIPPED, "length_limit"),
        (Rules(5), 0, SKIPPED, "skipped"),
        (Rules(1000), 3, CALLED, "skipped"),
        (Rules(1000, grammar=frozenset({0})), 3, CALLED, "grammar"),
    ],
)
def test_miss_reason(rules, proposed, asked, reason):
    rows = [(0, 0, 2, 0, 0, 1, proposed), (1, 0, 1, 0, 0, 1, 0)]
    assert shown(log_of(rows, [asked] * 2, [2], [2], rules)) == [(0, 1, 0, 0, 0, 0, reason)]


def test_a_tail_is_no_part_of_the_log():
    rows = [(i, 0, 1, 0, 0, 1, 0) for i in range(6)]
    log = log_of(rows, [SKIPPED] * 6, [9], [4], run_on=[2])
    assert len(log) == 3 and log.counts()["overrun"].tolist() == [0]


@pytest.mark.parametrize("output", [3, 9])
def test_a_record_that_does_not_put_out_the_output_is_refused(output):
    rows = [(0, 0, 9, 0, 0, 1, 3), (1, 0, 4, 3, 0, 4, 3), (2, 0, 4, 3, 0, 2, 3)]
    with pytest.raises(ValueError, match="request 0"):
        log_of(rows, [CALLED] * 3, [9], [output])


def test_requests_of_no_and_of_one_token():
    rows = [(0, 1, 9, 0, 0, 1, 3)]
    log = log_of(rows, [CALLED], [9, 9], [0, 1])
    assert len(log) == 0 and log.counts()["steps"].tolist() == [0, 0]


def two_requests():
    rows = [
        (0, 0, 9, 0, 0, 1, 2),
        (1, 1, 7, 0, 0, 1, 0),
        (1, 0, 3, 2, 0, 3, 0),
        (2, 1, 1, 0, 0, 1, 2),
        (3, 1, 3, 2, 0, 2, 2),
    ]
    return wide(rows), np.array([CALLED] * 4)


def test_engine_steps():
    rows, asked = two_requests()
    size = lengths([9, 7], [4, 3])
    log = step_log(rows, asked, size, Rules(1000))
    start = np.array([0.0, 1.0, 2.0, 3.0])
    record = {
        "rows": rows,
        "iterations": np.stack([start + 0.1, np.full(4, 0.2), np.full(4, 0.05), np.full(4, 0.01), asked], axis=1),
    }
    steps = np.array([(0.0, 0.4), (0.5, 0.6), (1.0, 1.4), (2.0, 2.4), (3.0, 3.5)])  # the second ran no forward
    table = engine_steps(record, size, log, steps, "p", 2)
    expected = {
        "sequences": [1, 2, 1, 1],
        "prefill_tokens": [9, 7, 0, 0],
        "decode_tokens": [0, 3, 1, 3],
        "draft_tokens": [0, 2, 0, 2],
        "emitted": [0, 3, 1, 1],
        "started_us": [0, 1_000_000, 2_000_000, 3_000_000],
        "step_us": [400_000, 400_000, 400_000, 500_000],
        "verify_us": [240_000] * 4,
        "draft_us": [10_000] * 4,
    }
    assert {name: table[name].to_pylist() for name in expected} == expected


def witnesses():
    rows, asked = two_requests()
    log = step_log(rows, asked, lengths([9, 7], [4, 3]), Rules(1000))
    counters = {
        "num_drafts": 2,
        "num_draft_tokens": 4,
        "num_accepted_tokens": 3,
        "num_accepted_tokens_per_pos": [2, 1],
        "generation_tokens": 7,
    }
    return log, counters, [([2], [2]), ([2], [1])]


def verdict(log, counters, per_request):
    nothing = np.zeros(2, np.int64)
    return reconcile(log, counters, np.array([4, 3]), nothing, per_request, ["a", "b"])


def test_what_adds_up_reconciles():
    assert verdict(*witnesses()) == {"ok": True, "mismatches": [], "engine": witnesses()[1]}


@pytest.mark.parametrize(
    "counter", ["num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"]
)
def test_each_counter_that_differs_is_named(counter):
    log, counters, per_request = witnesses()
    old = counters[counter]
    counters[counter] = [2, 2] if isinstance(old, list) else old + 1
    (mismatch,) = verdict(log, counters, per_request)["mismatches"]
    assert mismatch == {"counter": f"vllm:spec_decode_{counter}", "engine": counters[counter], "step_log": old}


def test_generation_tokens_and_requests_are_witnesses_too():
    log, counters, per_request = witnesses()
    counters["generation_tokens"] = 8
    per_request[1] = ([2], [2])
    named = [(m["counter"], m.get("request")) for m in verdict(log, counters, per_request)["mismatches"]]
    assert named == [("vllm:generation_tokens", None), ("spec_decode_metrics.per_step_accepted", "b")]


@pytest.mark.parametrize("column", ["drafted", "accepted", "overrun"])
def test_a_tampered_log_is_caught(column):
    log, counters, per_request = witnesses()
    getattr(log, column)[0] -= 1 if column != "overrun" else -1
    result = verdict(log, counters, per_request)
    assert not result["ok"] and result["mismatches"]


def ids():
    """Of `two_requests`: drafts 1 2 (both accepted) and 5 6 (the first); the second output ends one token early."""
    return np.array([1, 2, 5, 6]), np.array([9, 4, 1, 2, 3, 4, 5, 7]), Tokens.of([[9, 1, 2, 3], [4, 4, 5]])


def test_ids_that_agree():
    assert reconcile_ids(two_requests()[0], *ids(), ["a", "b"]) == []


def test_an_accepted_candidate_that_was_not_sampled_is_caught():
    draft, sampled, put_out = ids()
    draft[1] = 8
    (mismatch,) = reconcile_ids(two_requests()[0], draft, sampled, put_out, ["a", "b"])
    assert (mismatch["counter"], mismatch["request"], mismatch["step_log"]) == ("accepted candidate ids", "a", 1)


@pytest.mark.parametrize(("changed", "at"), [([4, 4, 6], 2), ([4, 4, 5, 7, 8], 4)])
def test_an_output_the_worker_did_not_sample_is_caught(changed, at):
    draft, sampled, _ = ids()
    put_out = Tokens.of([[9, 1, 2, 3], changed])
    (mismatch,) = reconcile_ids(two_requests()[0], draft, sampled, put_out, ["a", "b"])
    assert (mismatch["counter"], mismatch["request"], mismatch["step_log"]) == ("output token ids", "b", at)


def test_a_lookup_that_fills_up_is_real_as_far_as_it_found_something():
    rows = [(0, 0, 9, 0, 0, 1, 4), (1, 0, 5, 4, 0, 3, 4), (2, 0, 5, 4, 0, 5, 4), (3, 0, 5, 4, 0, 1, 4)]
    rows += [(4, 0, 5, 4, 4, 1, 4), (5, 0, 2, 1, 0, 1, 4)]
    found = np.array([0, 2, 0, 4, 4, 4])
    log = log_of(rows, [CALLED] * 6, [9], [12], Rules(1000, shortest_window=14), found=found)
    assert shown(log) == [
        (0, 1, 4, 2, 2, 0, None),
        (0, 2, 4, 4, 4, 0, "too_short"),  # 13 tokens; all filler, and all of it accepted
        (0, 3, 4, 0, 0, 0, None),
        (0, 4, 4, 4, 0, 0, "skipped"),  # it resumed: padding, whatever a lookup would find
        (0, 5, 1, 0, 0, 0, None),  # the length limit cuts filler first
    ]
    counts = {k: int(v[0]) for k, v in log.counts().items()}
    assert (counts["rounds"], counts["drafted"], counts["accepted"], counts["engine_accepted"]) == (3, 7, 2, 6)


def test_a_lookup_that_finds_nothing_says_so():
    rows = [(0, 0, 9, 0, 0, 1, 4), (1, 0, 5, 4, 0, 1, 4), (2, 0, 1, 0, 0, 1, 4)]
    log = log_of(rows, [CALLED] * 3, [9], [3], found=np.zeros(3, np.int64))
    assert [reason for *_, reason in shown(log)] == ["no_match", "no_match"]


def test_asynchronous_what_is_launched_past_the_end_is_no_step():
    rows = [(0, 0, 9, 0, 0, 1, 3), (1, 0, 4, 3, 0, 3, 3), (2, 0, 4, 3, 0, 4, 3)]
    log = log_of(rows, [CALLED] * 3, [9], [3], Rules(1000, asynchronous=True))
    assert shown(log) == [(0, 1, 3, 0, 2, 1, None)]
    with pytest.raises(ValueError, match="request 0"):
        log_of(rows, [CALLED] * 3, [9], [3])
    with pytest.raises(ValueError, match="request 0"):  # too few is a fault here too
        log_of(rows[:1], [CALLED] * 3, [9], [3], Rules(1000, asynchronous=True))


@pytest.mark.parametrize(
    ("limit", "reason"), [(15, "length_limit"), (14, "skipped"), (16, "skipped"), (12, "length_limit")]
)
def test_asynchronous_the_length_limit_counts_candidates_still_in_flight(limit, reason):
    # 9 + 1 tokens, 3 candidates in flight: 14 foreseen; 11 are known in the end
    rows = [(0, 0, 9, 0, 0, 1, 3), (1, 0, 4, 3, 0, 1, 3), (2, 0, 1, 0, 0, 1, 3)]
    log = log_of(rows, [CALLED] * 3, [9], [3], Rules(limit, asynchronous=True))
    assert shown(log)[1] == (0, 2, 0, 0, 0, 0, reason)
    assert shown(log_of(rows, [CALLED] * 3, [9], [3], Rules(16)))[1][-1] == "skipped"


def test_candidates_the_grammar_cut_after_they_were_scheduled():
    rows = wide([(0, 0, 9, 0, 0, 1, 3, 0), (1, 0, 4, 1, 0, 2, 3, 2), (2, 0, 4, 0, 0, 1, 3, 3)])
    log = log_of(rows, [CALLED] * 3, [9], [4], Rules(1000, asynchronous=True))
    assert shown(log) == [(0, 1, 1, 0, 1, 0, None), (0, 2, 0, 0, 0, 0, "grammar")]
    assert emptied(log, rows).tolist() == [False, True]
    # vLLM's own figures of that: both are rounds, the second one of no candidates
    counters = {
        "num_drafts": 2,
        "num_draft_tokens": 1,
        "num_accepted_tokens": 1,
        "num_accepted_tokens_per_pos": [1],
        "generation_tokens": 4,
    }
    given = counters, np.array([4]), np.array([0]), [([1, 0], [1, 0])], ["a"]
    assert reconcile(log, *given, emptied(log, rows))["mismatches"] == []
    named = [m["counter"] for m in reconcile(log, *given)["mismatches"]]
    assert "vllm:spec_decode_num_drafts" in named and "spec_decode_metrics.per_step_drafted" in named


def test_asynchronous_candidates_that_the_grammar_cut_were_in_flight_too():
    rows = [(0, 0, 9, 0, 0, 1, 3, 0), (1, 0, 4, 1, 0, 1, 3, 2), (2, 0, 1, 0, 0, 1, 3, 0)]
    log = log_of(rows, [CALLED] * 3, [9], [3], Rules(15, asynchronous=True))
    assert shown(log)[1][-1] == "length_limit"
