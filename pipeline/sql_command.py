"""`specreplay sql`: one statement, or a prompt, over the views of a warehouse."""

import sys

from pipeline.output import write
from pipeline.views import connect, init_sql, query
from pipeline.warehouse import Warehouse
from schemas.errors import InputError


def run_sql(warehouse: Warehouse, statement: str | None, format_: str, *, shell: bool, init: bool) -> None:
    """Answer a statement, print the views' definitions, or read statements until the end of input.

    Raises:
        InputError: nothing to do, or the statement is wrong.
    """
    if init:
        print(init_sql(warehouse), end="")
        return
    if statement is None and not shell:
        raise InputError('give a statement (specreplay sql "SELECT * FROM proposer_summary"), or --shell, or --init')
    connection = connect(warehouse)
    if statement is not None:
        write(query(connection, statement), format_)
    if shell:
        _prompt(connection, format_)


def _prompt(connection, format_: str) -> None:
    asked = sys.stdin.isatty()
    if asked:
        print("views: SELECT view_name FROM duckdb_views() WHERE NOT internal; end with ; and Ctrl-D", file=sys.stderr)
    text = ""
    while True:
        try:
            line = input("sql> " if asked and not text else "  -> " if asked else "")
        except KeyboardInterrupt:
            return
        except EOFError:
            if text.strip():  # the last statement needs no semicolon
                _answer(connection, text, format_)
            return
        text += line + "\n"
        if not line.rstrip().endswith(";"):
            continue
        _answer(connection, text, format_)
        text = ""


def _answer(connection, text: str, format_: str) -> None:
    try:
        write(query(connection, text), format_)
    except InputError as error:
        print(error, file=sys.stderr)
