"""Run one unit of live work in a clean process of its own: requests go in, step log and outputs come out.

Imports no vLLM, torch or numba. One process per engine (`replay.live.process`): a second engine in the same process is
poisoned by the first (and by numba), and a crash must not take the replay with it.
"""

import importlib.util
import json
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from replay.live.leftovers import PREFIX, held, sweep
from replay.live.lookup import fills_up, found
from replay.live.process import START_LIMIT_S, cores, run_child
from replay.live.reconcile import reconcile, reconcile_ids
from replay.live.record import ROW_FIELDS
from replay.live.steplog import Lengths, Rules, emptied, engine_steps, step_log
from replay.requests import Requests, Tokens
from replay.steps import StepLog
from schemas.config import EngineSection, Proposer
from schemas.errors import EnvironmentProblem, InputError, ReconciliationError


@dataclass(frozen=True)
class LiveResult:
    """What one engine did with one proposer; everything in request order.

    log: every decode step. engine_steps: every engine iteration (`schemas.tables.ENGINE_STEPS`). outputs, tails: ids
    put out, and what the target would have said past the end; cuts: ids of the last step that the end cut off. greedy:
    bool, sampled greedily. finish_reason: stop, length, … first_token_us,
    finished_us: int64, since the request was due: sent, or scheduled where a schedule was given. dispatched_us: int64,
    when it was sent, since the first request was due. prefix_cache_hit_tokens: int32. reconciliation: see
    `replay.live.reconcile`. engine: versions, device, KV-cache capacity and settings as vLLM states them.
    """

    log: StepLog
    engine_steps: pa.Table
    outputs: Tokens
    tails: Tokens
    cuts: Tokens
    greedy: np.ndarray
    finish_reason: list[str]
    first_token_us: np.ndarray
    finished_us: np.ndarray
    dispatched_us: np.ndarray
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
    seed: int = 0,
    scheduled_us: np.ndarray | None = None,
    device: str | None = None,
    hang_after_s: float = START_LIMIT_S,
    progress: Callable[[int], None] | None = None,
    log_dir: Path | None = None,
) -> LiveResult:
    """Generate afresh with one proposer, at most `engine.concurrency` requests in flight, in order.

    Args:
        requests: prompts; a row's `sampling` and `output_tokens` bound its output unless `engine.sampling` does.
        engine: model, EngineArgs, one concurrency, sampling.
        proposer: vLLM's speculative_config, or "none".
        max_model_len: limit of prompt + output; None = what the EngineArgs or the model say.
        tail_tokens: with "none": ids to add past each end, as `tails`.
        seed: requests above temperature 0 that carry no seed get one that follows from this and their id.
        scheduled_us: int64 per request, when it is sent since the first one is; `engine.concurrency` of them run, the
            others wait in the engine's own queue. None = each is sent as soon as one before it has finished.
        device: an entry of [run] devices; None = everything this process sees.
        hang_after_s: an engine that completes no iteration for so many seconds is ended.
        progress: called with the number of finished requests.
        log_dir: where the engine's own log is kept, `<proposer>.log`; None = a temporary file, kept only when the
            engine fails.

    Raises:
        InputError: a setting or request that vLLM refuses; one line that names it.
        EnvironmentProblem: no engine here, or it cannot start, hangs, or died; one line with its last words.
        ReconciliationError: the record does not put out the outputs' tokens, so no step log can be made of it.
    """
    _check(engine, proposer, tail_tokens)
    spec = _spec(engine, proposer, max_model_len, tail_tokens)
    spec |= {"cores": cores(device), "beat_s": min(1.0, hang_after_s / 4), "seed": seed}
    with _workdir(requests, [spec], scheduled_us) as workdir:
        run_child(
            workdir,
            log_dir,
            proposer.name,
            runner=engine.runner,
            device=device,
            hang_after_s=hang_after_s,
            progress=progress,
        )
        return _collect(workdir, requests, engine, proposer)


