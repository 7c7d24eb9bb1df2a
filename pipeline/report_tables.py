"""Which tables a report has: rows, columns, and how a number is written for people.

Latency and capacity are two questions. Where a run has several concurrencies, the lowest answers the first and the
highest the second; the tables of counts name the concurrency of each row. Knows no file format.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.output import plain

FEW_SESSIONS = 30
"""Mark intervals that rest on fewer effective sessions: simulated, they hold the truth less often than they say."""

Column = tuple[str | tuple[str, ...], str, Callable[..., str]]
"""What is written, under which title, and how."""

Section = tuple[str, list[dict[str, Any]], Sequence[Column]]
"""Title, rows and columns of a table."""

LONGEST = 160
"""Characters of a name that a table shows, on several lines if need be; JSON and CSV hold all."""


def as_percent(value: float | None) -> str:
    """A share; n/a where it is undefined."""
    return "n/a" if value is None else f"{value:.1%}"


def as_number(value: float | None) -> str:
    """A number to two places; n/a where it is undefined."""
    return "n/a" if value is None else f"{value:.2f}"


def _count(value: int | None) -> str:
    return "n/a" if value is None else f"{value:,}"


def few_sessions(row: dict[str, Any]) -> bool:
    """Whether the intervals of a summary's row rest on few sessions; `effective_sessions` NULL = on less than 2."""
    effective = row["effective_sessions"]
    return effective is None or effective < FEW_SESSIONS


def _sessions(value: int, effective: float | None) -> str:
    return _count(value) + (" few" if few_sessions({"effective_sessions": effective}) else "")


def _percent_ends(low: float | None, high: float | None) -> str:
    return "n/a" if low is None or high is None else f"{100 * low:.1f}–{high:.1%}"


def _number_ends(low: float | None, high: float | None) -> str:
    return "n/a" if low is None or high is None else f"{low:.2f}–{high:.2f}"


def as_speed(value: float | None) -> str:
    """A factor; n/a where it is undefined."""
    return "n/a" if value is None else f"{value:.2f}x"


def _milliseconds(us: float | None) -> str:
    return "n/a" if us is None else f"{us / 1000:,.1f}"


