"""The `specreplay` command: thin; every command imports what it needs when it runs, so that `--help` is quick."""

import json
import os
import signal
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.errors import EnvironmentProblem, SpecreplayError

app = typer.Typer(
    name="specreplay",
    help="Which speculative-decoding proposer pays off on your traffic? Coverage apart from acceptance.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

WarehouseOption = Annotated[
    Path,
    typer.Option("--warehouse", envvar="SPECREPLAY_WAREHOUSE", help="Folder of the warehouse, or s3://bucket/prefix."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ConfigArgument = Annotated[Path, typer.Argument(help="Replay config (TOML).")]
DEFAULT_WAREHOUSE = Path("warehouse")


def main() -> None:
    """Run a command; an error the user can mend is one line on stderr and an exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: what would be said there is lost, the work is not
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the way out ends the workers
    try:
        try:
            app(standalone_mode=True)
        finally:
            sys.stdout.flush()
    except SpecreplayError as error:
        from pipeline.output import plain

        print(f"specreplay: {plain(str(error))}", file=sys.stderr)  # a log's names and a library's words stay one line
        sys.exit(error.exit_code)
    except OSError as error:
        # mostly stdout on a full disk or into a closed pipe; what is still in its buffer must not be tried again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        where = f": {error.filename}" if error.filename else ""
        print(f"specreplay: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(EnvironmentProblem.exit_code)


def _print_json(data: Any) -> None:
    print(json.dumps(data, default=str))


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
        _print_json(report.as_dict())
    else:
        for line in summary(trace, report):
            print(line, file=sys.stderr)
    report.raise_for_status()


trace_app = typer.Typer(help="Look at the traces of a warehouse.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")
TraceArgument = Annotated[str, typer.Argument(help="Name of the trace.")]


@trace_app.command("list")
def trace_list(warehouse: WarehouseOption = DEFAULT_WAREHOUSE, as_json: JsonOption = False) -> None:
    """The traces there are."""
    from pipeline.output import print_table
    from pipeline.trace_show import traces
    from pipeline.warehouse import Warehouse

    found = traces(Warehouse(warehouse))
    if as_json:
        _print_json(found)
    elif found:
        print_table(found[0], found)
    else:
        print("no traces yet: specreplay ingest makes one", file=sys.stderr)


@trace_app.command("show")
def trace_show(
    name: TraceArgument, warehouse: WarehouseOption = DEFAULT_WAREHOUSE, as_json: JsonOption = False
) -> None:
    """Counts, lengths and repetition per workload: what share of the output could be copied, and from where."""
    from pipeline.trace_show import render, show
    from pipeline.warehouse import Warehouse

    shown = show(Warehouse(warehouse), name)
    if as_json:
        _print_json(shown)
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


@app.command()
def plan(config: ConfigArgument, warehouse: WarehouseOption = DEFAULT_WAREHOUSE, as_json: JsonOption = False) -> None:
    """Say what a replay would run, without running it."""
    from pipeline.plan import plan as make_plan
    from pipeline.warehouse import Warehouse
    from schemas.config import load

    planned = make_plan(load(config), Warehouse(warehouse))
    if as_json:
        _print_json(planned.as_dict())
        return
    from pipeline.output import print_table

    units = planned.as_dict()["units"]
    print_table(units[0], units)


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
    from pipeline.progress import bars
    from pipeline.run import replay as run_replay
    from pipeline.warehouse import Warehouse
    from schemas.config import load

    house = Warehouse(warehouse)
    with bars() as progress:
        outcome = run_replay(load(config), house, again=again, progress=progress)
    _show(house, outcome.run, "json" if as_json else "table")
    outcome.raise_for_status()


def _show(house: Any, run: str | None, format_: str) -> None:
    from pipeline.report import render, report
    from pipeline.views import connect

    print(render(report(connect(house), run), format_), end="")


@app.command()
def report(
    run: Annotated[str | None, typer.Argument(help="Run id; the latest if left out.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json, csv, markdown or html.")] = "table",
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """The numbers of a run, per proposer and by workload."""
    from pipeline.warehouse import Warehouse

    _show(Warehouse(warehouse), run, "json" if as_json else format_)


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="RUN", help="Run id.")],
    after: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Another run; left out, compare the proposers of the first.")
    ] = None,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """What changed in tokens per step, how much of it is coverage and how much acceptance, and whether it is noise.

    Example: specreplay compare demo-recorded-3df98b6b68 demo-recorded-77aa01c9e2
    """
    from pipeline.compare import compare as run_compare
    from pipeline.compare import lines, notes
    from pipeline.output import print_table
    from pipeline.views import connect
    from pipeline.warehouse import Warehouse

    changes = run_compare(connect(Warehouse(warehouse)), before, after)
    if as_json:
        _print_json([change.as_dict() for change in changes])
        return
    rows = lines(changes)
    print_table(rows[0], rows)
    for note in notes(changes):
        print(f"note: {note}", file=sys.stderr)


@app.command()
def sql(
    statement: Annotated[str | None, typer.Argument(help="A SELECT over the views.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json, csv or parquet.")] = "table",
    shell: Annotated[bool, typer.Option("--shell", help="Read statements from a prompt.")] = False,
    init: Annotated[
        bool, typer.Option("--init", help="Print statements that give a plain duckdb the same views.")
    ] = False,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
) -> None:
    """SQL over the committed files, read-only.

    Example: specreplay sql "SELECT proposer, coverage, acceptance_rate FROM proposer_summary"
    """
    from pipeline.sql_command import run_sql
    from pipeline.warehouse import Warehouse

    run_sql(Warehouse(warehouse), statement, format_, shell=shell, init=init)


@app.command()
def counters(
    source: Annotated[str, typer.Argument(metavar="FILE-or-URL", help="A vLLM server's /metrics: file or URL.")],
    as_json: JsonOption = False,
) -> None:
    """Coverage and tokens per step from a production server's counters, before recording a single trace.

    Example: specreplay counters http://127.0.0.1:8000/metrics
    """
    from pipeline.counters import explain, read

    models = read(source)
    if as_json:
        _print_json([m.as_dict() for m in models])
        return
    for model in models:
        print(explain(model))


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
        outcome = run_nightly(load(config), house, when, progress=progress)
    _show(house, outcome.run, "json" if as_json else "table")
    outcome.raise_for_status()


@app.command()
def dashboard(
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8501,
) -> None:
    """Open the dashboard on this warehouse."""
    # Its own process: the dashboard stands above the pipeline and is not imported from here.
    os.execv(sys.executable, [sys.executable, "-m", "dashboards.launch", str(warehouse), str(port)])


@app.command()
def fsck(
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended.")] = False,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Check every committed file against its commit object; name what is torn, replaced, missing or left over.

    Exit code 4 as long as something is wrong.
    """
    from pipeline.fsck import fsck as run_fsck
    from pipeline.warehouse import Warehouse

    found = run_fsck(Warehouse(warehouse), repair)
    if as_json:
        _print_json(found.as_dict())
    else:
        for finding in found.findings:
            print(finding)
        for name in found.in_use:
            print(f"{name} is in use: not searched for leftovers", file=sys.stderr)
        size = f"{found.files} committed files, {found.bytes:,} bytes"
        mended = len(found.findings) - len(found.left)
        print(f"{size}: {len(found.findings)} problems, {mended} mended", file=sys.stderr)
    found.raise_for_status()


@app.command()
def gc(
    keep_days: Annotated[int | None, typer.Option(help="Finished runs that ended more days ago go.")] = None,
    run: Annotated[list[str] | None, typer.Option(help="This run goes; may repeat.")] = None,
    trace: Annotated[list[str] | None, typer.Option(help="This trace goes, with its rejects; may repeat.")] = None,
    rejects: Annotated[list[str] | None, typer.Option(help="The rejects of this trace go; may repeat.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only say what would go.")] = False,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Say which runs would go and how many bytes that frees; with --yes, remove them.

    Example: specreplay gc --keep-days 90
    """
    from pipeline.gc import as_dict, choose, remove
    from pipeline.warehouse import Warehouse
    from schemas.errors import LockedError

    house = Warehouse(warehouse)
    items = choose(house, keep_days=keep_days, runs=run or [], traces=trace or [], rejects=rejects or [])
    gone, busy = remove(house, items) if yes else (items, [])
    if as_json:
        _print_json({"removed": yes, "items": as_dict(gone), "in_use": busy})
    else:
        for item in gone:
            print(item)
        said = "removed" if yes else "would be removed (--yes removes them)"
        print(f"{len(gone)} items, {sum(item.bytes for item in gone):,} bytes {said}", file=sys.stderr)
    if busy:
        raise LockedError(f"{len(busy)} items stay: {busy[0]}")


@app.command()
def export(
    dest: Annotated[Path, typer.Argument(help="File that ends in .parquet, .csv or .duckdb.")],
    table: Annotated[list[str] | None, typer.Option(help="Run table, as committed; may repeat (.duckdb).")] = None,
    view: Annotated[list[str] | None, typer.Option(help="SQL view; may repeat (.duckdb).")] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="parquet, csv, duckdb or delta (a folder); by the ending if left out."),
    ] = None,
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """Write views or tables to one file; a .duckdb file gets every view unless told otherwise.

    Example: specreplay export requests.parquet --view request_summary
    """
    from pipeline.export import export as run_export
    from pipeline.warehouse import Warehouse

    made = run_export(Warehouse(warehouse), dest, tables=table or [], views=view or [], format_=format_)
    if as_json:
        _print_json({"dest": str(made.dest), "format": made.format, "rows": made.rows})
    else:
        for name, rows in made.rows.items():
            print(f"{made.dest}: {name}, {rows:,} rows", file=sys.stderr)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """What is installed, which engine and runner, and what would not work here and why."""
    from dataclasses import asdict

    from pipeline.doctor import examine

    findings = examine()
    if as_json:
        _print_json([asdict(f) for f in findings])
        return
    for f in findings:
        print(f"{f.state:8} {f.subject:22} {f.detail}")


if __name__ == "__main__":
    main()
