"""A trace in, a run out: plan, replay, nightly."""

from datetime import date
from typing import Annotated

import typer

from pipeline.commands import DEFAULT_WAREHOUSE, ConfigArgument, JsonOption, WarehouseOption, print_json, show

app = typer.Typer()


@app.command()
def plan(config: ConfigArgument, warehouse: WarehouseOption = DEFAULT_WAREHOUSE, as_json: JsonOption = False) -> None:
    """Say what a replay would run, without running it."""
    from pipeline.plan import plan as make_plan
    from pipeline.warehouse import Warehouse
    from schemas.config import load

    planned = make_plan(load(config), Warehouse(warehouse))
    if as_json:
        print_json(planned.as_dict())
        return
    from pipeline.output import print_table

    units = planned.as_dict()["units"]
    print_table(units[0], units)


@app.command()
def preflight(
    config: ConfigArgument,
    device_memory: Annotated[
        str | None, typer.Option("--device-memory", help="Plan for a device that is not here, for example 80GiB.")
    ] = None,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Check a config before it runs: vocabularies, templates, lengths, settings, and what fits into memory.

    Also done before every live replay. Exit code 2 if the config or the trace cannot work, 4 if this machine cannot.

    Example: specreplay preflight examples/configs/live.toml --device-memory 80GiB
    """
    from pipeline.plan import plan as make_plan
    from pipeline.preflight import exit_code, of_plan
    from pipeline.preflight import show as show_findings
    from pipeline.warehouse import Warehouse
    from replay.preflight.ledger import parse_size
    from schemas.config import load

    memory = None if device_memory is None else parse_size(device_memory)
    house = Warehouse(warehouse)
    planned = make_plan(load(config), house)
    findings = of_plan(planned, house, device_memory=memory)
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    else:
        show_findings(planned, findings)
    if code := exit_code(findings):
        raise typer.Exit(code)


@app.command()
def replay(
    config: ConfigArgument,
    again: Annotated[bool, typer.Option("--again", help="Measure once more although it is done (live).")] = False,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Replay a trace with every proposer of the config; the same command again resumes what is unfinished.

    Example: specreplay replay examples/configs/recorded.toml
    """
    from pipeline.preflight import say
    from pipeline.progress import bars
    from pipeline.run import replay as run_replay
    from pipeline.warehouse import Warehouse
    from schemas.config import load

    house = Warehouse(warehouse)
    with bars() as progress:
        outcome = run_replay(load(config), house, again=again, progress=progress, warn=say)
    show(house, outcome.run, "json" if as_json else "table")
    outcome.raise_for_status()


@app.command()
def nightly(
    config: ConfigArgument,
    day: Annotated[str, typer.Option("--date", help="The day to replay, YYYY-MM-DD (UTC, by arrival).")],
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Replay one day's part of a trace; run it again and nothing happens twice.

    Example: specreplay nightly examples/configs/recorded.toml --date 2026-11-24
    """
    from pipeline.nightly import nightly as run_nightly
    from pipeline.preflight import say
    from pipeline.progress import bars
    from pipeline.warehouse import Warehouse
    from schemas.config import load
    from schemas.errors import InputError

    try:
        when = date.fromisoformat(day)
    except ValueError:
        raise InputError(f"--date {day!r} is no day; write it as 2026-11-24") from None
    house = Warehouse(warehouse)
    with bars() as progress:
        outcome = run_nightly(load(config), house, when, progress=progress, warn=say)
    show(house, outcome.run, "json" if as_json else "table")
    outcome.raise_for_status()
