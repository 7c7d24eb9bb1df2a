"""Rows to Altair charts, pure: no query, no Streamlit, no number that a view did not count.

Fields are the views' own column names, and names of proposers and workloads are values, never fields: dots, brackets
and colons in them mean nothing to Vega.
"""

from collections.abc import Sequence
from typing import Literal

import altair as alt
import pyarrow as pa

_PALETTE = "#2457a8 #d1570b #1a8a5a #a53c8b #8a6d00 #0f8ea6 #c22f3f #5b4bc4 #6a7b16 #7a4a2b".split()
_SHAPES = "circle square triangle-up diamond cross triangle-down triangle-left triangle-right".split()
_LEVELS = (1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30)
_INK, _FAINT = "#3a4254", "#8b93a5"


def coverage_chart(rows: pa.Table, proposers: Sequence[str]) -> alt.LayerChart | alt.FacetChart:
    """Coverage against mean acceptance length, a point per proposer and workload, curves of equal tokens per step.

    Along a curve coverage × (mean acceptance length − 1) is the same: E/S = 1 + that, up to tokens cut off at the end.
    Rows whose mean acceptance length or coverage is NULL have no point.

    Args:
        rows: of group_summary, a workload each.
        proposers: all proposers of the run, so that a colour means the same under every filter.
    """
    shown = [r for r in rows.to_pylist() if r["mean_acceptance_length"] is not None and r["coverage"] is not None]
    top = max([2.0, *(row["mean_acceptance_length"] for row in shown)]) * 1.06
    workloads = sorted({row["workload"] for row in shown})
    x, y = _axes(top)
    chosen = alt.selection_point(fields=["proposer"], bind="legend", name="chosen")
    many = len(workloads) > len(_SHAPES)
    points = (
        alt.Chart(_data(shown), mark=alt.MarkDef("point", filled=True, size=110, stroke="white", strokeWidth=0.8))
        .encode(
            x=x,
            y=y,
            color=_colour("proposer", proposers),
            shape=alt.value("circle")
            if many
            else alt.Shape(
                "workload:N",
                title="workload",
                scale=alt.Scale(domain=workloads, range=_SHAPES[: len(workloads)]),
                legend=alt.Legend(orient="right", symbolFillColor=_FAINT, symbolStrokeWidth=0, labelLimit=220),
            ),
            opacity=alt.condition(chosen, alt.value(0.95), alt.value(0.12)),
            tooltip=_tooltip(),
        )
        .add_params(chosen)
    )
    return alt.layer(*_level_curves(top, x, y), points).properties(height=470)


def _axes(top: float) -> tuple[alt.X, alt.Y]:
    x = alt.X(
        "coverage:Q",
        title="coverage  (rounds / steps)",
        scale=alt.Scale(domain=[0, 1.04], nice=False),  # room for points at 100 %
        axis=alt.Axis(format=".0%", values=[0, 0.2, 0.4, 0.6, 0.8, 1], grid=False),
    )
    y = alt.Y(
        "mean_acceptance_length:Q",
        title="mean acceptance length  (1 + accepted / rounds)",
        scale=alt.Scale(domain=[1, top], nice=False, zero=False),
        axis=alt.Axis(tickCount=6),
    )
    return x, y


