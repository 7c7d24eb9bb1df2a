"""Counts that another tool logged in, a run out: import."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands import DEFAULT_WAREHOUSE, JsonOption, WarehouseOption, show

app = typer.Typer()


@app.command("import")
def import_(
    sources: Annotated[
        list[Path], typer.Argument(help="Files or folders: Spec-Bench answers, or vLLM responses with metrics.")
    ],
    name: Annotated[str, typer.Option(help="Name of the run.")],
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Make a run of counts that another tool logged, to set it beside yours; what they do not say stays n/a.

    Example: specreplay import model_answer/ --name published
    """
    from pipeline.imports.run import import_counts
    from pipeline.output import plain
    from pipeline.warehouse import Warehouse

    house = Warehouse(warehouse)
    made = import_counts(sources, house, name)
    for proposer, requests in made.requests.items():
        there = " (was there)" if made.already_done else ""
        print(f"run {name}: {requests:,} requests of {plain(proposer, 60)}{there}", file=sys.stderr)
    show(house, name, "json" if as_json else "table")
