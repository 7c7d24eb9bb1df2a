"""How each number is written and what it means: one definition per column, shown wherever the column is."""

import re
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import streamlit as st

from pipeline.output import plain

HELP = {
    "proposer": "Free name from the config; speed and rank are per proposer.",
    "workload": "Kind of request, as the trace names it.",
    "requests": "Request outputs replayed with this proposer.",
    "sessions": "Sessions the requests belong to; a request without one is its own. Intervals resample sessions.",
    "effective_sessions": "Sessions of one length that would say as much about the spread: far fewer than there are "
    "where a few long ones rule.",
    "steps": "S: engine iterations in which a sequence put out at least one token, minus the first (prefill's).",
    "rounds": "R: decode steps with at least one proposed candidate.",
    "drafted": "D: candidates scheduled for verification, filler left out.",
    "accepted": "C: candidates that verification accepted, filler left out.",
    "coverage": "R / S: share of decode steps that proposed anything.",
    "acceptance_rate": "C / D: share of the candidates that were accepted. Blind to steps that proposed nothing.",
    "mean_acceptance_length": "1 + C / R: tokens per round, the correction or bonus token included. "
    "Blind to steps that proposed nothing.",
    "tokens_per_step": "E / S: tokens really put out per decode step, misses included. What a user gets.",
    "speedup_over_none": "none's microseconds per emitted token / this one's, (draft + verify time) over iterations "
    "without prefill. Live runs only, all requests.",
    "us_per_emitted_token": "(draft + verify time) / tokens put out, over iterations without prefill. "
    "Live runs only, all requests.",
    "prefix_cache_hit_tokens": "Prompt tokens whose KV was reused: prefill saved, no part of a token's cost. "
    "Live runs only, all requests.",
    "equal_outputs": "Share of requests whose output ids equal those of none.",
    "position": "Position within a draft, from 1.",
    "drafted_at": "Rounds that proposed at least this many candidates.",
    "reached": "Rounds that proposed at least this many and accepted all the ones before.",
    "accepted_at": "Rounds that accepted at least this many candidates.",
    "unconditional": "accepted_at / rounds: how often do all of the first i go through?",
    "conditional": "accepted_at / reached: if the ones before passed, does this one pass?",
    "attempted": "accepted_at / drafted_at: the same as unconditional, over the rounds that proposed that far.",
}

_PERCENT = {"coverage", "acceptance_rate", "equal_outputs", "unconditional", "conditional", "attempted"}
_TITLES = {
    "speedup_over_none": "speed against none",
    "us_per_emitted_token": "µs per token",
    "prefix_cache_hit_tokens": "prompt tokens reused",
    "equal_outputs": "same output",
}
RATIOS = "tokens_per_step coverage acceptance_rate mean_acceptance_length".split()
COUNTS = "requests steps rounds drafted accepted".split()


def title(column: str) -> str:
    """The column's name as a person reads it."""
    return _TITLES.get(column, column.replace("_", " "))


def literal(name: str) -> str:
    """A name for places that read Markdown: drawn as it is spelled."""
    return re.sub(r"([\\`*_{}\[\]()#+.!|~<>$:-])", r"\\\1", name)


def written(column: str, value: float | None) -> str:
    """One value as text; n/a where undefined."""
    if value is None:
        return "n/a"
    if column in _PERCENT:
        return f"{value:.1%}"
    if column == "effective_sessions":
        return f"{value:.0f}"
    if column == "speedup_over_none":
        return f"{value:.2f}x"
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def table(rows: pa.Table, columns: list[str], key: str) -> None:
    """Draw rows with every column's definition as its tooltip; columns without any value are left out."""
    there = [name for name in columns if rows.num_rows == 0 or rows[name].null_count < rows.num_rows]
    _draw(rows.select(there), {name: (name, title(name), HELP[name]) for name in there}, key)


def per_request(rows: pa.Table, key: str) -> None:
    """Draw the means of the requests' own numbers, each beside the number of requests where it is defined."""
    columns = {"proposer": ("proposer", "proposer", HELP["proposer"])}
    for name in RATIOS:
        mean = f"Mean of the requests' own {title(name)}, over the requests where it is defined. {HELP[name]}"
        columns[f"{name}_mean"] = (name, title(name), mean)
        columns[f"{name}_n"] = ("requests", "n", f"Requests in which {title(name)} is defined.")
    _draw(rows.select(list(columns)), columns, key)


def intervals(rows: pa.Table, key: str) -> None:
    """Draw the 95 % interval of each pooled ratio, and how many sessions it rests on."""
    columns = {
        "proposer": ("proposer", "proposer", HELP["proposer"]),
        "sessions": ("sessions", "sessions", HELP["sessions"]),
        "effective_sessions": ("effective_sessions", "effective", HELP["effective_sessions"]),
    }
    for name in RATIOS:
        help_ = f"95 % interval of {title(name)} over sessions drawn like these. {HELP[name]}"
        columns[f"{name}_low"] = (name, f"{title(name)} from", help_)
        columns[f"{name}_high"] = (name, "to", help_)
    _draw(rows.select(list(columns)), columns, key)


def _draw(rows: pa.Table, columns: dict[str, tuple[str, str, str]], key: str) -> None:
    """Draw rows; `columns` gives for each what it is written like, its title and its tooltip."""
    frame = rows.to_pandas(types_mapper=_NULLABLE.get)
    style = frame.style.format({name: partial(_cell, like) for name, (like, _, _) in columns.items()})
    config = {
        name: (st.column_config.TextColumn if like in _NAMES else st.column_config.NumberColumn)(
            label, help=help_, pinned=like in _NAMES, width=_width(frame[name]) if like in _NAMES else None
        )
        for name, (like, label, help_) in columns.items()
    }
    st.dataframe(style, "stretch", "content", column_config=config, hide_index=True, placeholder="n/a", key=key)


_NAMES = ("proposer", "workload")
_NULLABLE = {pa.int64(): pd.Int64Dtype()}  # counts stay whole numbers beside an undefined one


_LONGEST = 44
"""Characters of a name that a cell shows: the middle of a longer one is left out, for names differ at both ends."""


def _width(names: pd.Series) -> int:
    """Pixels in which the longest of the names is drawn whole, as far as `_LONGEST` goes."""
    longest = max((len(str(name)) for name in names), default=0)
    return max(150, 8 * min(longest, _LONGEST))


def _cell(like: str, value: Any) -> str:
    return plain(str(value), _LONGEST) if like in _NAMES else written(like, None if pd.isna(value) else value)
