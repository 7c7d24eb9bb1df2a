"""A look at one request's decode steps: what each proposed, and what came of it.

Candidates are not stored. They are found again from the ids (`replay.recorded.candidates`): the run's own outputs where
an engine generated afresh, the trace's where it was walked along. The log is the other witness: number of candidates
and how many were accepted must agree, and a step where they do not says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.output import plain
from pipeline.warehouse import RunRecord, Warehouse
from replay.recorded.candidates import candidates
from replay.recorded.walk import scheduled_ahead
from replay.requests import Requests, Tokens
from schemas.errors import InputError

_LOGGED = ("step", "drafted", "filler", "accepted", "overrun", "miss_reason")
_FROM_TRACE = "request_id sample prompt_token_ids output_token_ids tail_token_ids prompt_tokens output_tokens".split()


@dataclass(frozen=True)
class Shown:
    """The steps asked for, as rows of a table, and what is to be said about them.

    rows: per step: step, position (tokens put out before it), context (tokens before it, prompt included), drafted,
    filler, accepted, emitted, overrun, miss_reason, candidates (ids, real ones alone; None where they cannot be found
    again), agrees (whether they are what the log says; None as before). With a tokenizer also candidate_text and
    emitted_text. notes: lines for people.
    """

    rows: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True)
class _Unit:
    """The committed shard that holds the request: its tables' paths, its facts, and the request's own row in it."""

    paths: dict[str, str]
    facts: dict
    request: dict
    mates: pa.Table
    """`request` and `request_id` of all its requests, in order of replay."""


def steps(
    warehouse: Warehouse,
    run: str,
    request_id: str,
    *,
    proposer: str | None = None,
    concurrency: int | None = None,
    step: int | None = None,
    tokenizer: Path | None = None,
) -> Shown:
    """The decode steps of one request with one proposer.

    Args:
        warehouse: where the run is.
        run: its name.
        request_id: as in the trace.
        proposer: its name; None = the only one of the run besides "none".
        concurrency: of a live run with several; None = the only one.
        step: only this one, from 1; None = all.
        tokenizer: folder of a tokenizer that turns ids into text; None = ids alone.

    Raises:
        InputError: no such run, request, proposer or step, or more than one to choose from; the ids are not there.
    """
    record = warehouse.run(run)
    entry = _proposer(record, proposer)
    unit = _unit(warehouse, record, entry["name"], request_id, concurrency)
    where = f"run {run}, request {plain(request_id)!r}"
    if "decode_steps" not in unit.paths:
        raise InputError(f"{where}: {entry['name']} logged no steps")
    log = pq.read_table(unit.paths["decode_steps"], partitioning=None)
    log = log.filter(pc.field("request") == unit.request["request"]).sort_by("step")
    request = _request(warehouse, record, unit, request_id)
    rows = _rows(log, request)
    if step is not None:
        rows = [row for row in rows if row["step"] == step]
        if not rows:
            raise InputError(f"{where}: there is no step {step}; it has {log.num_rows}")
    notes = _find_again(rows, request, warehouse, record, entry, unit)
    if tokenizer is not None:
        _say(rows, request, tokenizer)
    return Shown(rows, notes)


def _proposer(record: RunRecord, name: str | None) -> dict:
    every = record.plan.get("proposers") or []
    names = ", ".join(plain(p["name"]) for p in every)
    if name is None:
        some = [p for p in every if p.get("config", {}).get("method") != "none"]
        if len(some) != 1:
            raise InputError(f"run {record.run} has the proposers {names}: choose one with --proposer")
        return some[0]
    found = [p for p in every if p["name"] == name]
    if not found:
        raise InputError(f"run {record.run} has no proposer {plain(name)!r}; it has {names}")
    return found[0]


def _unit(warehouse: Warehouse, record: RunRecord, proposer: str, request_id: str, concurrency: int | None) -> _Unit:
    shards = record.done["shards"] if record.done else warehouse.committed(record.run)
    files = dict(zip(shards, warehouse.shards([record.run]), strict=True))
    found: list[tuple[int, str, dict, pa.Table]] = []
    for name, paths in files.items():
        if "requests" not in paths:
            continue
        columns = ["proposer", "concurrency", "request", "request_id"]
        table = pq.read_table(paths["requests"], columns=columns, partitioning=None).sort_by("request")
        mine = table.filter((pc.field("proposer") == proposer) & (pc.field("request_id") == request_id)).to_pylist()
        found += [(row["concurrency"], name, row, table.select(["request", "request_id"])) for row in mine]
    if not found:
        raise InputError(
            f"run {record.run}: no committed request {plain(request_id)!r} with proposer {plain(proposer)!r}"
        )
    if concurrency is not None:
        kept = [entry for entry in found if entry[0] == concurrency]
        if not kept:
            raise InputError(f"run {record.run} has no concurrency {concurrency}; it has {_listed(found)}")
        found = kept
    if len(found) > 1:
        raise InputError(f"run {record.run} has the concurrencies {_listed(found)}: choose one with --concurrency")
    _, name, row, mates = found[0]
    return _Unit(files[name], shards[name].get("facts") or {}, row, mates)


def _listed(found: list[tuple]) -> str:
    return ", ".join(str(entry[0]) for entry in sorted(found, key=lambda entry: entry[0]))


def _request(warehouse: Warehouse, record: RunRecord, unit: _Unit, request_id: str) -> Requests:
    return _requests(warehouse, record, unit, [request_id], [unit.request["request"]])


def _requests(warehouse: Warehouse, record: RunRecord, unit: _Unit, names: list[str], positions: list[int]) -> Requests:
    """These requests with the outputs of this run; what a last step put out past the end is their tail."""
    name, fingerprint = record.plan["trace"]["name"], record.plan["trace"]["fingerprint"]
    trace = warehouse.trace(name)
    if trace.fingerprint != fingerprint:
        raise InputError(f"trace {name} is not the one that run {record.run} replayed, so its ids are not here")
    at = {found: i for i, found in enumerate(warehouse.read_trace(name, ["request_id"]).column(0).to_pylist())}
    requests = Requests.from_table(warehouse.read_trace(name, _FROM_TRACE, [at[wanted] for wanted in names]))
    if record.plan["engine"]["kind"] != "vllm":
        return requests
    if "outputs" not in unit.paths:
        raise InputError(f"run {record.run} was made before outputs were kept, so its candidates cannot be found again")
    table = pq.read_table(unit.paths["outputs"], partitioning=None)
    at = {position: i for i, position in enumerate(table.column("request").to_pylist())}
    rows = table.take([at[position] for position in positions])
    outputs, cuts = (Tokens.of_column(rows.column(c)) for c in ("output_token_ids", "cut_token_ids"))
    return Requests(requests.prompts, outputs, cuts, requests.meta)


def _rows(log: pa.Table, request: Requests) -> list[dict[str, Any]]:
    rows, position = [], 1  # the prefill put out the first token
    for row in log.select(_LOGGED).to_pylist():
        emitted = 0 if row["accepted"] is None else row["accepted"] + 1 - row["overrun"]
        made = {"step": row["step"], "position": position, "context": len(request.prompts[0]) + position}
        rows.append(made | {k: row[k] for k in ("drafted", "filler", "accepted")})
        rows[-1] |= {"emitted": emitted, "overrun": row["overrun"], "miss_reason": row["miss_reason"]}
        position += emitted
    return rows


def _find_again(
    rows: list[dict], request: Requests, warehouse: Warehouse, record: RunRecord, entry: dict, unit: _Unit
) -> list[str]:
    """Add `candidates` and `agrees` to the rows; returns what is to be said."""
    config, engine, facts = entry["config"], record.plan["engine"], unit.facts.get("engine") or {}
    if (entry.get("history") or {}).get("scope") == "none":  # nobody to share with, so nothing was kept
        config = config | {"suffix_decoding_max_cached_requests": 0}
    runner = facts.get("runner", engine["runner"])
    asynchronous = facts.get("async_scheduling", scheduled_ahead(config, runner))
    varied = "num_speculative_tokens_per_batch_size" in config
    limit = facts.get("max_model_len", record.plan["max_model_len"])
    limit = None if limit == "none" else limit
    # A placeholder stands where the proposer was not asked: there is nothing to find again.
    asked = [row for row in rows if row["miss_reason"] != "skipped"]
    for row in rows:
        row |= {"candidates": [], "agrees": None}
    try:
        before = _served_before(warehouse, record, entry, unit) if config["method"] == "suffix" else None
        said = candidates(
            request,
            [row["position"] for row in asked],
            config,
            runner=runner,
            max_model_len=limit,
            dtype=facts.get("dtype") or engine.get("dtype") or "float32",
            target=engine.get("model"),
            served_before=before,
        )
    except InputError as error:
        for row in asked:
            row["candidates"] = None
        return [f"{entry['name']}: {error}"]
    ids = [*request.outputs[0].tolist(), *request.tails[0].tolist()]
    for row, found in zip(asked, said, strict=True):
        room = len(found) if limit is None else max(0, limit - row["context"] - 1)
        # With asynchronous scheduling the limit counts candidates still in flight, and cuts a little earlier.
        cut = varied or (asynchronous and room <= 2 * len(found) + 1)
        row["candidates"] = found[: row["drafted"] - row["filler"]] if cut else found[:room]
        row["agrees"] = _agrees(row, row["candidates"], ids[row["position"] :])
    wrong = [row["step"] for row in asked if not row["agrees"]]
    if not wrong:
        return [f"candidates found again for {len(asked)} of {len(rows)} steps; all agree with the log"]
    few = ", ".join(map(str, wrong[:10])) + (", …" if len(wrong) > 10 else "")
    return [
        f"candidates of {len(wrong)} of {len(asked)} steps do not agree with the log (step {few}): a grammar or a "
        "length limit may have cut them, a near tie may have gone the other way, or the log is wrong"
    ]


def _agrees(row: dict, found: list[int], record: list[int]) -> bool:
    """As many as were logged, and the first `accepted` of them, and no more, are what came next."""
    if len(found) != row["drafted"] - row["filler"]:
        return False
    if row["accepted"] is None:
        return True
    known = min(len(found), len(record))
    same = next((i for i in range(known) if found[i] != record[i]), known)
    accepted = min(row["accepted"], len(found))
    return same == accepted or (same == len(record) and accepted >= same)  # past the record's end nothing is known


def _served_before(warehouse: Warehouse, record: RunRecord, entry: dict, unit: _Unit) -> Requests | None:
    """What the same tree served before this request; raises InputError where that cannot be told."""
    again = "its candidates cannot be found again: "
    if record.plan["engine"]["kind"] == "vllm" and unit.request["concurrency"] != 1:
        raise InputError(again + "the tree depended on how the requests interleaved; it can be told at concurrency 1")
    if (unit.facts.get("tree") or {}).get("warm_requests"):
        raise InputError(again + "its tree was filled from another trace first")
    mates = unit.mates.filter(pc.field("request") < unit.request["request"]).to_pydict()
    if not mates["request"]:
        return None
    return _requests(warehouse, record, unit, mates["request_id"], mates["request"])


def _say(rows: list[dict], request: Requests, folder: Path) -> None:
    """Add the text of candidates and of what each step put out."""
    from pipeline.ingest.tokenise import Tokeniser

    tokenizer, ids = Tokeniser(folder), request.outputs[0].tolist()
    for row in rows:
        row["candidate_text"] = None if row["candidates"] is None else tokenizer.text(row["candidates"])
        row["emitted_text"] = tokenizer.text(ids[row["position"] : row["position"] + row["emitted"]])
