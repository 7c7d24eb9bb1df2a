"""Comparisons: parts that add up to the last digit, pairs by session, and noise told from change."""

import json
import random
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged_runs import Request, Run, Step, commit, random_run, tables
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.compare import PARTS, compare, lines, notes, parts_of
from pipeline.views import connect
from pipeline.warehouse import Warehouse
from schemas.errors import InputError
from schemas.tables import REQUESTS

small = st.integers(0, 50)
totals = st.tuples(st.integers(1, 100), small, small, small, small).map(
    lambda t: (t[0], min(t[1], t[0]), t[2] if t[1] else 0, t[3], t[4])
)


@given(totals, totals)
def test_parts_add_up_exactly(before, after):
    made = parts_of(*(np.array([Fraction(v) for v in side], dtype=object) for side in (before, after)))
    e_over_s = [Fraction(s + c + f - o, s) for s, _, c, f, o in (before, after)]
    assert made[0] == sum(made[1:]) == e_over_s[1] - e_over_s[0]
    assert np.allclose(parts_of(np.array(before, float), np.array(after, float)), made.astype(float))


def test_parts_by_hand():
    """Coverage 1/2 → 3/4 at length 3, then the length 3 → 5 at coverage 3/4: each change is of one kind."""
    half, more, longer = ([8, 4, 8, 0, 0], [8, 6, 12, 0, 0], [8, 6, 24, 0, 0])
    exact = [np.array([Fraction(v) for v in side], dtype=object) for side in (half, more, longer)]
    assert list(parts_of(exact[0], exact[1])) == [Fraction(1, 2), Fraction(1, 2), 0, 0, 0]
    assert list(parts_of(exact[1], exact[2])) == [Fraction(3, 2), 0, Fraction(3, 2), 0, 0]


def test_without_rounds_all_is_coverage():
    none, some = (np.array([Fraction(v) for v in side], dtype=object) for side in ([9, 0, 0, 0, 0], [6, 3, 3, 0, 0]))
    assert list(parts_of(none, some)) == [Fraction(1, 2), Fraction(1, 2), 0, 0, 0]


def _house(tmp_path, **runs: Run) -> Warehouse:
    warehouse = Warehouse(tmp_path / "house")
    for name, run in runs.items():
        commit(warehouse, name, run)
    return warehouse


def _requests(rng: random.Random, count: int, hit: float) -> list[Request]:
    """Requests of 20 steps, each with its own rate of hits about `hit`; a hit accepts 2 of 2."""
    made = []
    for _ in range(count):
        rate = min(max(rng.gauss(hit, 0.1), 0), 1)
        made.append(Request([Step(2, 2) if rng.random() < rate else Step(0, 0, miss="no_match") for _ in range(20)]))
    return made


def test_a_change_of_coverage_is_named_and_real(tmp_path):
    rng = random.Random(1)
    house = _house(tmp_path, a=Run({"p": _requests(rng, 60, 0.3)}), b=Run({"p": _requests(rng, 60, 0.6)}))
    (change,) = compare(connect(house), "a", "b")
    assert change.unpaired is None and change.verdict == "real"
    assert change.parts["coverage"] == change.change > 0
    assert [change.parts[part] for part in PARTS[1:]] == [0, 0, 0]
    low, high = change.intervals["change"]
    assert low < change.change < high
    assert low < 2 * 0.3 < high  # what the requests were drawn with


def test_noise_is_called_noise(tmp_path):
    rng = random.Random(2)
    house = _house(tmp_path, a=Run({"p": _requests(rng, 40, 0.4)}), b=Run({"p": _requests(rng, 40, 0.4)}))
    (change,) = compare(connect(house), "a", "b")
    assert change.verdict == "noise"
    assert change.noise and change.intervals["change"][0] < 0 < change.intervals["change"][1]


def test_the_same_run_does_not_change(tmp_path):
    house = _house(tmp_path, a=random_run(3), b=random_run(3))
    for change in compare(connect(house), "a", "b"):
        assert (change.change, change.verdict, change.intervals["change"]) == (0, "no change", (0, 0))


