"""The preflight of a config over a trace: read the selection, examine it, show what was found. Starts no engine."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.output import plain
from pipeline.plan import Plan, plan
from pipeline.warehouse import Warehouse
from replay.preflight.examine import examine
from replay.preflight.findings import Finding, error, merged
from replay.preflight.ledger import size
from replay.requests import Requests
from schemas.config import ReplayConfig

_COLUMNS = "request_id prompt_token_ids output_token_ids tail_token_ids output_tokens sampling".split()
_MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "refusal": ("STOP", "bold red")}
_WIDTH = 100
"""Of the tables where stdout is no terminal."""

Warn = Callable[[Finding], None]
"""Told each warning once."""


def preflight(config: ReplayConfig, warehouse: Warehouse, *, device_memory: int | None = None) -> list[Finding]:
    """Examine a config before it runs.

    Args:
        config: of a live or a recorded replay.
        warehouse: holds the trace.
        device_memory: bytes of the device to plan for; None = this machine's GPU, if there is one.

    Raises:
        InputError: the config or the trace cannot be planned at all.
        EnvironmentProblem: the process that asks vLLM failed.
    """
    return of_plan(plan(config, warehouse), warehouse, device_memory=device_memory)


def of_plan(planned: Plan, warehouse: Warehouse, *, device_memory: int | None = None) -> list[Finding]:
    """The same for a plan that is made already."""
    rows = np.unique(np.concatenate([unit.rows for unit in planned.units]))
    requests = Requests.from_table(warehouse.read_trace(planned.trace.name, _COLUMNS, rows))
    return examine(requests, planned.config, device_memory=device_memory)


def before_replay(planned: Plan, warehouse: Warehouse, warn: Warn) -> list[dict[str, Any]]:
    """The preflight of a live replay: its refusals end it, its warnings are told and returned for plan.json.

    Raises:
        InputError, EnvironmentProblem: a refusal; names the first and counts the others.
    """
    findings = of_plan(planned, warehouse)
    if (refused := error(findings)) is not None:
        raise refused
    warnings = [finding for finding in findings if finding.level == "warning"]
    for finding in warnings:
        warn(finding)
    return [finding.as_dict() for finding in warnings]


def say(finding: Finding) -> None:
    """A warning as one line on stderr."""
    print(f"warning: {plain(finding.line)}", file=sys.stderr, flush=True)


def show(planned: Plan, findings: Sequence[Finding]) -> None:
    """Print the findings for people, and under them the memory ledger."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False)
    kind = "live" if planned.live else "recorded"
    console.print(f"preflight · trace {planned.trace.name} · {kind} · {planned.requests:,} requests\n")
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding, names in merged(findings):
        word, style = _MARKS[finding.level]
        who = f"{', '.join(plain(name, 40) for name in names)}: " if names else ""
        said = Text(who, style="bold")
        said.append(plain(finding.found), style="not bold")
        table.add_row(Text(word, style=style), finding.check, said)
        if finding.remedy:
            table.add_row("", "", Text(f"→ {plain(finding.remedy)}", style="dim" if finding.level == "ok" else ""))
    console.print(table)
    _ledger(console, findings)
    console.print("\n" + ", ".join(_count(findings, level) for level in ("refusal", "warning")))


def _count(findings: Sequence[Finding], level: str) -> str:
    number = sum(finding.level == level for finding in findings)
    return f"{number} {level}" + ("" if number == 1 else "s")


def _ledger(console: Console, findings: Sequence[Finding]) -> None:
    known = [f for f in findings if f.check == "memory" and f.figures.get("kv_bytes_per_token")]
    if not known:
        return
    each = next((f.figures["devices"] for f in known if f.figures.get("devices", 1) > 1), None)
    console.print(f"\nmemory{f', on each of {each} devices' if each else ''}", style="bold")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    names = ("\nweights", "KV\na token", "\ncache", "cache\ntokens")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    fitting = next((f.figures for f in known if f.figures.get("fits")), None)
    for name in fitting["fits"] if fitting else ():
        table.add_column(f"{name}\n{fitting['lengths'][name]:,}" if fitting else "", justify="right", no_wrap=True)
    for finding in known:
        f = finding.figures
        cells = [
            size(sum(f["weights"].values())),
            size(sum(f["kv_bytes_per_token"].values())),
            size(f["kv_cache_bytes"]) if "kv_cache_bytes" in f else "n/a",
            f"{f['kv_cache_tokens']:,}" if "kv_cache_tokens" in f else "n/a",
        ]
        cells += [f"{n:,}" for n in f.get("fits", {}).values()]
        table.add_row(plain(finding.proposer or "none", 24), *cells)
    console.print(table)
    if fitting:
        console.print(
            "right: how many requests of the trace's mean, median, 95 % and longest length fit at once", style="dim"
        )


def exit_code(findings: Sequence[Finding]) -> int:
    """0 without refusals, 2 if the config or the trace is to blame for one, 4 if the machine alone is."""
    refused = error(findings)
    return 0 if refused is None else refused.exit_code
