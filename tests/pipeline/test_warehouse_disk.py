"""A disk with no room left: one line, nothing half-written, and the same call works once there is room."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_traces import NGRAM, config, contents, rows, table

from pipeline.run import replay
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem

FULL = r"^no space left on disk while writing .*; free some and run the same command again$"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def leave(folder: Path, room: int) -> Path:
    """Fill the disk but for `room` bytes."""
    ballast = folder / "ballast"
    ballast.unlink(missing_ok=True)
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    ballast.write_bytes(bytes(max(0, free - room)))
    return ballast


def test_a_replay_on_a_full_disk(small_disk):
    # Every page of room lets the replay get a little further before it meets the end: folder, data file, commit, done.
    full = 0
    for room in range(0, 30, 2):
        warehouse = Warehouse(small_disk / f"wh{room}")
        warehouse.write_trace("small", [table(rows(12))])
        before = contents(warehouse.root)
        ballast = leave(small_disk, room * 4096)
        try:
            replay(config({}, NGRAM), warehouse)
        except EnvironmentProblem as error:
            full += 1
            assert error.exit_code == 4
            assert "no space left on disk while writing" in str(error)
            assert "\n" not in str(error)
        assert not list(warehouse.root.rglob("*.tmp"))
        ballast.unlink()
        if not any(name.startswith("_commits/run=") for name in contents(warehouse.root)):
            assert contents(warehouse.root) == before
        replay(config({}, NGRAM), warehouse).raise_for_status()
        whole = contents(warehouse.root)
        assert "decode_steps" in {name.split("/")[0] for name in whole}
        if room == 0:
            reference = whole
        assert whole == reference
        subprocess.run(["rm", "-r", str(warehouse.root)], check=True)
    assert 3 < full < 15


def test_a_trace_on_a_full_disk(small_disk):
    warehouse = Warehouse(small_disk / "wh")
    ballast = leave(small_disk, 3 * 4096)
    with pytest.raises(EnvironmentProblem, match=FULL):
        warehouse.write_trace("small", [table(rows(500))])
    assert not list(warehouse.root.rglob("*.parquet")) + list(warehouse.root.rglob("*.tmp"))
    ballast.unlink()
    assert warehouse.write_trace("small", [table(rows(500))]).requests == 500


LIMITED = """
import resource, sys
from small_traces import rows, table
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    Warehouse(sys.argv[1]).write_trace("small", [table(rows(500))])
except EnvironmentProblem as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [1000, 10_000])
def test_a_file_size_limit_reads_the_same(tmp_path, limit):
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "wh"), str(limit)]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert said.startswith("no space left on disk while writing")
    assert said.count("\n") == 1
    assert not [p for p in (tmp_path / "wh").rglob("*") if p.suffix in (".parquet", ".tmp")]


def test_a_folder_that_cannot_be_written(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "wh").mkdir(mode=0o555)
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        Warehouse(tmp_path / "wh").write_trace("small", [table(rows(5))])
