"""Size of a warehouse and time of every query the dashboard asks, from rollups and from raw decode steps.

    python tests/benchmarks/warehouse_views.py [--steps 5000000] [--runs 1000]

Steps are drawn at random (6 proposers, 8 workloads, 40 tenants, requests of about 200 steps, rates by request) and
committed in shards the way a replay does; then every query of `dashboards/data.py` is timed, best of 3, on the clock
and in processor time (on a busy machine the clock says little). A warehouse of `runs` small runs times the opening.
Prints one JSON object. Random steps compress worse than real ones, which repeat.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from dashboards import data
from pipeline.rollups import rollups
from pipeline.views import Connection, connect, query
from pipeline.warehouse import Warehouse
from replay.steps import StepLog
from schemas.tables import REQUESTS, ROLLUPS

PROPOSERS = [f"proposer {i}" for i in range(6)]
WORKLOADS, TENANTS, SESSION, K = 8, 40, 4, 8
SHARD = 4_000_000  # steps
QUERIES: dict[str, Callable[[], object]] = {
    "runs": data.runs,
    "labels": lambda: data.labels("big"),
    "values": lambda: data.values("big", "tenant"),
    "concurrencies": lambda: data.concurrencies("big"),
    "proposers": lambda: data.proposers("big", 1),
    "proposers of a tenant": lambda: data.proposers("big", 1, tenant="tenant 7"),
    "points": lambda: data.points("big", 1),
    "misses": lambda: data.misses("big", 1),
    "positions": lambda: data.positions("big", 1),
    "positions of a workload": lambda: data.positions("big", 1, workload="workload 3"),
    "positions by workload": lambda: data.workload_positions("big", 1, "proposer 2"),
    "lookups": lambda: data.lookups("big", 1),
}


def shard(rng: np.random.Generator, proposer: str, first: int, steps: int) -> dict[str, pa.Table]:
    """`requests` and `decode_steps` of about `steps` steps; requests from position `first` on."""
    lengths = np.maximum(rng.lognormal(5.0, 0.8, max(steps // 200, 1)).astype(np.int64), 1)
    n, rows = len(lengths), int(lengths.sum())
    request = np.repeat(np.arange(n), lengths)
    step = np.arange(rows) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
    hit = rng.random(rows) < np.repeat(rng.beta(2, 2, n), lengths)
    drafted = np.where(hit, np.minimum(rng.geometric(0.25, rows), K), 0)
    accepted = np.minimum(np.where(rng.random(rows) < 0.3, K, rng.geometric(0.4, rows) - 1), drafted)
    log = StepLog.of(
        n, request, step, drafted, accepted, np.zeros(rows), np.where(hit, 0, 1 + (rng.random(rows) < 0.1))
    )
    counts = {name: values for name, values in log.counts().items() if name in REQUESTS.names}
    at = np.arange(first, first + n)
    given = {
        **counts,
        "proposer": [proposer] * n,
        "concurrency": np.ones(n, np.int32),
        "proposer_key": [proposer] * n,
        "request": at,
        "request_id": [f"request-{i:09d}" for i in at],
        "session_id": [f"session-{i // SESSION:09d}" for i in at],
        "tenant": [f"tenant {i // SESSION % TENANTS}" for i in at],
        "workload": [f"workload {i // SESSION % WORKLOADS}" for i in at],
        "prompt_tokens": rng.integers(10, 4000, n),
        "output_tokens": log.counts()["emitted"] + 1,
        "arrival": 1_790_000_000_000_000 + at * 50_000,
    }
    columns = {f.name: given.get(f.name) for f in REQUESTS}
    arrays = [
        pa.nulls(n, REQUESTS.field(k).type) if v is None else _array(v, REQUESTS.field(k)) for k, v in columns.items()
    ]
    return {"requests": pa.table(arrays, schema=REQUESTS), "decode_steps": log.table(proposer, 1, first)}


def _array(values, field: pa.Field) -> pa.Array:
    return pa.array(np.asarray(values, np.int64) if pa.types.is_timestamp(field.type) else values).cast(field.type)


def fill(house: Warehouse, run: str, steps: int, rolled: bool) -> dict[str, float]:
    """Commit a run of about `steps` steps over all proposers; what it took, in seconds."""
    rng, took = np.random.default_rng(1), {"commit_s": 0.0, "rollup_s": 0.0}
    plan = house.write_plan(
        run, {"trace": {"name": "synthetic"}, "engine": {"kind": "recorded"}, "started": "2026-11-29T00:00:00Z"}
    )
    for number, proposer in enumerate(PROPOSERS):
        own, first = steps // len(PROPOSERS), 0
        for part in range(-(-own // SHARD)):
            made = shard(rng, proposer, first, min(SHARD, own - part * SHARD))
            first += -(-made["requests"].num_rows // SESSION) * SESSION
            start = time.perf_counter()
            extra = rollups(made) if rolled else {}
            took["rollup_s"] += time.perf_counter() - start
            start = time.perf_counter()
            house.commit_shard(run, f"{number}-{part:04d}", made | extra)
            took["commit_s"] += time.perf_counter() - start
    house.write_done(run, _done(house, run, plan))
    return took


def _done(house: Warehouse, run: str, plan: dict) -> dict:
    return {"status": "complete", "reconciled": None, "shards": house.committed(run), "plan": plan}


def without_rollups(house: Warehouse) -> Warehouse:
    """The same files, committed by an older version: no rollup is named."""
    root = Path(tempfile.mkdtemp(dir=house.root.parent))
    old = Warehouse(root / "old")
    for record in house.runs():
        shards = {
            name: one | {"files": [f for f in one["files"] if f["table"] not in ROLLUPS]}
            for name, one in record.done["shards"].items()
        }
        for one in shards.values():
            for file in one["files"]:
                target = old.root / file["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(house.root / file["path"], target)
        old.write_plan(record.run, record.plan)
        old.write_done(record.run, record.done | {"shards": shards})
    return old


def timed(con: Connection) -> dict[str, list[float]]:
    """Milliseconds per query, the best of 3: [on the clock, of all processors]."""
    out = {}
    data.select = lambda sql, *parameters: query(con, sql, list(parameters))  # without the page's cache
    for name, ask in QUERIES.items():
        took = []
        for _ in range(3):
            start = time.perf_counter(), time.process_time()
            ask()
            took.append([time.perf_counter() - start[0], time.process_time() - start[1]])
        out[name] = [round(1000 * min(column), 1) for column in zip(*took, strict=True)]
    return out


def opening(folder: Path, runs: int) -> dict:
    """Seconds to open a warehouse of so many finished runs, and milliseconds to ask it for one of them; as `timed`."""
    house = Warehouse(folder)
    made = shard(np.random.default_rng(2), PROPOSERS[0], 0, 2000)
    made |= rollups(made)
    for i in range(runs):
        run = f"r{i:05d}" if i else "big"
        plan = house.write_plan(run, {"trace": {"name": "t"}, "started": f"2026-11-29T00:00:{i % 60:02d}Z"})
        house.commit_shard(run, "0", made)
        house.write_done(run, _done(house, run, plan))
    start = time.perf_counter(), time.process_time()
    con = connect(house)
    took = [round(time.perf_counter() - start[0], 3), round(time.process_time() - start[1], 3)]
    return {"runs": runs, "open_s": took, "query_ms": timed(con)}


def main() -> None:
    """Fill, ask, tell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        house = Warehouse(Path(folder) / "house")
        took = fill(house, "big", given.steps, rolled=True)
        files = [file for one in house.committed("big").values() for file in one["files"]]
        rows = sum(file["rows"] for file in files if file["table"] == "decode_steps")
        sizes = {}
        for file in files:
            sizes[file["table"]] = sizes.get(file["table"], 0) + (house.root / file["path"]).stat().st_size
        result = {
            "decode_steps": rows,
            "bytes_per_step": round(sizes["decode_steps"] / rows, 3),
            "bytes_per_step_everything": round(sum(sizes.values()) / rows, 3),
            "bytes": sizes,
            **{name: round(value, 2) for name, value in took.items()},
            "from_rollups_ms": timed(connect(house)),
            "from_raw_ms": timed(connect(without_rollups(house))),
            "opening": opening(Path(folder) / "many", given.runs),
            "load": os.getloadavg()[0],
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
