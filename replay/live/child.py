"""The engine's process: `python -m replay.live.child WORKDIR` runs the unit in WORKDIR and leaves the result there.

With `--check` it only asks vLLM whether it takes the settings of every unit in WORKDIR, and starts no engine.

Standard output carries one line per finished request (`done N`) and nothing else; what vLLM prints goes to standard
error. An error a user can meet is left in error.json as its kind and its one line.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from replay.live.engine import UnitResult, run_unit
from replay.live.settings import engine_config, last_words, sampling_params
from replay.requests import Tokens
from schemas.errors import EnvironmentProblem, InputError, SpecreplayError


def main(workdir: Path, check: bool = False) -> int:
    """Run (or check) what is in `workdir`; returns the exit code."""
    _die_with_parent()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def done(finished: int) -> None:
        print(f"done {finished}", file=lines)

    try:
        specs = json.loads((workdir / "specs.json").read_text())
        with pa.OSFile(str(workdir / "requests.arrow")) as source:
            table = pa.ipc.open_file(source).read_all()
        prompts = Tokens.of_column(table["prompt_token_ids"])
        rows = table.select(["sampling", "output_tokens"]).to_pylist()
        ids = table["request_id"].to_pylist()
        if check:
            for spec in specs:
                sampling_params(rows, ids, prompts, spec, engine_config(spec))
            return 0
        result = run_unit(prompts, rows, ids, specs[0], done)
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
        (workdir / "error.json").write_text(json.dumps({"kind": kind, "message": str(error)}))
        return error.exit_code


def _write(workdir: Path, result: UnitResult) -> None:
    record = result.record
    slots = {s.engine_id: i for i, s in enumerate(result.sequences)}
    order = np.array([slots[name] for name in record["request_ids"]], np.int32)
    if len(order):
        record["rows"][:, 1] = order[record["rows"][:, 1]]
    ids = Tokens.of([s.ids for s in result.sequences])
    times = np.array([(s.submitted, s.first, s.finished) for s in result.sequences]).reshape(-1, 3)
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
    }
    (workdir / "result.json").write_text(json.dumps(detail))


def _die_with_parent() -> None:
    """On Linux, be killed when the parent dies: an engine must not outlive the replay that wanted it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] == ["--check"]))
