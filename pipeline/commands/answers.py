"""What the runs say: report, compare, sql, counters, dashboard; and what this machine can do: doctor."""

import os
import sys
from typing import Annotated

import typer

from pipeline.commands import DEFAULT_WAREHOUSE, JsonOption, WarehouseOption, print_json, show

app = typer.Typer()


@app.command()
def report(
    run: Annotated[str | None, typer.Argument(help="Run id; the latest if left out.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json, csv, markdown or html.")] = "table",
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    as_json: JsonOption = False,
) -> None:
    """The numbers of a run, per proposer and by workload."""
    from pipeline.warehouse import Warehouse

    show(Warehouse(warehouse), run, "json" if as_json else format_)


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
        print_json([change.as_dict() for change in changes])
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
        print_json([m.as_dict() for m in models])
        return
    for model in models:
        print(explain(model))


@app.command()
def dashboard(
    warehouse: WarehouseOption = DEFAULT_WAREHOUSE,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8501,
) -> None:
    """Open the dashboard on this warehouse."""
    # Its own process: the dashboard stands above the pipeline and is not imported from here.
    os.execv(sys.executable, [sys.executable, "-m", "dashboards.launch", str(warehouse), str(port)])


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """What is installed, which engine and runner, and what would not work here and why."""
    from dataclasses import asdict

    from pipeline.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(f) for f in findings])
        return
    for f in findings:
        print(f"{f.state:8} {f.subject:22} {f.detail}")
