"""What a reader of a run's numbers must know besides: what the counts are, and where a number alone would mislead.

Reads rows of the views; computes nothing. Used by the report and by the dashboard.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.report_tables import as_percent, as_speed, concurrencies

MISLEADING = 1.5
"""Warn where mean acceptance length is at least this many times tokens per step."""

IMPLAUSIBLE = 1.15
"""Warn where the speed against none is more than this many times tokens per step: a step that verifies candidates costs
at least a plain one, so the two were not measured under equal load."""

_NAMED = 8
"""So many proposers are listed behind what holds for all of them."""


def labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the counts are and why, a line for each reason.

    >>> labels([{"proposer": p, "label": "proxy", "reason": f"no tails; rule {p}"} for p in ("a", "b")])
    ['proxy: no tails (all)', 'proxy: rule a (a)', 'proxy: rule b (b)']

    Args:
        rows: with proposer, label and reason ("; " between reasons; view proposer_settings).
    """
    alike: dict[str, list[str]] = {}
    for row in rows:
        for reason in (row["reason"] or "").split("; "):
            if reason:
                alike.setdefault(f"{row['label']}: {reason}", []).append(row["proposer"])

    def listed(names: list[str]) -> str:
        if len(names) == len(rows):
            return "all"
        return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} and {len(names) - 1} more"

    return [f"{line} ({listed(names)})" for line, names in alike.items()]


def run_warnings(info: dict[str, Any]) -> list[str]:
    """What a reader must know of a whole run, one line each; `info` is a row of run_info."""
    out = []
    if info["status"] != "complete":
        out.append(f"this run is {info['status']}: the numbers cover what is committed so far")
    if info["reconciled"] is False:
        out.append("the step log does not add up to the engine's own counters: do not trust these numbers")
    return out


def proposer_warnings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where a number alone would mislead, one line each; `rows` are of proposer_summary, with cost and latency."""
    out = []
    several = len(concurrencies(rows)) > 1
    for row in rows:
        name, length, tokens = row["proposer"], row["mean_acceptance_length"], row["tokens_per_step"]
        name += f" at concurrency {row['concurrency']}" if several else ""
        if length is not None and tokens is not None and length >= MISLEADING * tokens:
            out.append(
                f"{name}: a mean acceptance length of {length:.1f} sits on {as_percent(row['coverage'])} of the steps; "
                f"with the misses it is {tokens:.2f} tokens per step"
            )
        if row["equal_outputs"] is not None and row["equal_outputs"] < 1:
            out.append(
                f"{name}: {as_percent(row['equal_outputs'])} of {row['equal_outputs_n']:,} outputs equal those of "
                f"none{_gap(row['largest_gap'])}; its counts are over its own outputs"
            )
        speed = row["speedup_over_none"]
        if speed is not None and tokens is not None and speed > IMPLAUSIBLE * tokens:
            out.append(
                f"{name}: {as_speed(speed)} the speed of none is more than its {tokens:.2f} tokens per step can "
                "explain; the machine was busy with something else, measure again"
            )
        lag = row["dispatch_lag_us_p95"]
        if lag is not None and lag > row["longest_iteration_us"]:
            out.append(
                f"{name}: one request in twenty was sent {lag / 1000:,.0f} ms or more after it was due, longer than "
                "any engine iteration: the replay could not keep up, and its times to the first token are too long"
            )
    if (most := max((row["engines_at_once"] or 1 for row in rows), default=1)) > 1:
        out.append(
            f"{most} engines ran side by side: times hold what they took from each other (memory, cores, disk); "
            "compare them with runs under the same load"
        )
    return out


def _gap(largest: float | None) -> str:
    return (
        ""
        if largest is None
        else (
            f", the tokens where they part lie up to {largest:.2g} apart in log-probability (a near-tie is numerics, "
            "far apart is a fault)"
        )
    )
