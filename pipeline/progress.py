"""Progress bars on a terminal, one per proposer; on a pipe one line per finished proposer."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Report = Callable[[str, int, int], None]
"""(proposer, requests done, requests in all)."""


@contextmanager
def bars() -> Generator[Report]:
    """Draw what is reported while the block runs, on stderr: stdout is for data."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        tasks: dict = {}

        def report(proposer: str, done: int, total: int) -> None:
            if proposer not in tasks:
                tasks[proposer] = progress.add_task(proposer, total=total)
            progress.update(tasks[proposer], completed=done, total=total)

        yield report


def _lines() -> Report:
    finished: set[str] = set()

    def report(proposer: str, done: int, total: int) -> None:
        if done >= total and proposer not in finished:
            finished.add(proposer)
            print(f"{proposer}: {total} requests", file=sys.stderr, flush=True)

    return report
