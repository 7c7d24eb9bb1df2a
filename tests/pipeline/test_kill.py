"""Killed at any moment and run again, a replay ends as if it had not been killed. See kill_driver.py."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")


@pytest.fixture
def folder():
    """In memory where that is possible: a kill does not test fsync, and hundreds of trials would wait for the disk."""
    path = Path(tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    yield path
    shutil.rmtree(path)


def drive(*arguments: object) -> dict:
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(HERE / "kill_driver.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(900)
def test_before_and_after_every_write_sync_rename_and_commit(folder):
    kills = drive("operations", folder)
    for kind in ("write", "fsync", "replace", "put"):
        assert kills[f"before {kind}"] == kills[f"after {kind}"] > 0
    # 4 shards and the plan are created only if absent; done.json and every data file are renamed into place
    assert kills["before put"] == 5
    assert kills["before replace"] == kills["before write"] == kills["half write"] == kills["data files"] + 1


@pytest.mark.timeout(900)
def test_at_twenty_random_moments(folder):
    assert drive("moments", folder, 20, 2026)["killed"] == 20
