"""A real server and a real headless Chromium that may talk to this machine only."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))  # logged_runs

from dashboards.launch import command, environment

CHROMIUM = os.environ.get("SPECREPLAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-default-apps --disable-dev-shm-usage"
).split()


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def serve():
    """Start a server on a warehouse; returns its address. All are ended at the end of the module."""
    servers = []

    def start(root) -> str:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        servers.append(
            subprocess.Popen(command(port), env=environment(root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            assert servers[-1].poll() is None, "the server ended by itself"
            try:
                with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5) as answer:
                    if answer.read() == b"ok":
                        return address
            except OSError:
                pass
            time.sleep(0.1)
        raise AssertionError("the server did not come up")

    yield start
    for server in servers:
        server.terminate()
        server.wait(30)


@pytest.fixture
def page(browser):
    """A page that is refused, and remembers in `outside`, whatever lies outside this machine."""
    context = browser.new_context(viewport={"width": 1440, "height": 1080})
    page = context.new_page()
    page.outside = []

    def check(route):
        if route.request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            route.continue_()
        else:
            page.outside.append(route.request.url)
            route.abort()

    page.route("**/*", check)
    page.set_default_timeout(60_000)
    yield page
    context.close()
