"""Live runs of several concurrencies, committed as a replay commits them."""

import random

import pyarrow as pa
from logged_runs import Run, random_run, tables

from pipeline.rollups import rollups
from pipeline.warehouse import Warehouse
from schemas.tables import DISPATCHES

LOW, HIGH = random_run(21, live=True), random_run(22, live=True)
AT = {1: LOW, 8: HIGH}


def commit(warehouse: Warehouse, name: str, at: dict[int, Run], facts: dict | None = None) -> None:
    """A run with these concurrencies, as a replay commits it; `facts` of every engine."""
    plan = {"trace": {"name": "demo", "fingerprint": "f"}, "engine": {"kind": "vllm", "runner": "v1"}, "label": "live"}
    warehouse.write_plan(name, plan)
    proposers: dict[str, dict] = {}
    for concurrency, run in at.items():
        run = Run(run.requests, concurrency, run.iterations, run.kv_cache)
        for number, (proposer, requests) in enumerate(run.requests.items()):
            made = tables(run, proposer, requests)
            if run.iterations:
                made = _timed(made, random.Random(f"{concurrency} {proposer}"))
            warehouse.commit_shard(name, f"{number:02d}-c{concurrency}-00000", made | rollups(made))
            told = run.kv_cache.get(proposer, {}) | (facts or {})
            if len(at) == 1:
                proposers[proposer] = told
            else:
                proposers.setdefault(proposer, {}).setdefault("concurrencies", {})[str(concurrency)] = told
    done = {"status": "complete", "reconciled": True, "proposers": proposers, "shards": warehouse.committed(name)}
    warehouse.write_done(name, done)


def _timed(made: dict[str, pa.Table], rng: random.Random) -> dict[str, pa.Table]:
    """With times of every request, each scheduled and sent some time after."""
    requests = made["requests"]
    n = requests.num_rows
    first = [rng.randint(1, 10**6) for _ in range(n)]
    columns = {"first_token_us": first, "finished_us": [at + rng.randint(0, 10**7) for at in first]}
    for name, values in columns.items():
        requests = requests.set_column(requests.schema.get_field_index(name), name, pa.array(values, pa.int64()))
    scheduled = [rng.randint(0, 10**6) for _ in range(n)]
    late = rng.choice([1000, 4000])
    dispatches = {name: requests[name] for name in ("proposer", "concurrency", "request")} | {
        "scheduled_us": pa.array(scheduled, pa.int64()),
        "dispatched_us": pa.array([at + rng.randint(0, late) for at in scheduled], pa.int64()),
    }
    return made | {"requests": requests, "dispatches": pa.table(dispatches).cast(DISPATCHES)}
