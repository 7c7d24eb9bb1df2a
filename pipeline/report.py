"""The numbers of one run, per proposer and by workload, for people and for programs.

Every number comes from a view; nothing is computed here. Knows how numbers are written down, not what they are made of.
"""

import csv
import html
import io
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pipeline.heatmap import heat_map
from pipeline.output import plain
from pipeline.views import Connection, query
from schemas.errors import InputError

FORMATS = ("table", "json", "csv", "markdown", "html")

MISLEADING = 1.5
"""Warn where mean acceptance length is at least this many times tokens per step."""

IMPLAUSIBLE = 1.15
"""Warn where the speed against none is more than this many times tokens per step: a step that verifies candidates costs
at least a plain one, so the two were not measured under equal load."""

FEW_SESSIONS = 30
"""Mark intervals that rest on fewer effective sessions: simulated, they hold the truth less often than they say."""

_NAMED = 8
"""So many proposers are listed behind what holds for all of them."""

_NOTES = 12
"""Notes that the terminal shows; a grid can have one per proposer."""

_DEFINITIONS = (
    "coverage = R / S, decode steps that proposed anything; acceptance rate = C / D; mean acceptance length = "
    "1 + C / R over those steps; tokens per step = E / S, misses included: what a user gets, and what ranks."
)


@dataclass(frozen=True)
class Report:
    """One run: its `run_info`, then rows of `proposer_summary` (with cost and settings) and `workload_summary`, best
    first."""

    run: str
    info: dict[str, Any]
    proposers: list[dict[str, Any]]
    workloads: list[dict[str, Any]]
    warnings: list[str]
    labels: list[str]
    """What the counts are, exact or proxy, and why: one line for all proposers of which the same holds."""


def report(con: Connection, run: str | None = None) -> Report:
    """Read a run from the views.

    Args:
        con: from `pipeline.views.connect`.
        run: its id; None = the one started last.

    Raises:
        InputError: no such run (lists those there are), or no run at all.
    """
    columns = "run, trace, trace_fingerprint, engine, runner, status, reconciled, label, versions, started, ended"
    runs = query(con, f"SELECT {columns} FROM run_info ORDER BY started NULLS FIRST, run").to_pylist()
    if not runs:
        raise InputError("the warehouse holds no run yet: replay a trace first (specreplay replay CONFIG)")
    found = [info for info in runs if run is None or info["run"] == run]
    if not found:
        raise InputError(f"no run {run!r}; there are: {', '.join(info['run'] for info in runs[-10:])}")
    info = found[-1]
    proposers = query(
        con,
        "SELECT proposer_summary.*, speedup_over_none, us_per_emitted_token, draft_s, verify_s, step_s, "
        "kv_cache_tokens, max_concurrency, "
        "method, num_speculative_tokens, prompt_lookup_min, prompt_lookup_max, label, reason, history, trees, "
        "warm_requests, cached_requests, cached_tokens, tree_nodes, tree_bytes, evictions, bytes_per_cached_token "
        "FROM proposer_summary LEFT JOIN cost_summary USING (run, proposer, concurrency) "
        "LEFT JOIN proposer_settings USING (run, proposer) WHERE run = ? "
        "ORDER BY tokens_per_step DESC NULLS LAST, proposer",
        [info["run"]],
    ).to_pylist()
    workloads = query(
        con,
        "SELECT * FROM workload_summary WHERE run = ? ORDER BY workload, tokens_per_step DESC NULLS LAST, proposer",
        [info["run"]],
    ).to_pylist()
    warnings = run_warnings(info) + proposer_warnings(proposers)
    return Report(info["run"], info, proposers, workloads, warnings, labels(proposers))


