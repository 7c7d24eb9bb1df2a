"""Run one unit of live work in a clean process of its own: requests go in, step log and outputs come out.

Imports no vLLM, torch or numba. One process per engine: a second engine in the same process is poisoned by the first
(and by numba), and a crash must not take the replay with it.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa

import replay
from replay.live.reconcile import reconcile, reconcile_ids
from replay.live.steplog import Lengths, Rules, engine_steps, step_log
from replay.requests import Requests, Tokens
from replay.steps import StepLog
from schemas.config import EngineSection, Proposer
from schemas.errors import EnvironmentProblem, InputError, ReconciliationError


@dataclass(frozen=True)
class LiveResult:
    """What one engine did with one proposer; everything in request order.

    log: every decode step. engine_steps: every engine iteration (`schemas.tables.ENGINE_STEPS`). outputs, tails: ids
    put out, and what the target would have said past the end. finish_reason: stop, length, … first_token_us,
    finished_us: int64, since the request was submitted. prefix_cache_hit_tokens: int32. reconciliation: see
    `replay.live.reconcile`. engine: versions, device, KV-cache capacity and settings as vLLM states them.
    """

    log: StepLog
    engine_steps: pa.Table
    outputs: Tokens
    tails: Tokens
    finish_reason: list[str]
    first_token_us: np.ndarray
    finished_us: np.ndarray
    prefix_cache_hit_tokens: np.ndarray
    reconciliation: dict
    engine: dict


def run_live(
    requests: Requests,
    engine: EngineSection,
    proposer: Proposer,
    *,
    max_model_len: int | None,
    tail_tokens: int = 0,
    progress: Callable[[int], None] | None = None,
    log_dir: Path | None = None,
) -> LiveResult:
    """Generate afresh with one proposer, at most `engine.concurrency` requests in flight, in order.

    Args:
        requests: prompts; a row's `sampling` and `output_tokens` bound its output unless `engine.sampling` does.
        engine: model, EngineArgs, concurrency, sampling.
        proposer: vLLM's speculative_config, or "none".
        max_model_len: limit of prompt + output; None = what the EngineArgs or the model say.
        tail_tokens: with "none": ids to add past each end, as `tails`.
        progress: called with the number of finished requests.
        log_dir: where the engine's own log is kept, `<proposer>.log`; None = a temporary file, kept only when the
            engine fails.

    Raises:
        InputError: a setting or request that vLLM refuses; one line that names it.
        EnvironmentProblem: no engine here, or it cannot start, or it died; one line with its last words.
        ReconciliationError: the record does not put out the outputs' tokens, so no step log can be made of it.
    """
    _check(engine, proposer, tail_tokens)
    spec = _spec(engine, proposer, max_model_len, tail_tokens)
    with _workdir(requests, [spec]) as workdir:
        _run_child(workdir, log_dir, proposer.name, progress)
        return _collect(workdir, requests, engine, proposer)


def check_live(
    requests: Requests, engine: EngineSection, proposers: Sequence[Proposer], *, max_model_len: int | None
) -> None:
    """Ask vLLM whether it takes every proposer's settings and every request, before any engine starts.

    One process builds vLLM's configs and sampling settings and no model, so that what is refused is refused before
    hours of work and not behind them.

    Args:
        requests, engine, max_model_len: as for `run_live`.
        proposers: all of the run.

    Raises:
        InputError: the first setting or request that vLLM refuses.
        EnvironmentProblem: no engine here.
    """
    for proposer in proposers:
        _check(engine, proposer, 0)
    each = product(proposers, map(engine.at, engine.concurrencies))
    with _workdir(requests, [_spec(at, proposer, max_model_len, 0) for proposer, at in each]) as workdir:
        _run_child(workdir, None, "check", None, "--check")


def _only(engine: EngineSection) -> int:
    (concurrency,) = engine.concurrencies
    return concurrency


def _spec(engine: EngineSection, proposer: Proposer, max_model_len: int | None, tail_tokens: int) -> dict:
    return {
        "model": engine.model,
        "engine_args": engine.engine_args,
        "speculative": None if proposer.method == "none" else proposer.config,
        "proposer": proposer.name,
        "sampling": engine.sampling,
        "concurrency": _only(engine),
        "max_model_len": max_model_len,
        "tail_tokens": tail_tokens,
    }


@contextmanager
def _workdir(requests: Requests, specs: list[dict]) -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="specreplay-") as scratch:
        workdir = Path(scratch)
        try:
            (workdir / "specs.json").write_text(json.dumps(specs))
            _hand_over(requests, workdir / "requests.arrow")
        except OSError as error:
            raise EnvironmentProblem(f"cannot write to {workdir.parent}: {error.strerror or error}") from error
        yield workdir


def _check(engine: EngineSection, proposer: Proposer, tail_tokens: int) -> None:
    if engine.model is None:
        raise InputError("[engine]: model = the folder of the target model is needed for a live run")
    if engine.runner == "v2":
        raise InputError('[engine]: runner = "v2": live logging of the V2 runner is not available yet; use "v1"')
    if tail_tokens and proposer.method != "none":
        raise InputError(f"proposer {proposer.name!r}: tails are captured without speculation only")
    for where, model in (("[engine]", engine.model), (f"proposer {proposer.name!r}", proposer.config.get("model"))):
        if model is None or (where != "[engine]" and proposer.method == "custom_class"):
            continue
        if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
            raise InputError(f"{where}: model = {model!r} is a folder without config.json, so no model")
        if not Path(model).exists() and (model.startswith((".", "/", "~")) or model.count("/") != 1):
            raise InputError(f"{where}: model = {model!r}: no such folder")
    if importlib.util.find_spec("vllm") is None:
        raise EnvironmentProblem("vllm is not installed here, so nothing can run live: `make setup` installs it")


def _hand_over(requests: Requests, path: Path) -> None:
    meta = requests.meta
    prompts = pa.ListArray.from_arrays(pa.array(requests.prompts.offsets, pa.int32()), requests.prompts.flat)
    table = pa.table(
        {
            "prompt_token_ids": prompts,
            "request_id": meta["request_id"],
            "sampling": meta["sampling"],
            "output_tokens": meta["output_tokens"],
        }
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _environment() -> dict[str, str]:
    """The engine's environment: V1 runner, everything in one process, threads that leave the machine room."""
    env = dict(os.environ)
    home = str(Path(replay.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (home, env.get("PYTHONPATH")) if p)
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    # numba (n-gram) shares the OpenMP pool and would widen it, for the target model as well.
    env["NUMBA_NUM_THREADS"] = env["OMP_NUM_THREADS"]
    return env | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def _run_child(
    workdir: Path, log_dir: Path | None, name: str, progress: Callable[[int], None] | None, *options: str
) -> None:
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    log = (log_dir or workdir) / f"{safe}.log"
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "replay.live.child", str(workdir), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(),
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if progress is not None and line.startswith("done "):
                    progress(int(line.split()[1]))
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            child.stdout.close()
    if code == 0:
        return
    error = workdir / "error.json"
    if error.exists():
        said = json.loads(error.read_text())
        if said["kind"] == "input":
            raise InputError(said["message"])
        message = said["message"]
    else:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        message = f"the engine {how}; its last words: {_last_line(log)}"
    if log_dir is None:
        handle, kept = tempfile.mkstemp(prefix=f"specreplay-{safe}-", suffix=".log")
        os.close(handle)
        log = Path(shutil.copyfile(log, kept))
    raise EnvironmentProblem(f"proposer {name!r}: {message} (log: {log})")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "(nothing)")[-400:]


