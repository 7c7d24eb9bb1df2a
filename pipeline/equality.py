"""Output equality of a live run: each proposer's greedy outputs against those of `none`, at the same concurrency.

Where two outputs part, the target itself is asked, by one plain forward, how likely either token is. Each comparison is
a small shard of its own beside the unit it belongs to, so that a killed run resumes it like any other work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import remote
from pipeline.plan import Plan, Unit
from pipeline.warehouse import Warehouse
from replay.live.equality import ENDED, Differences, first_differences
from replay.requests import Tokens
from schemas.errors import EnvironmentProblem
from schemas.tables import OUTPUT_DIFFERENCES


def shard_of(unit: Unit) -> str:
    """Name of the shard that holds a unit's comparison."""
    return f"{unit.shard}-differences"


def compare(planned: Plan, warehouse: Warehouse, run: str) -> dict[str, str]:
    """Compare what is committed and not compared yet, and commit what comes of it.

    Committed with each comparison is `outputs`: {"compared": greedy requests, "equal": those with the same output}.

    Args:
        planned: a live run's plan.
        warehouse: holds the run's units, takes the comparisons.
        run: its id.

    Returns:
        Why it failed, by shard, where the engine that scores tokens did not run; the same replay again tries it again.
    """
    committed = warehouse.committed(run)
    baselines: dict[int, _Outputs | None] = {}
    for unit in planned.units:
        if unit.proposer.method == "none" and unit.concurrency not in baselines and unit.shard in committed:
            baselines[unit.concurrency] = _outputs(warehouse, committed[unit.shard])
    found: list[tuple[Unit, int, Differences, Tokens]] = []
    for unit in planned.units:
        baseline = baselines.get(unit.concurrency)
        if unit.proposer.method == "none" or unit.shard not in committed or baseline is None:
            continue
        mine = None if shard_of(unit) in committed else _outputs(warehouse, committed[unit.shard])
        if mine is not None:
            both = np.flatnonzero(mine.greedy & baseline.greedy)
            parted = first_differences(_take(mine.ids, both), _take(baseline.ids, both))
            at = both[parted.request]
            before = Tokens.of([mine.ids[i][:n] for i, n in zip(at, parted.position, strict=True)])
            where = Differences(at, parted.position, parted.baseline_token, parted.token)
            found.append((unit, len(both), where, before))
    failed: dict[str, str] = {}
    try:
        scores = _scores(planned, warehouse, found)
    except EnvironmentProblem as error:
        why = f"outputs differ, and their tokens cannot be scored: {error}"
        failed = {shard_of(unit): why for unit, _, parted, _ in found if len(_two_tokens(parted))}
        found = [one for one in found if shard_of(one[0]) not in failed]
        scores = _scores(planned, warehouse, found)  # nothing of these is scored
    for (unit, compared, parted, _), logprobs in zip(found, scores, strict=True):
        facts = {"outputs": {"compared": compared, "equal": compared - len(parted)}}
        warehouse.commit_shard(run, shard_of(unit), {"output_differences": _table(unit, parted, logprobs)}, facts)
    return failed


@dataclass(frozen=True)
class _Outputs:
    """A unit's outputs in order of request, and which of them were sampled greedily (bool)."""

    ids: Tokens
    greedy: np.ndarray


def _outputs(warehouse: Warehouse, shard: dict) -> _Outputs | None:
    paths = {file["table"]: warehouse.root / file["path"] for file in shard["files"]}
    if "outputs" not in paths:  # committed before there were any
        return None
    remote.pull_files(warehouse.root, [file["path"] for file in shard["files"]])
    outputs = pq.read_table(paths["outputs"], partitioning=None).sort_by("request")
    digests = pq.read_table(paths["requests"], partitioning=None, columns=["request", "output_digest"])
    greedy = digests.sort_by("request").column("output_digest").is_valid().to_numpy()
    return _Outputs(Tokens.of_column(outputs.column("output_token_ids")), greedy)


def _two_tokens(parted: Differences) -> np.ndarray:
    """Which differences are of two tokens, neither output having ended: those can be scored."""
    return np.flatnonzero((parted.baseline_token != ENDED) & (parted.token != ENDED))


def _take(tokens: Tokens, rows: np.ndarray) -> Tokens:
    return Tokens.of([tokens[i] for i in rows])


def _scores(
    planned: Plan, warehouse: Warehouse, found: Sequence[tuple[Unit, int, Differences, Tokens]]
) -> list[np.ndarray]:
    """Per comparison, float64 [differences, 2]: log-probability of the baseline's token and of the proposer's.

    NaN where one of the outputs had ended.
    """
    from replay.live.launch import score_live

    scores = [np.full((len(parted), 2), np.nan) for _, _, parted, _ in found]
    contexts, pairs, places = [], [], []
    for n, (unit, _, parted, before) in enumerate(found):
        both = _two_tokens(parted)
        rows = unit.rows[parted.request[both]]
        prompts = Tokens.of_column(warehouse.read_trace(planned.trace.name, ["prompt_token_ids"], rows).column(0))
        for i, prompt in zip(both, prompts, strict=True):
            contexts.append(np.concatenate([prompt, before[i]]))
            pairs.append((int(parted.baseline_token[i]), int(parted.token[i])))
            places.append((n, i))
    if contexts:
        config = planned.config
        limit = None if config.trace.max_model_len == "none" else config.trace.max_model_len
        engine = config.engine.at(config.engine.concurrencies[0])
        said = score_live(Tokens.of(contexts), pairs, engine, max_model_len=limit, hang_after_s=config.run.hang_after_s)
        for (n, i), pair in zip(places, said, strict=True):
            scores[n][i] = pair
    return scores


def _table(unit: Unit, parted: Differences, logprobs: np.ndarray) -> pa.Table:
    n = len(parted)
    columns = {
        "proposer": pa.repeat(unit.proposer.name, n),
        "concurrency": pa.repeat(pa.scalar(unit.concurrency, pa.int32()), n),
        "request": unit.positions[parted.request].astype(np.int32),
        "position": (parted.position + 1).astype(np.int32),
        "baseline_token": pa.array(parted.baseline_token, pa.int32(), mask=parted.baseline_token == ENDED),
        "token": pa.array(parted.token, pa.int32(), mask=parted.token == ENDED),
        "baseline_logprob": pa.array(logprobs[:, 0], mask=np.isnan(logprobs[:, 0])),
        "logprob": pa.array(logprobs[:, 1], mask=np.isnan(logprobs[:, 1])),
    }
    return pa.table(columns, schema=OUTPUT_DIFFERENCES)
