"""Real worker processes that die, fail and report. A job's `run` says what its worker does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_traces import config

from pipeline.executor import run_jobs
from pipeline.plan import Unit
from pipeline.units import Job
from schemas.errors import EnvironmentProblem, InputError


def job(root: Path, number: int, what: str) -> Job:
    settings = config({})
    nothing = np.zeros(1, np.int64)
    return Job(str(root), what, "trace", settings, Unit(f"u{number}", settings.proposer[0], nothing, nothing, 0, 0))


def work(job: Job, progress) -> str:
    """Do what the job says; every try leaves a line."""
    notes = Path(job.root) / job.unit.shard
    with notes.open("a") as file:
        file.write(f"{os.getpid()}\n")
    tries = len(notes.read_text().splitlines())
    progress(1)
    while job.run == "meet" and len(list(Path(job.root).glob("u[12]"))) < 2:
        time.sleep(0.01)
    while job.run == "silent":
        time.sleep(0.01)
    while job.run == "linger":
        progress(1)
        time.sleep(0.01)
    if job.run == "die" or (job.run == "die once" and tries == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if job.run == "raise" or (job.run == "raise once" and tries == 1):
        raise KeyError("a bug")
    if job.run == "input":
        raise InputError("a wrong setting")
    if job.run == "environment":
        raise EnvironmentProblem("no engine")
    return f"{job.unit.shard} done" if job.device is None else job.device


def outcome(root: Path, whats: list[str], workers: int, devices: tuple[str, ...] = ()) -> tuple[dict, dict, dict]:
    """({shard: result}, {shard: error}, {shard: tries})."""
    results, errors, seen = {}, {}, {}
    run_jobs(
        [job(root, i, what) for i, what in enumerate(whats)],
        work,
        workers,
        devices=devices,
        done=lambda job, result: results.__setitem__(job.unit.shard, result),
        failed=lambda job, error: errors.__setitem__(job.unit.shard, str(error)),
        progress=lambda job, count: seen.__setitem__(job.unit.shard, count),
    )
    assert set(seen) == set(results) | set(errors)
    return results, errors, {path.name: len(path.read_text().splitlines()) for path in root.iterdir()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_job_is_tried_twice_and_the_others_go_on(tmp_path, workers):
    results, errors, tries = outcome(tmp_path, ["fine", "raise", "raise once", "environment", "fine"], workers)
    assert results == {f"u{i}": f"u{i} done" for i in (0, 2, 4)}
    assert "a bug" in errors["u1"]
    assert errors["u3"] == "no engine"
    assert tries == {"u0": 1, "u1": 2, "u2": 2, "u3": 1, "u4": 1}


def test_a_killed_worker_costs_its_own_job_one_retry(tmp_path):
    results, errors, tries = outcome(tmp_path, ["fine", "die once", "die", *["fine"] * 5], 2)
    assert set(results) == {"u0", "u1", "u3", "u4", "u5", "u6", "u7"}
    assert errors == {"u2": f"its worker process ended with exit code -{signal.SIGKILL.value}"}
    assert tries == {"u0": 1, "u1": 2, "u2": 2, "u3": 1, "u4": 1, "u5": 1, "u6": 1, "u7": 1}


def test_every_worker_has_a_device_and_its_successor_takes_it_over(tmp_path):
    """Both at once: a job that waits for the other one's device would wait for ever."""
    results, errors, _ = outcome(tmp_path, ["die once", "meet", "meet", "fine"], 2, ("gpu a", "gpu b"))
    assert not errors and set(results.values()) == {"gpu a", "gpu b"}
    assert results["u1"] != results["u2"]


def test_one_worker_tells_its_device_too(tmp_path):
    assert outcome(tmp_path, ["fine", "raise once"], 1, ("gpu a",))[0] == {"u0": "gpu a", "u1": "gpu a"}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_users_error_ends_it_at_once(tmp_path, workers):
    with pytest.raises(InputError, match=r"^a wrong setting$"):
        outcome(tmp_path, ["input", *["fine"] * 20], workers)
    pids = {int(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()} - {os.getpid()}
    for pid in pids:  # no worker is left behind
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


LINGER = """
import sys
from pathlib import Path
from test_executor import outcome
if __name__ == "__main__":
    outcome(Path(sys.argv[1]), [sys.argv[2]] * 2, 2)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("what", ["linger", "silent"])
def test_workers_do_not_outlive_a_killed_parent(tmp_path, what):
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    parent = subprocess.Popen([sys.executable, "-c", LINGER, str(tmp_path), what], env=environment)
    notes = [tmp_path / "u0", tmp_path / "u1"]
    while not all(path.exists() and path.read_text().endswith("\n") for path in notes):
        assert parent.poll() is None
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    pids = [int(path.read_text()) for path in notes]
    while not all(map(gone, pids)):  # the test's own time limit is the limit
        time.sleep(0.02)