def render(report: Report, format_: str = "table", width: int | None = None) -> str:
    """The report as text.

    table is for a terminal of 100 columns and more (in colour on one); json is one line; csv has a row per proposer and
    per proposer and workload; html is one page that needs nothing else. Undefined is n/a, null in JSON, empty in CSV.

    Args:
        report: what `report` read.
        format_: table, json, csv, markdown or html.
        width: columns of the table; None = the terminal's, at most 120.

    Raises:
        InputError: unknown format.
    """
    writers: dict[str, Callable[[Report], str]] = {"json": _json, "csv": _csv, "markdown": _markdown, "html": _html}
    if format_ == "table":
        return _terminal(report, width or min(max(shutil.get_terminal_size((110, 40)).columns, 80), 120))
    if format_ not in writers:
        raise InputError(f"--format {format_!r}: choose one of {', '.join(FORMATS)}")
    return writers[format_](report)


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
    """Where a number alone would mislead, one line each; `rows` are of proposer_summary, with speedup_over_none."""
    out = []
    for row in rows:
        name, length, tokens = row["proposer"], row["mean_acceptance_length"], row["tokens_per_step"]
        if length is not None and tokens is not None and length >= MISLEADING * tokens:
            out.append(
                f"{name}: a mean acceptance length of {length:.1f} sits on {_percent(row['coverage'])} of the steps; "
                f"with the misses it is {tokens:.2f} tokens per step"
            )
        if row["equal_outputs"] is not None and row["equal_outputs"] < 1:
            out.append(
                f"{name}: {_percent(row['equal_outputs'])} of {row['equal_outputs_n']:,} outputs equal those of none; "
                "its counts are over its own outputs"
            )
        speed = row["speedup_over_none"]
        if speed is not None and tokens is not None and speed > IMPLAUSIBLE * tokens:
            out.append(
                f"{name}: {_speed(speed)} the speed of none is more than its {tokens:.2f} tokens per step can explain; "
                "the machine was busy with something else, measure again"
            )
    return out


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
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


def _speed(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"


_COUNTS = [(name, name, _count) for name in ("requests", "steps", "rounds", "drafted", "accepted")]
_RATES = [
    ("coverage", "coverage", _percent),
    ("acceptance_rate", "acceptance rate", _percent),
    ("mean_acceptance_length", "mean acceptance length", _number),
    ("tokens_per_step", "tokens per step", _number),
]
_PROPOSER = [("proposer", "proposer", str), *_COUNTS, *_RATES, ("speedup_over_none", "speed against none", _speed)]
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
        ((f"{name}_low", f"{name}_high"), title, _percent_ends if write is _percent else _number_ends)
        for name, title, write in _RATES
    ],
]
_SECTIONS = (
    ("Per proposer, all requests pooled", "proposers", _PROPOSER),
    (
        f"95 % intervals of these, over sessions (few: rough, under {FEW_SESSIONS} sessions or a few long ones rule)",
        "proposers",
        _INTERVALS,
    ),
    ("By workload, pooled", "workloads", _WORKLOAD),
    ("Mean of the requests' own numbers, over the n requests where each is defined", "proposers", _PER_REQUEST),
)


_TREES_TITLE = "Suffix trees of earlier outputs, as they ended"
_TREES: list["_Column"] = [
    ("proposer", "proposer", str),
    *(
        (name, name.replace("_", " "), _count)
        for name in "trees warm_requests cached_requests cached_tokens evictions tree_nodes tree_bytes".split()
    ),
    ("bytes_per_cached_token", "bytes per cached token", _number),
]


_Column = tuple[str | tuple[str, ...], str, Callable[..., str]]
"""What is written, under which title, and how."""


_LONGEST = 160
"""Characters of a name that a table shows, on several lines if need be; JSON and CSV hold all."""

_NAME = 24
"""A word of a name longer than this is broken, not the width of the table."""

_HEAT_MAPS = (("tokens_per_step", "tokens per step", _number), ("coverage", "coverage", _percent))


def _sections(report: Report) -> list[tuple[str, list[dict], Sequence[_Column]]]:
    """Title, rows and columns of each table."""
    tables: list[tuple] = [(title, getattr(report, name), columns) for title, name, columns in _SECTIONS]
    trees = [row for row in report.proposers if row["trees"] is not None]
    return [*tables, (_TREES_TITLE, trees, _TREES)] if trees else tables


def _cells(row: dict, columns: Sequence[_Column], longest: int = _LONGEST) -> list[str]:
    return [
        plain(write(row[names]) if isinstance(names, str) else write(*(row[name] for name in names)), longest)
        for names, _, write in columns
    ]


def _headline(report: Report) -> str:
    info = report.info
    parts = [f"trace {info['trace']}", info["label"], f"runner {info['runner']}", info["status"]]
    if info["reconciled"]:
        parts.append("reconciled with the engine's counters")
    return f"run {report.run} · " + " · ".join(str(part) for part in parts if part)


