"""A close look at one request: steps."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands import DEFAULT_WAREHOUSE, JsonOption, WarehouseOption, print_json

app = typer.Typer()


@app.command()
def steps(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    request: Annotated[str, typer.Argument(help="Id of the request, as in the trace.")],
    proposer: Annotated[str | None, typer.Option(help="Name of the proposer, if the run has several.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Sequences at once, if the run has several.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this decode step, from 1.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the target's tokenizer; shows candidates and output as text too.")
    ] = None,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Every decode step of one request: what was proposed, what was accepted, and why nothing was.

    Candidates are not stored; they are found again from the ids and checked against the log.

    Example: specreplay steps demo-recorded-3df98b6b68 request-7 --proposer "ngram 2-4 k5"
    """
    from pipeline.output import print_table
    from pipeline.steps_show import steps as look
    from pipeline.warehouse import Warehouse

    shown = look(
        Warehouse(warehouse),
        run,
        request,
        proposer=proposer,
        concurrency=concurrency,
        step=step,
        tokenizer=tokenizer,
    )
    if as_json:
        print_json({"steps": shown.rows, "notes": shown.notes})
        return
    rows = [
        row | {"candidates": None if row["candidates"] is None else " ".join(map(str, row["candidates"]))}
        for row in shown.rows
    ]
    print_table(rows[0] if rows else (), rows)
    for note in shown.notes:
        print(note, file=sys.stderr)
