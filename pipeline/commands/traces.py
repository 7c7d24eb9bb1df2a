"""Logs and prompts in, traces out: ingest, capture, and a look at what is there."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands import DEFAULT_WAREHOUSE, ConfigArgument, JsonOption, WarehouseOption, print_json

app = typer.Typer()
trace_app = typer.Typer(help="Look at the traces of a warehouse.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")
TraceArgument = Annotated[str, typer.Argument(help="Name of the trace.")]


@app.command()
def ingest(
    sources: Annotated[list[Path], typer.Argument(help="Logs: files, or folders of them.")],
    trace: Annotated[str, typer.Option(help="Name of the trace.")],
    format_: Annotated[str, typer.Option("--format", help="Log format; auto = by content.")] = "auto",
    fields: Annotated[
        list[str] | None, typer.Option("--map", metavar="FIELD=PATH", help="Where a field stands in a row; may repeat.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder (or hub name) of the target's tokenizer; needed for text only.")
    ] = None,
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Keep prompt and output text beside the ids.")] = False,
    timezone: Annotated[str | None, typer.Option(help="Zone of times that have none (IANA name).")] = None,
    hash_ids: Annotated[
        str | None,
        typer.Option(
            envvar="SPECREPLAY_HASH_KEY", metavar="KEY", help="Keep request, session and tenant names as keyed hashes."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option(help="Stop at the first row that cannot be taken.")] = False,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Turn logs into a canonical trace.

    Example: specreplay ingest logs/ --trace last-week --tokenizer models/target
    """
    from pipeline.ingest.report import summary
    from pipeline.ingest.run import ingest as run_ingest
    from pipeline.warehouse import Warehouse

    report = run_ingest(
        sources,
        Warehouse(warehouse),
        trace,
        tokenizer=tokenizer,
        format_=format_,
        fields=fields or [],
        keep_text=keep_text,
        timezone=timezone,
        hash_ids=hash_ids,
        strict=strict,
    )
    if as_json:
        print_json(report.as_dict())
    else:
        for line in summary(trace, report):
            print(line, file=sys.stderr)
    report.raise_for_status()


@trace_app.command("list")
def trace_list(warehouse: WarehouseOption = DEFAULT_WAREHOUSE, as_json: JsonOption = False) -> None:
    """The traces there are."""
    from pipeline.output import print_table
    from pipeline.trace_show import traces
    from pipeline.warehouse import Warehouse

    found = traces(Warehouse(warehouse))
    if as_json:
        print_json(found)
    elif found:
        print_table(found[0], found)
    else:
        print("no traces yet: specreplay ingest makes one", file=sys.stderr)


@trace_app.command("show")
def traceshow(name: TraceArgument, warehouse: WarehouseOption = DEFAULT_WAREHOUSE, as_json: JsonOption = False) -> None:
    """Counts, lengths and repetition per workload: what share of the output could be copied, and from where."""
    from pipeline.trace_show import render, show
    from pipeline.warehouse import Warehouse

    shown = show(Warehouse(warehouse), name)
    if as_json:
        print_json(shown)
        return
    for line in render(shown):
        print(line)


@trace_app.command("sample")
def trace_sample(
    name: TraceArgument,
    sessions: Annotated[int, typer.Option(help="How many sessions, each taken whole.")] = 10,
    seed: Annotated[int, typer.Option(help="Another seed draws other sessions.")] = 0,
    into: Annotated[str | None, typer.Option(help="Make it a trace of this name instead of printing it.")] = None,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
) -> None:
    """Whole sessions drawn at random, the same for the same seed: as JSON lines that ingest reads back, or as a trace.

    Example: specreplay trace sample last-week --sessions 100 --into last-week-small
    """
    from pipeline.trace_show import print_jsonl, sample
    from pipeline.warehouse import Warehouse

    house = Warehouse(warehouse)
    rows = sample(house, name, sessions, seed)
    if into is None:
        print_jsonl(rows)
        return
    info = house.write_trace(into, [rows])
    print(f"trace {into}: {info.requests} requests of {name}", file=sys.stderr)


@app.command()
def capture(
    config: ConfigArgument,
    trace: Annotated[str, typer.Option(help="Name of the new trace.")],
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
) -> None:
    """Run the prompts through the engine without speculation; the ids it samples become a trace, with a tail.

    Example: specreplay capture examples/configs/live.toml --trace captured
    """
    from pipeline.capture import capture as run_capture
    from pipeline.progress import bars
    from pipeline.warehouse import Warehouse
    from schemas.config import load

    with bars() as progress:
        info = run_capture(load(config), Warehouse(warehouse), trace, progress=progress)
    print(f"trace {trace}: {info.requests} requests captured", file=sys.stderr)
