"""Care of a warehouse: fsck, gc, export."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands import DEFAULT_WAREHOUSE, JsonOption, WarehouseOption, print_json

app = typer.Typer()


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
        print_json(found.as_dict())
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
        print_json({"removed": yes, "items": as_dict(gone), "in_use": busy})
    else:
        for item in gone:
            print(item)
        said = "removed" if yes else "would be removed (--yes removes them)"
        size = sum(item.bytes for item in gone)
        print(f"{len(gone)} item{'s' * (len(gone) != 1)}, {size:,} bytes {said}", file=sys.stderr)
    if busy:
        raise LockedError(f"{len(busy)} item{'s' * (len(busy) != 1)} stay: {busy[0]}")


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
        print_json({"dest": str(made.dest), "format": made.format, "rows": made.rows})
    else:
        for name, rows in made.rows.items():
            print(f"{made.dest}: {name}, {rows:,} rows", file=sys.stderr)