def _whole(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"


def _gap(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"


_COUNTS = [(name, name, _count) for name in ("requests", "steps", "rounds", "drafted", "accepted")]
_RATES = [
    ("coverage", "coverage", as_percent),
    ("acceptance_rate", "acceptance rate", as_percent),
    ("mean_acceptance_length", "mean acceptance length", as_number),
    ("tokens_per_step", "tokens per step", as_number),
]
_PROPOSER = [("proposer", "proposer", str), *_COUNTS, *_RATES, ("speedup_over_none", "speed against none", as_speed)]
_WORKLOAD = [("workload", "workload", str), ("proposer", "proposer", str), *_COUNTS, *_RATES]
_PER_REQUEST = [
    ("proposer", "proposer", str),
    *[
        column
        for name, title, write in _RATES
        for column in ((f"{name}_mean", title, write), (f"{name}_n", "n", _count))
    ],
]
_INTERVALS = [
    ("proposer", "proposer", str),
    (("sessions", "effective_sessions"), "sessions", _sessions),
    *[
        ((f"{name}_low", f"{name}_high"), title, _percent_ends if write is as_percent else _number_ends)
        for name, title, write in _RATES
    ],
]
_TREES_TITLE = "Suffix trees of earlier outputs, as they ended"
_TREES: list[Column] = [
    ("proposer", "proposer", str),
    *(
        (name, name.replace("_", " "), _count)
        for name in "trees warm_requests cached_requests cached_tokens evictions tree_nodes tree_bytes".split()
    ),
    ("bytes_per_cached_token", "bytes per cached token", as_number),
]
_COST: list[Column] = [
    ("proposer", "proposer", str),
    ("us_per_emitted_token", "µs per token", _whole),
    ("step_us_per_emitted_token", "with engine overhead", _whole),
    ("draft_share", "share drafting", as_percent),
    ("verify_share", "share verifying", as_percent),
    ("speedup_over_none", "speed against none", as_speed),
]
_REUSED: Column = ("prefix_cache_hit_tokens", "prompt tokens reused", _count)
"""Shown where there are any: prefill saved, no part of a token's cost."""
_LATENCY: list[Column] = [
    ("proposer", "proposer", str),
    *(
        (f"{name}_us_{quantile}", f"{title} {quantile}", _milliseconds)
        for name, title in (
            ("first_token", "first token"),
            ("per_output_token", "per further token"),
            ("finished", "whole request"),
        )
        for quantile in ("p50", "p95")
    ),
]
_CAPACITY: list[Column] = [
    ("proposer", "proposer", str),
    ("tokens_per_s", "tokens per second", as_number),
    ("kv_cache_tokens", "KV cache tokens", _count),
    ("max_concurrency", "full requests that fit", as_number),
]
_OUTPUTS: list[Column] = [
    ("proposer", "proposer", str),
    ("compared", "outputs compared", _count),
    ("equal", "equal to none's", _count),
    ("equal_outputs", "share equal", as_percent),
    ("first_position", "first part at token", _count),
    ("median_gap", "median gap", _gap),
    ("largest_gap", "largest gap", _gap),
]
_AT: Column = ("concurrency", "concurrency", str)


def concurrencies(rows: Sequence[dict[str, Any]]) -> list[int]:
    """The concurrencies among rows of proposer_summary, ascending."""
    return sorted({row["concurrency"] for row in rows})


def sections(proposers: list[dict[str, Any]], workloads: list[dict[str, Any]], pace: str | None) -> list[Section]:
    """The tables of a report, in order.

    Args:
        proposers: rows of proposer_summary with cost_summary, latency_summary, output_equality and proposer_settings.
        workloads: rows of workload_summary.
        pace: "closed" or "arrival"; None for a run without an engine.
    """
    at = [_AT] if len(concurrencies(proposers)) > 1 else []
    few = f"few: rough, under {FEW_SESSIONS} sessions or a few long ones rule"
    out: list[Section] = [
        ("Per proposer, all requests pooled", proposers, _with(_PROPOSER, at)),
        (f"95 % intervals of these, over sessions ({few})", proposers, _with(_INTERVALS, at)),
        ("By workload, pooled", workloads, _with(_WORKLOAD, at)),
        (
            "Mean of the requests' own numbers, over the n requests where each is defined",
            proposers,
            _with(_PER_REQUEST, at),
        ),
    ]
    if timed := [row for row in proposers if row["step_s"] is not None]:
        low, high = min(concurrencies(timed)), max(concurrencies(timed))
        reused = [_REUSED] if any(row["prefix_cache_hit_tokens"] for row in timed) else []
        arriving = ", requests as they arrived" if pace == "arrival" else ""
        capacity = "Throughput" if arriving else "Capacity"  # arrivals set the rate, not the engine
        out += [
            ("Cost of a token, over iterations without prefill", timed, [*_with(_COST, at), *reused]),
            (f"Latency: concurrency {low}{arriving}, in ms since a request was due", _only(timed, low), _LATENCY),
            (f"{capacity}: concurrency {high}{arriving}", _only(timed, high), _CAPACITY),
        ]
    if compared := [row for row in proposers if row["compared"] is not None]:
        title = "Greedy outputs against those of none; gap: log-probability between the tokens where they part"
        out.append((title, compared, _with(_OUTPUTS, at)))
    trees = [row for row in proposers if row["trees"] is not None]
    return [*out, (_TREES_TITLE, trees, _TREES)] if trees else out


def _with(columns: Sequence[Column], more: Sequence[Column]) -> list[Column]:
    """More columns, behind the proposer's."""
    at = 1 + [name for name, _, _ in columns].index("proposer")
    return [*columns[:at], *more, *columns[at:]]


def _only(rows: list[dict[str, Any]], concurrency: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["concurrency"] == concurrency]


def written(row: dict[str, Any], columns: Sequence[Column], longest: int = LONGEST) -> list[str]:
    """A row's texts, one line each; a name is shown up to `longest` characters."""
    return [
        plain(write(row[names]) if isinstance(names, str) else write(*(row[name] for name in names)), longest)
        for names, _, write in columns
    ]
