"""Engine processes do not outlive who wanted them, and run where they are told."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from replay.live import launch
from replay.live.process import _why, check_devices, cores
from replay.requests import Requests
from schemas.errors import EnvironmentProblem, InputError

HERE = Path(__file__).parent

ALONE = """
import live_material as material
from replay.live.launch import run_live
none = material.proposer({"method": "none"})
run_live(material.requests([[1, 2]], [4]), material.engine(1), none, max_model_len=None)
"""

IN_A_POOL = """
from pathlib import Path
import live_material as material
import numpy as np
from pipeline.executor import run_jobs
from pipeline.plan import Unit
from pipeline.units import Job
from replay.live.launch import run_live
from schemas.config import ReplayConfig

NONE = material.proposer({"method": "none"})

def work(job, progress):
    asked = material.requests([[1, 2]], [4])
    run_live(asked, material.engine(1), NONE, max_model_len=None, device=job.device)

if __name__ == "__main__":
    rows = np.zeros(1, np.int64)
    jobs = [Job("", "run", "trace", ReplayConfig(), Unit(str(i), NONE, rows, rows, 0, 0)) for i in range(2)]
    nothing = lambda *said: None
    run_jobs(jobs, work, 2, devices=DEVICES, done=nothing, failed=nothing, progress=nothing)
"""


def engines(parent: psutil.Process) -> list[psutil.Process]:
    """Engine processes below a process."""
    found = []
    for process in parent.children(recursive=True):
        try:
            found += [process] if "replay.live.child" in process.cmdline() else []
        except psutil.NoSuchProcess:
            continue
    return found


def _gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.live
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize(("script", "count"), [(ALONE, 1), (IN_A_POOL, 2)], ids=["alone", "in a pool"])
def test_engines_end_with_the_replay(script, count, end, tmp_path):
    """Ended as soon as the engines' processes are there, be they at their imports, or further on."""
    devices = [str(core) for core in sorted(os.sched_getaffinity(0))[:2]]
    (tmp_path / "script.py").write_text(f"DEVICES = {devices!r}\n{script}")
    path = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "script.py")]
    parent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        while len(started := engines(psutil.Process(parent.pid))) < count:
            assert parent.poll() is None
            time.sleep(0.01)
        time.sleep(0.3 if end == signal.SIGKILL else 0)  # before or after it could ask the kernel to be ended with us
    finally:
        parent.send_signal(end)
        parent.wait()
    while not all(map(_gone, started)):  # the test's own time limit is the limit
        time.sleep(0.02)


HOLDS = """
import sys, time
from pathlib import Path
from replay.live import launch
from replay.requests import Requests
with launch._workdir(Requests.from_lists([[1, 2]], [[3]]), [{}]) as workdir:
    print(workdir, flush=True)
    time.sleep(600)
"""


def test_prompts_of_a_killed_replay_are_removed_by_the_next(tmp_path, monkeypatch):
    """A replay that lives keeps its folder, however old; a killed one's goes, a younger one's a little later."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[2]), "TMPDIR": str(tmp_path)}
    start = [sys.executable, "-c", HOLDS]
    holders = [subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        old, young, living = folders = [Path(holder.stdout.readline().strip()) for holder in holders]
        for folder in (old, living):
            os.utime(folder, (0, 0))
        for holder in holders[:2]:
            holder.kill()
            holder.wait()
        assert all((folder / "requests.arrow").exists() for folder in folders)
        strange = {tmp_path / name for name in ("specreplay-engine-warehouse", "specreplay-engine-my_house")}
        for folder in strange:
            folder.mkdir()
            os.utime(folder, (0, 0))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with launch._workdir(Requests.from_lists([[1]], [[2]]), [{}]) as mine:
            assert {p for p in tmp_path.iterdir() if p.is_dir()} == {young, living, mine, *strange}
        assert (living / "requests.arrow").exists() and not mine.exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()


def test_devices_that_are_not_there_are_named():
    mine = sorted(os.sched_getaffinity(0))
    check_devices([])
    check_devices([str(core) for core in mine])
    for entry, part in ((f"{mine[0]},4095", "4095"), ("GPU-1", "GPU-1"), ("-1", "-1")):
        with pytest.raises(InputError, match=rf"\[run\]: devices: '{part}': this is vLLM's CPU build") as error:
            check_devices([entry])
        assert f"there are {', '.join(map(str, mine))}" in str(error.value)
    assert (cores(None), cores("0,3")) == (None, [0, 3])


@pytest.mark.live
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here is always full")
def test_a_disk_that_is_full_when_the_result_is_written_is_one_line(tmp_path, monkeypatch):
    import live_material as material

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "result.npz").symlink_to("/dev/full")
    none = material.proposer({"method": "none"})
    with material.kept(tmp_path), pytest.raises(EnvironmentProblem, match=r"the engine died: .*No space left"):
        launch.run_live(material.requests([[1, 2]], [4]), material.engine(1), none, max_model_len=64)


def test_an_error_that_a_full_disk_cut_leaves_the_last_words(tmp_path):
    (tmp_path / "error.json").write_text("")
    said = _why(tmp_path, 4, None, "OSError: [Errno 28] No space left on device")
    assert said.startswith("the engine ended with exit code 4") and said.endswith("No space left on device")
