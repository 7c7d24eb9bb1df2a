"""The commands of `specreplay`, grouped by what they are for, and the options that they share.

Thin: a command imports what it needs when it runs, so that `--help` is quick. A group is a Typer app that
`pipeline.cli` adds.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

WarehouseOption = Annotated[
    Path,
    typer.Option("--warehouse", envvar="SPECREPLAY_WAREHOUSE", help="Folder of the warehouse, or s3://bucket/prefix."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ConfigArgument = Annotated[Path, typer.Argument(help="Replay config (TOML).")]
DEFAULT_WAREHOUSE = Path("warehouse")


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, default=str))


def show(house: Any, run: str | None, format_: str) -> None:
    """Print the report of a run; the latest if None."""
    from pipeline.report import render, report
    from pipeline.views import connect

    print(render(report(connect(house), run), format_), end="")
