"""Starts the dashboard's server on this machine only: `python -m dashboards.launch WAREHOUSE PORT`."""

import os
import socket
import sys
from pathlib import Path

from pipeline.output import plain
from pipeline.remote import url_of
from schemas.errors import EnvironmentProblem, SpecreplayError


def launch(warehouse_root: str | Path, port: int = 8501) -> None:
    """Become the server of a warehouse's dashboard on 127.0.0.1, until a signal ends it; does not return.

    Raises:
        EnvironmentProblem: the port is in use.
        InputError: a URL other than s3://bucket/prefix.
    """
    settings = environment(warehouse_root)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            raise EnvironmentProblem(f"port {port} on 127.0.0.1 cannot be used; give another with --port") from None
    print(f"specreplay dashboard: http://127.0.0.1:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    os.execve(sys.executable, command(port), settings)  # no child: whoever ends this process ends the server


def command(port: int) -> list[str]:
    """The server's command line; its settings lie in `.streamlit/config.toml` beside the app."""
    app = Path(__file__).with_name("app.py")
    return [sys.executable, "-m", "streamlit", "run", str(app), "--server.port", str(port)]


def environment(warehouse_root: str | Path) -> dict[str, str]:
    """The server's environment: ours, and where the warehouse is.

    Raises:
        InputError: a URL other than s3://bucket/prefix.
    """
    root = url_of(warehouse_root) or str(Path(warehouse_root).expanduser().absolute())
    return os.environ | {"SPECREPLAY_WAREHOUSE": root}


if __name__ == "__main__":
    try:
        launch(sys.argv[1], int(sys.argv[2]))
    except SpecreplayError as problem:
        print(f"specreplay: {plain(str(problem))}", file=sys.stderr)
        sys.exit(problem.exit_code)
