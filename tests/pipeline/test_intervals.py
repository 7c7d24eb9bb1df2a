"""Intervals of the summaries against the same formula over the sessions themselves, printed tables, and simulation."""

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from logged_runs import Request, Run, Step, commit

from pipeline.statistics import bootstrap, student
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from interval_coverage import RATES, draw, held, moments, summaries

# (x, y, offset) of each rate
RATIOS = {
    "coverage": ("R", "S", 0),
    "acceptance_rate": ("C", "D", 0),
    "mean_acceptance_length": ("C", "R", 1),
    "tokens_per_step": ("E", "S", 0),
}
# 97.5 % quantiles as printed in any table of Student's t
PRINTED = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    7: 2.365,
    10: 2.228,
    20: 2.086,
    30: 2.042,
    60: 2.000,
    120: 1.980,
}


@pytest.mark.parametrize("freedom", PRINTED)
def test_quantiles_are_those_of_printed_tables(tmp_path, freedom):
    con = connect(_house(tmp_path))
    (found,) = query(con, "SELECT t_quantile(?::double) AS t", [freedom])["t"].to_pylist()
    assert found == pytest.approx(PRINTED[freedom], abs=6e-4) and student(freedom) == pytest.approx(found, rel=1e-12)


def _house(tmp_path) -> Warehouse:
    (tmp_path / "house").mkdir(exist_ok=True)
    return Warehouse(tmp_path / "house")


def _half_width(x: np.ndarray, y: np.ndarray, quantile) -> float:
    """The linearised half width, from the sessions' residuals and the quadratic form's own matrix."""
    m, ratio = len(x), x.sum() / y.sum()
    squares = ((x - ratio * y) ** 2).sum()
    # squares = r' B r for rates r of variance 1: B = P' diag(y^2) P, P takes the fitted ratio off
    p = np.eye(m) - np.outer(np.ones(m), y / y.sum())
    b = p.T @ np.diag(y**2) @ p
    freedom = np.trace(b) ** 2 / np.trace(b @ b)
    return quantile(max(freedom, 1)) * math.sqrt(squares / np.trace(b) * (y**2).sum()) / y.sum()


@pytest.mark.parametrize("sessions", [2, 3, 7, 60])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_against_the_sessions_themselves(sessions, sigma):
    rng = np.random.default_rng(sessions)
    sums = [draw(rng, sessions, sigma, 0.3) for _ in range(5)]
    for one, row in zip(sums, summaries([moments(s) for s in sums]), strict=True):
        for rate, (x, y, offset) in RATIOS.items():
            if (one[y] > 0).sum() < 2:
                assert row[f"{rate}_low"] is None and row[f"{rate}_high"] is None
                continue
            half, value = _half_width(one[x], one[y], student), row[rate]
            assert value == pytest.approx(offset + one[x].sum() / one[y].sum())
            if rate in ("coverage", "acceptance_rate"):
                logit, away = math.log(value / (1 - value)), half / (value * (1 - value))
                wanted = [1 / (1 + math.exp(-(logit + end))) for end in (-away, away)]
            else:
                wanted = [1 + (value - 1) * math.exp(end / (value - 1)) for end in (-half, half)]
            assert [row[f"{rate}_low"], row[f"{rate}_high"]] == pytest.approx(wanted, rel=1e-6)


def test_sessions_of_one_length_are_the_textbook_case():
    """The mean of m rates, with their standard deviation and m - 1 degrees of freedom."""
    rounds = np.array([10.0, 30, 20, 25, 15, 40])
    steps = np.full(6, 50.0)
    sums = dict(S=steps, R=rounds, D=rounds, C=rounds, E=steps + rounds)
    (row,) = summaries([moments(sums)])
    rates = rounds / 50
    half = 2.5706 * rates.std(ddof=1) / math.sqrt(6)
    value, away = rates.mean(), half / (rates.mean() * (1 - rates.mean()))
    low, high = (1 / (1 + math.exp(-(math.log(value / (1 - value)) + end))) for end in (-away, away))
    assert (row["coverage_low"], row["coverage_high"]) == pytest.approx((low, high), rel=1e-4)
    assert row["effective_sessions"] == pytest.approx(6)


def test_one_session_or_none_has_no_interval():
    one = dict(zip("SRDCE", ([10.0], [5.0], [9.0], [3.0], [13.0]), strict=True))
    rows = summaries([moments({k: np.array(v) for k, v in one.items()}), moments({k: np.zeros(3) for k in "SRDCE"})])
    for row in rows:
        assert all(row[f"{rate}_{end}"] is None for rate in RATES for end in ("low", "high"))
        assert row["effective_sessions"] is None