def _terminal(report: Report, width: int) -> str:
    sections = _sections(report)
    tables = [_table(rows, columns) for _, rows, columns in sections]
    out = io.StringIO()
    # without a height, rich takes every TERM=dumb for 80 columns, whatever the width says
    console = Console(
        file=out, width=width, height=25, force_terminal=sys.stdout.isatty(), highlight=False, markup=False
    )
    wide = console.options.update(width=10_000)
    # a number is never cut off: a table that needs more than the terminal has is drawn wider; a name takes more lines
    least = [_table(rows, columns, _NAME) for _, rows, columns in sections]
    console.width = max(width, *(console.measure(table, options=wide).minimum for table in least))
    parts: list[Any] = [Text(_headline(report), style="bold")]
    for (title, _, _), table in zip(sections, tables, strict=True):
        parts += [Text(), Text(title, style="bold cyan"), table]
    for name, title, write in _HEAT_MAPS:
        if (table := heat_map(report.proposers, name, write)) is not None:
            parts += [Text(), Text(f"N-gram lookups: {title}, by window and candidates", style="bold cyan"), table]
    if not report.proposers:
        parts.append(Text("nothing is committed yet"))
    parts += [Text(), Text(_DEFINITIONS, style="dim")]
    parts += [Text(line) for line in report.labels]
    parts += [Text(f"note: {warning}", style="yellow") for warning in report.warnings[:_NOTES]]
    if (more := len(report.warnings) - _NOTES) > 0:
        parts.append(Text(f"and {more} notes more, all of them in --format json", style="yellow"))
    console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _table(rows: Sequence[dict], columns: Sequence[_Column], longest: int = _LONGEST) -> Table:
    table = Table(box=None, header_style="dim")
    table.pad_edge, table.padding = False, (0, 1, 0, 0)
    height = max(header.count(" ") for _, header, write in columns if write is not str)
    for _, header, write in columns:
        if write is str:
            table.add_column("\n" * height + header, overflow="fold", min_width=8)
        else:
            above = "\n" * (height - header.count(" "))
            table.add_column(above + header.replace(" ", "\n"), justify="right", no_wrap=True)
    before = None
    for row in rows:
        cells = _cells(row, columns, longest)
        if columns is _WORKLOAD:  # name a workload once, on its best proposer's row
            before, cells[0] = row["workload"], "" if row["workload"] == before else cells[0]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _json(report: Report) -> str:
    return json.dumps(asdict(report), default=str) + "\n"


def _csv(report: Report) -> str:
    rows = [{"workload": None, **row} for row in report.proposers] + report.workloads
    names = ["run", "proposer", "workload"]
    names += [name for row in rows[:1] for name in row if name not in names]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")  # None is written as nothing
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _markdown(report: Report) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"**{_headline(report)}**", ""]
    for title, rows, columns in _sections(report):
        rule = ["---" if write is str else "---:" for _, _, write in columns]
        lines += [f"### {title}", "", line([header for _, header, _ in columns]), line(rule)]
        lines += [line(_cells(row, columns)) for row in rows] + [""]
    lines += [_DEFINITIONS, ""] + [f"- {text}" for text in report.labels] + [""] * bool(report.labels)
    lines += [f"> {warning}" for warning in report.warnings]
    return "\n".join(lines).rstrip() + "\n"


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2430; margin: 2.5rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem }
caption { text-align: left; font-weight: 600; padding: .4rem 0 }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #e3e6ec; text-align: right; font-variant-numeric: tabular-nums }
th { color: #5b6475; font-weight: 500; vertical-align: bottom } .text { text-align: left } .note { color: #8a5a00 }
"""


def _html(report: Report) -> str:
    def cells(tag: str, texts: Sequence[str], columns: Sequence[tuple]) -> str:
        marks = [' class="text"' if write is str else "" for _, _, write in columns]
        made = (f"<{tag}{mark}>{html.escape(text)}</{tag}>" for mark, text in zip(marks, texts, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    head = html.escape(_headline(report))
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{head}</title><style>{_STYLE}</style>"]
    parts.append(f"<h1>specreplay</h1><p>{head}</p>")
    parts += [f'<p class="note">{html.escape(warning)}</p>' for warning in report.warnings]
    for title, rows, columns in _sections(report):
        parts.append(f"<table><caption>{html.escape(title)}</caption>")
        parts.append(cells("th", [header for _, header, _ in columns], columns))
        parts += [cells("td", _cells(row, columns), columns) for row in rows]
        parts.append("</table>")
    parts += [f"<p>{html.escape(text)}</p>" for text in report.labels]
    parts.append(f"<p>{html.escape(_DEFINITIONS)}</p></html>")
    return "\n".join(parts) + "\n"
