"""`specreplay dashboard` as a shell sees it: it serves, it ends when told to, and it says why it cannot."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from dashboards.launch import environment

ROOT = Path(__file__).parents[2]


def dashboard(*args) -> subprocess.Popen:
    command = [sys.executable, "-m", "pipeline.cli", "dashboard", *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
            return answer.read() == b"ok"
    except OSError:
        return False


def test_it_serves_until_it_is_ended(tmp_path):
    port = free_port()
    server = dashboard("--warehouse", tmp_path, "--port", port)
    try:
        for _ in range(600):
            assert server.poll() is None, server.communicate()[1]
            if answers(port):
                break
            time.sleep(0.1)
        assert answers(port)
    finally:
        server.send_signal(signal.SIGTERM)  # to the command alone: no server may outlive it
        _, said = server.communicate(timeout=60)
    assert f"specreplay dashboard: http://127.0.0.1:{port}" in said
    assert not answers(port)


def test_a_port_in_use(tmp_path):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = dashboard("--warehouse", tmp_path, "--port", port)
        _, said = refused.communicate(timeout=60)
    assert refused.returncode == 4
    assert said == f"specreplay: port {port} on 127.0.0.1 cannot be used; give another with --port\n"


def test_another_kind_of_url():
    refused = dashboard("--warehouse", "gs://bucket/prefix")
    _, said = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert "s3://bucket/prefix" in said and said.count("\n") == 1


@pytest.mark.parametrize("root", ["s3://bucket/prefix", "s3:/bucket/prefix"])  # as typed, and as a Path leaves it
def test_a_bucket_stays_a_bucket(root):
    assert environment(root)["SPECREPLAY_WAREHOUSE"] == "s3://bucket/prefix"


def test_a_folder_is_named_from_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert environment("house")["SPECREPLAY_WAREHOUSE"] == os.fspath(tmp_path / "house")
