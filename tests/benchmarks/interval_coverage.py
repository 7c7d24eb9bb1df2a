"""How often the 95 % intervals of the summaries hold the truth, on simulated sessions.

    python tests/benchmarks/interval_coverage.py [--seed 1] [--scale 1.0]

Sessions have log-normal lengths and each its own rates (a random effect of standard deviation 1 on the logit, which may
go with the length), so that a few long sessions rule the sums. The truth is integrated, not simulated; the intervals
are those of the view group_summary over the sessions' moments. Prints one JSON object: per number of sessions what is
asked for and the lowest share, over designs and rates, that held the truth: of all, and of those that are not marked
on screen (FEW_SESSIONS effective sessions or more); then every share.
"""

import argparse
import itertools
import json
import math

import duckdb
import numpy as np
import pyarrow as pa

from pipeline.report_tables import FEW_SESSIONS
from pipeline.views import init_sql
from pipeline.warehouse import Warehouse
from schemas.tables import ROLLUP_GROUPS

RATES = "coverage acceptance_rate mean_acceptance_length tokens_per_step".split()
ASKED = {50: 0.90, 500: 0.93, 5000: 0.94}
SIMULATIONS = {50: 4000, 500: 4000, 5000: 6000}
LENGTH, COVERAGE, ACCEPTANCE, LONGEST = 4.0, -0.5, 0.3, 8  # log of the median steps; logits; candidates per round


def draw(rng: np.random.Generator, sessions: int, sigma: float, tie: float) -> dict[str, np.ndarray]:
    """Sums S, R, D, C, E of independent sessions, float64.

    Args:
        rng: what draws them.
        sessions: how many.
        sigma: standard deviation of the log of the number of steps.
        tie: correlation of a session's rates with the log of its length.
    """
    z = rng.normal(size=sessions)
    steps = np.ceil(np.exp(LENGTH + sigma * z)).astype(np.int64)
    effect = tie * z + math.sqrt(1 - tie**2) * rng.normal(size=(2, sessions))
    rounds = rng.binomial(steps, _logistic(COVERAGE + effect[0]))
    drafted = rounds * rng.integers(1, LONGEST + 1, sessions)
    accepted = rng.binomial(drafted, _logistic(ACCEPTANCE + effect[1]))
    sums = dict(S=steps, R=rounds, D=drafted, C=accepted, E=steps + accepted)
    return {letter: values.astype(float) for letter, values in sums.items()}


def truth(sigma: float, tie: float) -> dict[str, float]:
    """The four rates of the population: ratios of expectations, by quadrature over length and effects."""
    z = np.linspace(-9, 12, 40_001)
    node, weight = np.polynomial.hermite_e.hermegauss(80)
    rest = math.sqrt(1 - tie**2) * node
    p, a = (_logistic(c + tie * z[:, None] + rest) @ weight / weight.sum() for c in (COVERAGE, ACCEPTANCE))
    mass = np.exp(-(z**2) / 2) * np.ceil(np.exp(LENGTH + sigma * z))
    steps, rounds, both = mass.sum(), (mass * p).sum(), (mass * p * a).sum()
    mean = (1 + LONGEST) / 2
    return dict(
        zip(RATES, (rounds / steps, both / rounds, 1 + mean * both / rounds, 1 + mean * both / steps), strict=True)
    )


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def moments(sums: dict[str, np.ndarray]) -> dict[str, float]:
    """One row of rollup_groups (what it needs for the rates and their intervals)."""
    row = {"sessions": len(sums["S"])}
    names = dict(S="steps", R="rounds", D="drafted", C="accepted", E="emitted")
    row |= {name: int(sums[letter].sum()) for letter, name in names.items()}
    row |= {f"{y}{k}": float((sums[y] ** k).sum()) for y in "SRD" for k in range(2, 6)}
    return row | {x + y: float(sums[x] @ sums[y]) for x, y in ("CC", "EE", "RS", "CD", "CR", "ES")}


def summaries(rows: list[dict[str, float]]) -> list[dict]:
    """What group_summary says of each row of moments, in their order."""
    fixed = dict(proposer="p", proposer_key="", concurrency=1, scope="all", workload=None, tenant=None)
    table = pa.Table.from_pylist(
        [dict.fromkeys(ROLLUP_GROUPS.names, 0) | fixed | row for row in rows], schema=ROLLUP_GROUPS
    ).append_column("run", pa.array([f"{i:08d}" for i in range(len(rows))]))
    with duckdb.connect() as con:
        con.execute(init_sql(Warehouse("."), runs=[]))
        con.register("given", table)
        con.execute("CREATE OR REPLACE VIEW files.rollup_groups AS SELECT * FROM given")
        return con.sql("SELECT * FROM group_summary ORDER BY run").to_arrow_table().to_pylist()


def held(rng: np.random.Generator, simulations: int, sessions: int, sigma: float, tie: float) -> dict[str, float]:
    """The share of simulations whose interval holds the truth, per rate (NULL counts as a miss).

    And the median of effective_sessions.
    """
    rows = summaries([moments(draw(rng, sessions, sigma, tie)) for _ in range(simulations)])
    found = {"effective_sessions": float(np.median([row["effective_sessions"] for row in rows]))}
    for rate, true in truth(sigma, tie).items():
        ends = [(row[f"{rate}_low"], row[f"{rate}_high"]) for row in rows]
        found[rate] = sum(low is not None and low <= true <= high for low, high in ends) / simulations
    return found


def main() -> None:
    """Simulate every design at every number of sessions."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of simulations")
    given = parser.parse_args()
    rng, shares = np.random.default_rng(given.seed), []
    for sessions, sigma, tie in itertools.product(ASKED, (0.5, 1.0, 1.5), (0.0, 0.5)):
        simulations = int(SIMULATIONS[sessions] * given.scale)
        found = held(rng, simulations, sessions, sigma, tie)
        shares.append({"sessions": sessions, "sigma": sigma, "tie": tie, "simulations": simulations} | found)
    report = {"asked": ASKED}
    for name, least in (("lowest", 0), ("lowest_unmarked", FEW_SESSIONS)):
        chosen = [row for row in shares if row["effective_sessions"] >= least]
        report[name] = {
            n: min((row[r] for row in chosen if row["sessions"] == n for r in RATES), default=None) for n in ASKED
        }
    print(json.dumps(report | {"shares": shares}))


if __name__ == "__main__":
    main()
