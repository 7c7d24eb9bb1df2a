"""The numbers of one run, per proposer and by workload, for people and for programs.

Every number comes from a view; nothing is computed here. Knows the file formats; which tables there are stands in
`report_tables`, what a reader must know besides in `report_notes`.
"""

import csv
import html
import io
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pipeline.heatmap import heat_map
from pipeline.report_notes import labels, proposer_warnings, run_warnings
from pipeline.report_tables import LONGEST, Column, as_number, as_percent, concurrencies, sections, written
from pipeline.views import Connection, query
from schemas.errors import InputError

FORMATS = ("table", "json", "csv", "markdown", "html")

_NOTES = 12
"""Notes that the terminal shows; a grid can have one per proposer."""

_DEFINITIONS = (
    "coverage = R / S, decode steps that proposed anything; acceptance rate = C / D; mean acceptance length = "
    "1 + C / R over those steps; tokens per step = E / S, misses included: what a user gets, and what ranks."
)


@dataclass(frozen=True)
class Report:
    """One run: its `run_info`, then rows of `proposer_summary` (with cost, latency and settings) and
    `workload_summary`, by concurrency, best first."""

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
    columns = (
        "run, trace, trace_fingerprint, engine, runner, status, reconciled, label, versions, started, ended, "
        "CASE WHEN engine = 'vllm' THEN coalesce(plan -> 'engine' ->> 'pace', 'closed') END AS pace, "
        "(plan -> 'engine' ->> 'speed')::double AS speed"
    )
    runs = query(con, f"SELECT {columns} FROM run_info ORDER BY started NULLS FIRST, run").to_pylist()
    if not runs:
        raise InputError("the warehouse holds no run yet: replay a trace first (specreplay replay CONFIG)")
    found = [info for info in runs if run is None or info["run"] == run]
    if not found:
        raise InputError(f"no run {run!r}; there are: {', '.join(info['run'] for info in runs[-10:])}")
    info = found[-1]
    proposers = query(
        con,
        "SELECT proposer_summary.*, cost_summary.* EXCLUDE (run, proposer, concurrency, emitted), "
        "latency_summary.* EXCLUDE (run, proposer, concurrency, requests), "
        "compared, equal, first_position, median_gap, largest_gap, "
        "method, num_speculative_tokens, prompt_lookup_min, prompt_lookup_max, label, reason, history, trees, "
        "warm_requests, cached_requests, cached_tokens, tree_nodes, tree_bytes, evictions, bytes_per_cached_token "
        "FROM proposer_summary LEFT JOIN cost_summary USING (run, proposer, concurrency) "
        "LEFT JOIN latency_summary USING (run, proposer, concurrency) "
        "LEFT JOIN output_equality USING (run, proposer, concurrency) "
        "LEFT JOIN proposer_settings USING (run, proposer) WHERE run = ? "
        "ORDER BY concurrency, tokens_per_step DESC NULLS LAST, proposer",
        [info["run"]],
    ).to_pylist()
    workloads = query(
        con,
        "SELECT * FROM workload_summary WHERE run = ? "
        "ORDER BY workload, concurrency, tokens_per_step DESC NULLS LAST, proposer",
        [info["run"]],
    ).to_pylist()
    warnings = run_warnings(info) + proposer_warnings(proposers)
    at_one = [row for row in proposers if row["concurrency"] == proposers[0]["concurrency"]]
    return Report(info["run"], info, proposers, workloads, warnings, labels(at_one))


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


_NAME = 24
"""A word of a name longer than this is broken, not the width of the table."""

_HEAT_MAPS = (("tokens_per_step", "tokens per step", as_number), ("coverage", "coverage", as_percent))


def _headline(report: Report) -> str:
    info = report.info
    parts = [info["trace"] and f"trace {info['trace']}", info["label"], info["runner"] and f"runner {info['runner']}"]
    if info["pace"] == "arrival":
        parts.append("requests as they arrived" + ("" if info["speed"] == 1 else f", {info['speed']:g} times as fast"))
    parts.append(info["status"])
    if info["reconciled"]:
        parts.append("reconciled with the engine's counters")
    return f"run {report.run} · " + " · ".join(str(part) for part in parts if part)


def _terminal(report: Report, width: int) -> str:
    shown = sections(report.proposers, report.workloads, report.info["pace"])
    tables = [_table(rows, columns) for _, rows, columns in shown]
    out = io.StringIO()
    # without a height, rich takes every TERM=dumb for 80 columns, whatever the width says
    console = Console(
        file=out, width=width, height=25, force_terminal=sys.stdout.isatty(), highlight=False, markup=False
    )
    wide = console.options.update(width=10_000)
    # a number is never cut off: a table that needs more than the terminal has is drawn wider; a name takes more lines
    least = [_table(rows, columns, _NAME) for _, rows, columns in shown]
    console.width = max(width, *(console.measure(table, options=wide).minimum for table in least))
    parts: list[Any] = [Text(_headline(report), style="bold")]
    for (title, _, _), table in zip(shown, tables, strict=True):
        parts += [Text(), Text(title, style="bold cyan"), table]
    each = concurrencies(report.proposers)
    for concurrency, (name, title, write) in product(each, _HEAT_MAPS):
        rows = [row for row in report.proposers if row["concurrency"] == concurrency]
        at = f", concurrency {concurrency}" if len(each) > 1 else ""
        if (table := heat_map(rows, name, write)) is not None:
            parts += [Text(), Text(f"N-gram lookups{at}: {title}, by window and candidates", style="bold cyan"), table]
    if not report.proposers:
        parts.append(Text("nothing is committed yet"))
    parts += [Text(), Text(_DEFINITIONS, style="dim")]
    parts += [Text(line) for line in report.labels]
    parts += [Text(f"note: {warning}", style="yellow") for warning in report.warnings[:_NOTES]]
    if (more := len(report.warnings) - _NOTES) > 0:
        parts.append(Text(f"and {more} notes more, all of them in --format json", style="yellow"))
    console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _table(rows: Sequence[dict], columns: Sequence[Column], longest: int | None = None) -> Table:
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
        cells = written(row, columns, longest or LONGEST)
        if columns[0][0] == "workload":  # name a workload once, on its best proposer's row
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
    for title, rows, columns in sections(report.proposers, report.workloads, report.info["pace"]):
        rule = ["---" if write is str else "---:" for _, _, write in columns]
        lines += [f"### {title}", "", line([header for _, header, _ in columns]), line(rule)]
        lines += [line(written(row, columns)) for row in rows] + [""]
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
    for title, rows, columns in sections(report.proposers, report.workloads, report.info["pace"]):
        parts.append(f"<table><caption>{html.escape(title)}</caption>")
        parts.append(cells("th", [header for _, header, _ in columns], columns))
        parts += [cells("td", written(row, columns), columns) for row in rows]
        parts.append("</table>")
    parts += [f"<p>{html.escape(text)}</p>" for text in report.labels]
    parts.append(f"<p>{html.escape(_DEFINITIONS)}</p></html>")
    return "\n".join(parts) + "\n"
