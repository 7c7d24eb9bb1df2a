"""Starts the dashboard's server on this machine only."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from schemas.errors import EnvironmentProblem


def launch(warehouse_root: str | Path, port: int = 8501) -> None:
    """Serve the dashboard of a warehouse on 127.0.0.1 until it is interrupted.

    Raises:
        EnvironmentProblem: the port is in use, or the server ended by itself.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            raise EnvironmentProblem(f"port {port} on 127.0.0.1 cannot be used; give another with --port") from None
    print(f"specreplay dashboard: http://127.0.0.1:{port} (Ctrl-C ends it)", file=sys.stderr)
    server = subprocess.Popen(command(port), env=environment(warehouse_root))
    try:
        code = server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        return
    if code:
        raise EnvironmentProblem(f"the dashboard's server ended with code {code}")


def command(port: int) -> list[str]:
    """The server's command line; its settings lie in `.streamlit/config.toml` beside the app."""
    app = Path(__file__).with_name("app.py")
    return [sys.executable, "-m", "streamlit", "run", str(app), "--server.port", str(port)]


def environment(warehouse_root: str | Path) -> dict[str, str]:
    """The server's environment: ours, and where the warehouse is."""
    return os.environ | {"SPECREPLAY_WAREHOUSE": str(Path(warehouse_root).expanduser().absolute())}