def _collect(workdir: Path, requests: Requests, engine: EngineSection, proposer: Proposer) -> LiveResult:
    detail = json.loads((workdir / "result.json").read_text())
    with np.load(workdir / "result.npz") as file:
        a = dict(file)
    put_out = Tokens(a["flat"], a["offsets"])
    lengths = Lengths(requests.prompts.lengths, a["ends"], put_out.lengths - a["ends"])
    shortest = proposer.config.get("prompt_lookup_min", 0)
    rules = Rules(detail["facts"]["max_model_len"], shortest, frozenset(detail["grammar"]))
    try:
        log = step_log(a["rows"], a["iterations"][:, 4], lengths, rules)
    except ValueError as error:
        raise ReconciliationError(f"proposer {proposer.name!r}: {error}") from error
    ids = requests.meta["request_id"].to_pylist()
    submitted, first, finished = a["times"].T
    verdict = reconcile(log, detail["counters"], lengths.output, lengths.run_on, detail["per_request"], ids)
    verdict["mismatches"] += reconcile_ids(a["rows"], a["draft_ids"], a["sampled_ids"], put_out, ids)
    verdict["ok"] = not verdict["mismatches"]
    return LiveResult(
        log=log,
        engine_steps=engine_steps(a, lengths, log, a["steps"], proposer.name, _only(engine)),
        outputs=Tokens.of([put_out[i][:end].tolist() for i, end in enumerate(a["ends"])]),
        tails=Tokens.of([put_out[i][end:].tolist() for i, end in enumerate(a["ends"])]),
        finish_reason=detail["finish_reason"],
        first_token_us=np.rint((first - submitted) * 1e6).astype(np.int64),
        finished_us=np.rint((finished - submitted) * 1e6).astype(np.int64),
        prefix_cache_hit_tokens=a["cached"],
        reconciliation=verdict,
        engine=detail["facts"],
    )