def score_live(
    contexts: Tokens,
    tokens: Sequence[Sequence[int]],
    engine: EngineSection,
    *,
    max_model_len: int | None,
    device: str | None = None,
    hang_after_s: float = START_LIMIT_S,
) -> np.ndarray:
    """What the target itself thinks of tokens, by one plain forward over the context of each; see `replay.live.scores`.

    Args:
        contexts: ids before the token, one sequence per entry.
        tokens: per context, the ids to score; the same number for each.
        engine, max_model_len, device, hang_after_s: as for `run_live`.

    Returns:
        float64 [contexts, tokens per context], natural log-probability from raw logits.

    Raises:
        EnvironmentProblem: no engine here, or it cannot start, hangs, or died; one line with its last words.
    """
    spec = _spec(engine, Proposer(name="none", config={"method": "none"}, key=""), max_model_len, 0)
    spec |= {"cores": cores(device), "beat_s": min(1.0, hang_after_s / 4), "score": [list(ids) for ids in tokens]}
    with _workdir(Requests.from_lists([ids.tolist() for ids in contexts], [[] for _ in contexts]), [spec]) as workdir:
        run_child(workdir, None, "scores", runner=engine.runner, device=device, hang_after_s=hang_after_s)
        return np.load(workdir / "scores.npy")


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
def _workdir(requests: Requests, specs: list[dict], scheduled_us: np.ndarray | None = None) -> Generator[Path]:
    sweep()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as scratch, held(Path(scratch)):
        workdir = Path(scratch)
        try:
            (workdir / "specs.json").write_text(json.dumps(specs))
            _hand_over(requests, scheduled_us, workdir / "requests.arrow")
        except OSError as error:
            raise EnvironmentProblem(f"cannot write to {workdir.parent}: {error.strerror or error}") from error
        yield workdir


def _check(engine: EngineSection, proposer: Proposer, tail_tokens: int) -> None:
    if engine.model is None:
        raise InputError("[engine]: model = the folder of the target model is needed for a live run")
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
    if engine.runner == "v2" and importlib.util.find_spec("triton") is None:
        raise EnvironmentProblem(
            '[engine]: runner = "v2" needs Triton, which vLLM\'s CPU build comes without; use runner = "v1" here'
        )


def _hand_over(requests: Requests, scheduled_us: np.ndarray | None, path: Path) -> None:
    meta = requests.meta
    table = pa.table(
        {
            "prompt_token_ids": requests.prompts.column(),
            "request_id": meta["request_id"],
            "sampling": meta["sampling"],
            "output_tokens": meta["output_tokens"],
            "scheduled_us": pa.nulls(len(requests), pa.int64()) if scheduled_us is None else scheduled_us,
        }
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _cuts(rows: np.ndarray, sampled_ids: np.ndarray, put_out: Tokens) -> Tokens:
    """Per request, ids its last step put out past the cut; `rows` and `sampled_ids` as for `reconcile_ids`."""
    owner = np.repeat(rows[:, ROW_FIELDS.index("slot")], rows[:, ROW_FIELDS.index("sampled")])
    seen = sampled_ids[np.argsort(owner, kind="stable")]
    bounds = np.searchsorted(np.sort(owner), np.arange(len(put_out) + 1))
    return Tokens.of([seen[bounds[i] + n : bounds[i + 1]] for i, n in enumerate(put_out.lengths)])


def _collect(workdir: Path, requests: Requests, engine: EngineSection, proposer: Proposer) -> LiveResult:
    detail = json.loads((workdir / "result.json").read_text())
    with np.load(workdir / "result.npz") as file:
        a = dict(file)
    put_out = Tokens(a["flat"], a["offsets"])
    lengths = Lengths(requests.prompts.lengths, a["ends"], put_out.lengths - a["ends"])
    facts, rows, config = detail["facts"], a["rows"], proposer.config
    shortest = config.get("prompt_lookup_min", 0)
    rules = Rules(facts["max_model_len"], shortest, frozenset(detail["grammar"]), facts["async_scheduling"])
    looked_up = (
        found(rows, requests.prompts, put_out, config, facts["runner"]) if fills_up(config, facts["runner"]) else None
    )
    try:
        log = step_log(rows, a["iterations"][:, 4], lengths, rules, looked_up)
    except ValueError as error:
        raise ReconciliationError(f"proposer {proposer.name!r}: {error}") from error
    ids = requests.meta["request_id"].to_pylist()
    due, sent, first, finished = a["times"].T
    verdict = reconcile(
        log, detail["counters"], lengths.output, lengths.run_on, detail["per_request"], ids, emptied(log, rows)
    )
    verdict["mismatches"] += reconcile_ids(rows, a["draft_ids"], a["sampled_ids"], put_out, ids)
    verdict["ok"] = not verdict["mismatches"]
    return LiveResult(
        log=log,
        engine_steps=engine_steps(a, lengths, log, a["steps"], proposer.name, _only(engine)),
        outputs=Tokens.of([put_out[i][:end].tolist() for i, end in enumerate(a["ends"])]),
        tails=Tokens.of([put_out[i][end:].tolist() for i, end in enumerate(a["ends"])]),
        cuts=_cuts(rows, a["sampled_ids"], put_out),
        greedy=np.array(detail["greedy"], bool),
        finish_reason=detail["finish_reason"],
        first_token_us=np.rint((first - due) * 1e6).astype(np.int64),
        finished_us=np.rint((finished - due) * 1e6).astype(np.int64),
        dispatched_us=np.rint((sent - due.min(initial=np.inf)) * 1e6).astype(np.int64),
        prefix_cache_hit_tokens=a["cached"],
        reconciliation=verdict,
        engine=facts,
    )