def _level_curves(top: float, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Hyperbolas of equal tokens per step under `top`, each named at its right end."""
    levels = [level for level in _LEVELS if level < top]
    end = 1.04
    curves = [
        {"level": level, "coverage": at, "mean_acceptance_length": 1 + (level - 1) / at}
        for level in levels
        for at in _geometric((level - 1) / (top - 1), end)
    ]
    ends = [
        {"coverage": end, "mean_acceptance_length": 1 + (level - 1) / end, "text": f"{level:g}"} for level in levels
    ]
    lines = alt.Chart(
        _data(curves), mark=alt.MarkDef("line", color="#c6ccd8", strokeWidth=1, strokeDash=[4, 3])
    ).encode(x=x, y=y, detail="level:N")
    names = alt.Chart(_data(ends), mark=alt.MarkDef("text", align="left", dx=5, color=_FAINT, fontSize=11)).encode(
        x=x, y=y, text="text:N"
    )
    corner = [{"coverage": end, "mean_acceptance_length": top, "text": "tokens per step"}]
    title = alt.Chart(
        _data(corner), mark=alt.MarkDef("text", align="right", dx=26, dy=-9, color=_FAINT, fontSize=11)
    ).encode(x=x, y=y, text="text:N")
    return [lines, names, title]


def _geometric(low: float, high: float, count: int = 80) -> list[float]:
    """From low to high in equal ratios: dense where a hyperbola is steep."""
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]


def position_chart(rows: pa.Table, rate: str, by: str, names: Sequence[str]) -> alt.Chart:
    """One per-position rate as curves. A position where the rate is undefined leaves a gap.

    Args:
        rows: of position_summary or proposer_positions.
        rate: unconditional, conditional or attempted.
        by: column that tells the curves apart, proposer or workload.
        names: all values of it in the run, so that a colour means the same under every filter.
    """
    count = {"unconditional": "rounds", "conditional": "reached", "attempted": "drafted_at"}[rate]
    shown = [{**row, "series": row[by]} for row in rows.to_pylist()]
    last = max((row["position"] for row in shown), default=1)
    points = alt.OverlayMarkDef(filled=True, size=45, opacity=1)
    chart = alt.Chart(_data(shown), mark=alt.MarkDef("line", strokeWidth=2, point=points))
    return chart.properties(height=330 + 18 * len(names)).encode(
        x=alt.X(
            "position:Q",
            title="position in the draft",
            scale=alt.Scale(domain=[1, max(last, 2)], nice=False, padding=8),
            axis=alt.Axis(format="d", values=_ticks(last), grid=False),
        ),
        y=alt.Y(f"{rate}:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%", tickCount=5)),
        color=_colour("series", names, orient="bottom"),
        tooltip=[
            alt.Tooltip("series:N", title=by),
            alt.Tooltip("position:Q", title="position"),
            alt.Tooltip(f"{rate}:Q", title=rate, format=".1%"),
            alt.Tooltip("accepted_at:Q", title="accepted at least this many", format=","),
            alt.Tooltip(f"{count}:Q", title=f"of {_COUNT_TITLES[count]}", format=","),
        ],
    )


_COUNT_TITLES = {
    "rounds": "rounds",
    "reached": "rounds that came this far",
    "drafted_at": "rounds that proposed this far",
}


def sweep_chart(rows: pa.Table, number: str) -> alt.LayerChart | alt.FacetChart:
    """A heat map of one number: a row per window, a column per number of candidates; n/a where it is undefined.

    Args:
        rows: of group_summary with proposer_settings, an n-gram lookup each.
        number: coverage, acceptance_rate, mean_acceptance_length or tokens_per_step.
    """
    form = ".1%" if number in ("coverage", "acceptance_rate") else ".2f"
    windows = sorted({_window(row) for row in rows.to_pylist()})
    values = [float(row[number]) for row in rows.to_pylist() if row[number] is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    shown = [
        {
            **row,
            "window": _WINDOW.format(*_window(row)),
            "written": "n/a" if row[number] is None else format(row[number], form),
            "dark": row[number] is not None and row[number] > low + 0.6 * (high - low),
        }
        for row in rows.to_pylist()
    ]
    x = alt.X("num_speculative_tokens:O", title="candidates per round, at most (k)", axis=alt.Axis(labelAngle=0))
    y = alt.Y("window:N", title="window, in tokens", sort=[_WINDOW.format(*window) for window in windows])
    colour = alt.Color(
        f"{number}:Q",
        title=None,
        scale=alt.Scale(scheme="blues", domain=[low, high if high > low else low + 1]),
        legend=alt.Legend(format=form, gradientLength=180),
    )
    tooltip = [alt.Tooltip("window:N"), alt.Tooltip("num_speculative_tokens:Q", title="k"), *_tooltip()]
    cells = alt.Chart(_data(shown), mark=alt.MarkDef("rect", stroke="white", strokeWidth=1))
    names = alt.Chart(_data(shown), mark=alt.MarkDef("text", fontSize=11))
    ink = alt.condition("datum.dark", alt.value("white"), alt.value(_INK))
    return alt.layer(
        cells.encode(x=x, y=y, color=colour, tooltip=tooltip),
        names.encode(x=x, y=y, text="written:N", color=ink, tooltip=tooltip),
    ).properties(height=alt.Step(26))


_WINDOW = "{} to {}"


def _window(row: dict) -> tuple[int, int]:
    return row["prompt_lookup_min"], row["prompt_lookup_max"]


def miss_chart(rows: pa.Table) -> alt.Chart:
    """Share of decode steps that proposed nothing, by reason, a bar per workload and proposer.

    Args:
        rows: of miss_reasons.
    """
    shown = [
        {**row, "miss_reason": row["miss_reason"] or "(not told)", "bar": f"{row['workload']} · {row['proposer']}"}
        for row in rows.to_pylist()
    ]
    return (
        alt.Chart(_data(shown), mark=alt.MarkDef("bar"))
        .encode(
            x=alt.X(
                "share:Q", title="share of decode steps", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1])
            ),
            y=alt.Y("bar:N", title=None, sort=None, axis=alt.Axis(labelLimit=320)),
            color=alt.Color(
                "miss_reason:N",
                title="nothing proposed because",
                scale=alt.Scale(range=_PALETTE),
                legend=alt.Legend(orient="bottom"),
            ),
            tooltip=[
                alt.Tooltip("proposer:N"),
                alt.Tooltip("workload:N"),
                alt.Tooltip("miss_reason:N", title="reason"),
                alt.Tooltip("steps:Q", title="decode steps", format=","),
                alt.Tooltip("share:Q", title="share of decode steps", format=".1%"),
            ],
        )
        .properties(height=alt.Step(20))
    )


def _data(rows: list[dict]) -> alt.InlineData:
    return alt.InlineData(values=rows)


def _colour(field: str, names: Sequence[str], orient: Literal["right", "bottom"] = "right") -> alt.Color:
    domain = list(names)
    colours = [_FAINT if name == "none" else _PALETTE[i % len(_PALETTE)] for i, name in enumerate(domain)]
    columns = 2 if orient == "bottom" and max(map(len, domain), default=0) < 16 else 1
    legend = alt.Legend(orient=orient, labelLimit=260, columns=columns, symbolStrokeWidth=0)
    return alt.Color(
        f"{field}:N",
        title=None if orient == "bottom" else field,
        scale=alt.Scale(domain=domain, range=colours),
        legend=legend,
    )


def _tooltip() -> list[alt.Tooltip]:
    counts = ("requests", "steps", "rounds", "drafted", "accepted", "emitted")
    return [
        alt.Tooltip("proposer:N"),
        alt.Tooltip("workload:N"),
        alt.Tooltip("coverage:Q", title="coverage = rounds / steps", format=".1%"),
        alt.Tooltip("acceptance_rate:Q", title="acceptance rate = accepted / drafted", format=".1%"),
        alt.Tooltip("mean_acceptance_length:Q", title="mean acceptance length = 1 + accepted / rounds", format=".2f"),
        alt.Tooltip("tokens_per_step:Q", title="tokens per step = emitted / steps", format=".2f"),
        *(alt.Tooltip(f"tokens_per_step_{end}:Q", title=f"95 % {end}", format=".2f") for end in ("low", "high")),
        alt.Tooltip("sessions:Q", format=","),
        alt.Tooltip("effective_sessions:Q", title="effective sessions", format=".0f"),
        *(alt.Tooltip(f"{name}:Q", format=",") for name in counts),
    ]


def _ticks(last: int) -> list[int]:
    return list(range(1, last + 1, max(1, last // 12)))