def test_a_session_that_is_all_but_everything_has_no_interval():
    steps, rounds = np.array([1e9, 1.0]), np.array([5e8, 1.0])
    (row,) = summaries([moments(dict(S=steps, R=rounds, D=rounds, C=rounds, E=steps + rounds))])
    assert row["coverage"] == pytest.approx(0.5) and row["coverage_low"] is None


@pytest.mark.parametrize(("accepted", "share", "length"), [(4, 1.0, 5.0), (0, 0.0, 1.0)])
def test_no_spread_is_no_width_and_never_nan(tmp_path, accepted, share, length):
    """All candidates of every session accepted, or none: both ends are the value itself."""
    warehouse = _house(tmp_path)
    commit(warehouse, "r", Run({"p": [Request([Step(4, accepted)] * n) for n in (1, 5, 30)]}))
    (row,) = query(connect(warehouse), "SELECT * FROM proposer_summary").to_pylist()
    assert [row[f"acceptance_rate{e}"] for e in ("", "_low", "_high")] == [share] * 3
    assert [row[f"mean_acceptance_length{e}"] for e in ("", "_low", "_high")] == [length] * 3
    assert [row[f"coverage{e}"] for e in ("", "_low", "_high")] == [1.0] * 3


def test_ends_stay_where_the_rate_can_be(tmp_path):
    rng = random.Random(3)
    miss = Step(0, 0, miss="no_match")
    requests = [Request([Step(2, rng.randint(0, 2)) if rng.random() < 0.05 else miss] * 9) for _ in range(12)]
    warehouse = _house(tmp_path)
    commit(warehouse, "r", Run({"p": requests}))
    (row,) = query(connect(warehouse), "SELECT * FROM proposer_summary").to_pylist()
    for rate, least, most in (("coverage", 0, 1), ("acceptance_rate", 0, 1), ("tokens_per_step", 1, math.inf)):
        ends = [row[f"{rate}_low"], row[rate], row[f"{rate}_high"]]
        if ends[0] is not None:
            assert least <= ends[0] <= ends[1] <= ends[2] <= most


def test_simulated_sessions_hold_the_truth():
    """50 sessions, log-normal lengths, strong clustering: 95 % intervals hold the truth at least 90 % of the time."""
    found = held(np.random.default_rng(11), 400, 50, 1.0, 0.0)
    assert all(found[rate] >= 0.90 for rate in RATES), found
    assert found["effective_sessions"] < 30  # marked all the same


def test_bootstrap_of_a_mean_agrees_with_the_textbook():
    rng = np.random.default_rng(5)
    sample = np.column_stack([np.ones(400), rng.normal(3, 2, 400)])
    low, high = bootstrap([sample], lambda t: (t[..., 1] / t[..., 0])[..., None])
    half = 1.966 * sample[:, 1].std(ddof=1) / 20
    assert (low[0], high[0]) == pytest.approx((sample[:, 1].mean() - half, sample[:, 1].mean() + half), abs=0.02)


def test_bootstrap_of_many_sessions_in_groups():
    """More sessions than are resampled one by one: the same width as the textbook's."""
    rng = np.random.default_rng(6)
    sample = np.column_stack([np.ones(20_000), rng.exponential(2, 20_000)])
    low, high = bootstrap([sample], lambda t: (t[..., 1] / t[..., 0])[..., None])
    assert high[0] - low[0] == pytest.approx(2 * 1.96 * 2 / math.sqrt(20_000), rel=0.1)


def test_bootstrap_holds_the_truth_for_few_skewed_sessions():
    """30 sessions of log-normal size: the percentiles alone hold the ratio some 85 % of the time."""
    rng, hits = np.random.default_rng(7), 0
    for seed in range(100):
        size = np.exp(rng.normal(0, 1, 30))
        sample = np.column_stack([size, size * rng.beta(2, 2, 30)])
        low, high = bootstrap([sample], lambda t: (t[..., 1] / t[..., 0])[..., None], seed)
        hits += low[0] <= 0.5 <= high[0]
    assert hits >= 90


def test_a_bootstrap_needs_two_sessions():
    low, high = bootstrap([np.array([[1.0, 1.0], [0.0, 0.0]])], lambda t: t[..., :1])
    assert np.isnan(low).all() and np.isnan(high).all()
