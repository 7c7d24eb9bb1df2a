"""Bootstrap intervals of anything that is computed from sums over sessions: for differences between runs or proposers.

Knows sums and functions of sums, not what they count. The intervals of single ratios are SQL: `sql/00_intervals.sql`.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

REPLICATES = 2000
"""Bootstrap draws."""

GROUPS = 1000
"""More sessions than twice this are dealt at random into so many groups, which are resampled whole."""

_NORMAL = NormalDist()
_BLOCK = 4_000_000  # numbers held at once


def bootstrap(
    samples: Sequence[np.ndarray], statistic: Callable[..., np.ndarray], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """95 % intervals of `statistic(*totals)`: accelerated and bias-corrected (BCa), expanded for few sessions.

    Each sample is resampled by its rows on its own. What was measured twice on the same sessions belongs into one
    sample, side by side: that is the paired comparison.

    Args:
        samples: float arrays of (sessions, columns): sums per session; the first column is the session's size.
        statistic: takes one array (..., columns) of totals per sample, gives (..., outputs).
        seed: another seed draws other sessions.

    Returns:
        (low, high), float arrays of (outputs,): NaN where a sample has fewer than 2 sessions of any size.
    """
    rng = np.random.default_rng(seed)
    samples = [_grouped(sample[np.any(sample != 0, axis=1)], rng) for sample in samples]
    totals = [sample.sum(axis=0) for sample in samples]
    point = np.asarray(statistic(*totals), float)
    if min(map(len, samples)) < 2:
        return np.full(point.shape, np.nan), np.full(point.shape, np.nan)
    drawn = np.asarray(statistic(*(_resampled(sample, rng) for sample in samples)), float)
    below = (np.sum(drawn < point, axis=0) + np.sum(drawn == point, axis=0) / 2) / len(drawn)
    bias = [_NORMAL.inv_cdf(min(max(share, 1 / (2 * len(drawn))), 1 - 1 / (2 * len(drawn)))) for share in below]
    cubes, squares = np.zeros(point.shape), np.zeros(point.shape)
    for i, sample in enumerate(samples):
        without = [*totals[:i], totals[i] - sample, *totals[i + 1 :]]
        influence = point - np.asarray(
            statistic(*(np.broadcast_to(t, sample.shape[:1] + t.shape[-1:]) for t in without))
        )
        influence = influence - influence.mean(axis=0)
        cubes, squares = cubes + (influence**3).sum(axis=0), squares + (influence**2).sum(axis=0)
    reach = max(_expanded(sample[:, 0]) for sample in samples)
    ends = np.empty((2, *point.shape))
    for j in range(len(point)):
        acceleration = cubes[j] / (6 * squares[j] ** 1.5) if squares[j] > 0 else 0.0
        for end, z in enumerate((-reach, reach)):
            moved = bias[j] + z
            bend = 1 - acceleration * moved
            level = _NORMAL.cdf(bias[j] + moved / bend) if bend > 0 else float(end)
            ends[end, j] = np.quantile(drawn[:, j], level)
    return ends[0], ends[1]


def _grouped(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if len(sample) <= 2 * GROUPS:
        return sample
    order = rng.permutation(len(sample))
    return np.add.reduceat(sample[order], np.linspace(0, len(sample), GROUPS, endpoint=False).astype(np.int64), axis=0)


def _resampled(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Totals of REPLICATES samples of as many sessions, drawn with replacement: (replicates, columns)."""
    n = len(sample)
    block = max(_BLOCK // n, 1)
    counts = (
        rng.multinomial(n, np.full(n, 1 / n), size=min(block, REPLICATES - start))
        for start in range(0, REPLICATES, block)
    )
    return np.concatenate([drawn @ sample for drawn in counts])


def _expanded(sizes: np.ndarray) -> float:
    """How many standard deviations of a bootstrap reach as far as Student's t of the sessions' degrees of freedom.

    A bootstrap of m sessions is too narrow by sqrt((m - 1) / m) and knows no t. Where few sessions are most of the
    sum, fewer count: Satterthwaite's degrees of freedom, as in 00_intervals.sql, to first order.
    """
    squares, fourths = float((sizes**2).sum()), float((sizes**4).sum())
    freedom = max(squares**2 / fourths - 1, 1.0) if fourths > 0 else 1.0
    n = len(sizes)
    return student(freedom) * math.sqrt(n / (n - 1))


def student(freedom: float) -> float:
    """97.5 % quantile of Student's t, by the polynomial of 00_intervals.sql: off by less than 2e-5 of it."""
    u = 1 / freedom
    return 1.959963984540054 * math.exp(u * (1.21009 + u * (0.708389 + u * (0.16596 - u * (0.315678 - u * 0.100416)))))
