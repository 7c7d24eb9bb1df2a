"""The engine's process: `python -m replay.live.child WORKDIR` runs the unit in WORKDIR and leaves the result there.

With `--check` it only asks vLLM about the settings of every unit in WORKDIR (findings.json), and starts no engine.

Standard output carries one line per finished request (`done N`), now and then `alive` while engine iterations end, and
nothing else; what vLLM prints goes to standard error. SIGUSR1 leaves the stacks of all threads there. An error a user
can meet is left in error.json as its kind and its one line.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa

from replay.live.ask import ask
from replay.live.engine import UnitResult, run_unit
from replay.live.scores import score
from replay.live.settings import last_words
from replay.preflight.lengths import Lengths
from replay.requests import Tokens
from schemas.config import Proposer
from schemas.errors import EnvironmentProblem, InputError, SpecreplayError


def main(workdir: Path, check: bool = False) -> int:
    """Run (or check) what is in `workdir`; returns the exit code."""
    _die_with_parent()
    faulthandler.register(signal.SIGUSR1)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def done(finished: int) -> None:
        print(f"done {finished}", file=lines)

    try:
        specs = json.loads((workdir / "specs.json").read_text())
        if (bound := specs[0].get("cores")) is not None:
            os.sched_setaffinity(0, bound)
        with pa.OSFile(str(workdir / "requests.arrow")) as source:
            table = pa.ipc.open_file(source).read_all()
        prompts = Tokens.of_column(table["prompt_token_ids"])
        rows = table.select(["sampling", "output_tokens", "scheduled_us"]).to_pylist()
        ids = table["request_id"].to_pylist()
        if check:
            _check(workdir, specs, ids, prompts, rows)
            return 0
        beat = signs_of_life(lines, specs[0]["beat_s"])
        for name in ("specs.json", "requests.arrow"):  # if we are killed, no prompt lies about
            (workdir / name).unlink()
        if (tokens := specs[0].get("score")) is not None:
            np.save(workdir / "scores.npy", score(prompts, tokens, specs[0], done, beat))
            return 0
        result = run_unit(prompts, rows, ids, specs[0], done, beat)
        _write(workdir, result)
        return 0
    except BrokenPipeError:
        return 1  # nobody is waiting any more
    except Exception as error:
        if not isinstance(error, SpecreplayError):
            import traceback

            traceback.print_exc()
            error = EnvironmentProblem(f"the engine died: {last_words(error)}")
        kind = "input" if isinstance(error, InputError) else "environment"
        for name in ("result.npz", "result.json", "scores.npy"):  # on a full disk they make room for what follows
            (workdir / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (workdir / "error.json").write_text(json.dumps({"kind": kind, "message": str(error)}))
        return error.exit_code


def signs_of_life(lines: TextIO, every_s: float) -> Callable[[], None]:
    """A function to call after every engine iteration: it writes `alive` on `lines`, once in `every_s` at most."""
    last, clock = 0.0, time.monotonic

    def beat() -> None:
        nonlocal last
        now = clock()
        if now - last >= every_s:
            last = now
            print("alive", file=lines)

    return beat


def _check(workdir: Path, specs: list[dict], ids: list[str], prompts: Tokens, rows: list[dict]) -> None:
    asked = json.loads((workdir / "ask.json").read_text())
    proposers = [Proposer.model_validate(given) for given in asked["proposers"]]
    with np.load(workdir / "lengths.npz") as file:
        lengths, outputs = Lengths(file["prompt"], file["output"]), file["ids"]
    findings = ask(specs, proposers, ids, prompts, rows, lengths, outputs, asked["runner"], asked["device_memory"])
    (workdir / "findings.json").write_text(json.dumps([finding.as_dict() for finding in findings]))


def _write(workdir: Path, result: UnitResult) -> None:
    record = result.record
    slots = {s.engine_id: i for i, s in enumerate(result.sequences)}
    order = np.array([slots[name] for name in record["request_ids"]], np.int32)
    if len(order):
        record["rows"][:, 1] = order[record["rows"][:, 1]]
    ids = Tokens.of([s.ids for s in result.sequences])
    times = np.array([(s.due, s.submitted, s.first, s.finished) for s in result.sequences]).reshape(-1, 4)
    np.savez(
        workdir / "result.npz",
        iterations=record["iterations"],
        rows=record["rows"],
        draft_ids=record["draft_ids"],
        sampled_ids=record["sampled_ids"],
        steps=result.steps,
        times=times,
        flat=ids.flat,
        offsets=ids.offsets,
        ends=np.array([len(s.ids) if s.end is None else s.end for s in result.sequences], np.int64),
        cached=np.array([s.cached_tokens for s in result.sequences], np.int32),
    )
    detail = {
        "finish_reason": [s.finish_reason for s in result.sequences],
        "per_request": [None if s.drafted is None else (s.drafted, s.accepted) for s in result.sequences],
        "counters": result.counters,
        "facts": result.facts,
        "grammar": result.grammar,
        "greedy": result.greedy,
    }
    (workdir / "result.json").write_text(json.dumps(detail))


def _die_with_parent() -> None:
    """Be killed when the parent dies: an engine must not outlive the replay that wanted it.

    On Linux the kernel does it, whatever we are in; everywhere the pipe on our standard input ends with the parent.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_end_with_input, daemon=True).start()


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2:] == ["--check"])
    sys.stderr.flush()
    os._exit(code)  # the result is written; taking torch apart would take seconds, or hang