def test_pairs_see_what_strangers_do_not(tmp_path):
    """Every request gets one more hit: paired that is certain, against requests that differ far more among them."""
    rng = random.Random(4)
    rates = [rng.random() for _ in range(40)]
    hits = [int(20 * rate * 0.9) for rate in rates]
    miss = Step(0, 0, miss="no_match")
    before = [Request([Step(2, 2)] * n + [miss] * (20 - n)) for n in hits]
    after = [Request([Step(2, 2)] * (n + 1) + [miss] * (19 - n)) for n in hits]
    house = _house(tmp_path, a=Run({"p": before}), b=Run({"p": after}), c=Run({"p": after[:-1]}))
    (paired,) = compare(connect(house), "a", "b")
    assert paired.unpaired is None and paired.verdict == "real"
    assert paired.intervals["change"] == pytest.approx((0.1, 0.1))
    (stranger,) = compare(connect(house), "a", "c")
    assert stranger.unpaired == "the runs hold other requests of the trace" and stranger.verdict == "noise"
    assert notes([stranger]) == ["compared session by session: no, the runs hold other requests of the trace"]


def test_sessions_not_requests_are_drawn(tmp_path):
    """Two sessions of 30 like requests each say little: the interval is wide, whatever the number of requests."""
    miss, hit = Step(0, 0, miss="no_match"), Step(2, 2)
    before = [Request([miss] * 10)] * 30 + [Request([hit] * 5 + [miss] * 5)] * 30
    after = [Request([hit] * 2 + [miss] * 8)] * 30 + [Request([hit] * 5 + [miss] * 5)] * 30
    warehouse = Warehouse(tmp_path / "house")
    for name, requests in (("a", before), ("b", after)):
        run = Run({"p": requests})
        made = tables(run, "p", requests)
        at = made["requests"].column_names.index("session_id")
        sessions = pa.array([f"s{i // 30}" for i in range(60)])
        made["requests"] = made["requests"].set_column(at, REQUESTS.field("session_id"), sessions)
        warehouse.write_plan(name, {"trace": {"name": "t"}})
        warehouse.commit_shard(name, "0", made)
    (change,) = compare(connect(warehouse), "a", "b")
    assert change.sessions == 2 and change.verdict == "noise"
    assert lines([change])[0]["sessions"] == "2 few"
    assert notes([change]) == ["few: under 30 sessions, so take the interval and the verdict as rough"]


def test_proposers_of_one_run_against_its_best(tmp_path):
    house = _house(tmp_path, a=random_run(8, live=True))
    changes = compare(connect(house), "a")
    assert len(changes) == 2 and len({c.before_name for c in changes}) == 1
    assert all(c.before["tokens_per_step"] >= c.after["tokens_per_step"] and c.change <= 0 for c in changes)
    assert all(c.change == sum(c.parts.values()) for c in changes)


def test_none_of_two_proposers_is_refused(tmp_path):
    one = Run({"p": [Request([Step(1, 1)])]})
    house = _house(tmp_path, a=one, b=Run({"q": one.requests["p"]}))
    con = connect(house)
    for arguments, wanted in (
        (("a",), "one proposer"),
        (("a", "b"), "no proposer in common: a has p; b has q"),
        (("a", "x"), "no numbers of a run 'x'; there are: a, b"),
    ):
        with pytest.raises(InputError, match=wanted):
            compare(con, *arguments)


def test_one_session_or_no_step_cannot_be_judged(tmp_path):
    house = _house(
        tmp_path,
        a=Run({"p": [Request([Step(1, 1)])], "q": [Request([], output_tokens=1)]}),
        b=Run({"p": [Request([Step(1, 0)])], "q": [Request([], output_tokens=1)]}),
    )
    one, nothing = compare(connect(house), "a", "b")
    assert (one.change, one.noise, one.verdict) == (-1, None, "cannot be said")
    assert (nothing.change, nothing.parts, nothing.verdict) == (None, {}, "cannot be said")
    assert [row["change"] for row in lines([one, nothing])] == ["-1.000", "n/a"]


def test_command(tmp_path):
    rng = random.Random(1)
    house = _house(tmp_path, a=Run({"p": _requests(rng, 30, 0.3)}), b=Run({"p": _requests(rng, 30, 0.6)}))
    told = CliRunner().invoke(app, ["compare", "a", "b", "--warehouse", str(house.root)])
    assert told.exit_code == 0 and "real" in told.stdout and "of it coverage" in told.stdout
    told = CliRunner().invoke(app, ["compare", "a", "b", "--json", "--warehouse", str(house.root)])
    (found,) = json.loads(told.stdout)
    assert found["change"] == pytest.approx(sum(found["parts"].values()))
    assert found["noise"] is False
