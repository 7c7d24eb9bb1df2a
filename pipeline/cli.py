"""The `specreplay` command: the groups of commands put together, and how a command ends."""

import os
import signal
import sys
from pathlib import Path

import typer

from pipeline.commands import answers, imports, looks, runs, traces, upkeep
from schemas.errors import EnvironmentProblem, SpecreplayError

app = typer.Typer(
    name="specreplay",
    help="Which speculative-decoding proposer pays off on your traffic? Coverage apart from acceptance.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (traces, runs, imports, answers, looks, upkeep):
    app.add_typer(group.app)


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


if __name__ == "__main__":
    main()
