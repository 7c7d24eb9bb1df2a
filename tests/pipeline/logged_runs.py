"""Random and golden step logs, committed as runs, for tests of the read side.

A request is given as its decode steps, plain tuples; what a view should say is counted from these tuples, never from
the tables made of them.
"""

import random
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.rollups import rollups
from replay.steps import NOT_VERIFIED, StepLog
from schemas.speculative import proposer_key
from schemas.tables import ENGINE_STEPS, MISS_REASONS, REQUESTS


@dataclass(frozen=True)
class Step:
    """One decode step; `accepted` None = never verified."""

    drafted: int
    accepted: int | None
    filler: int = 0
    overrun: int = 0
    miss: str | None = None

    @property
    def proposed(self) -> int:
        return self.drafted - self.filler

    @property
    def real(self) -> int:
        return min(self.accepted, self.proposed)


@dataclass(frozen=True)
class Request:
    """One request and its steps. `output_tokens` None = 1 + what the steps put out."""

    steps: list[Step]
    workload: str = "chat"
    tenant: str = "(none)"
    output_tokens: int | None = None
    request_id: str = ""
    digest: str | None = None

    @property
    def verified(self) -> list[Step]:
        return [s for s in self.steps if s.accepted is not None]

    @property
    def emitted(self) -> int:
        return max(self.length - 1, 0)

    @property
    def length(self) -> int:
        if self.output_tokens is not None:
            return self.output_tokens
        return 1 + sum(s.accepted + 1 - s.overrun for s in self.verified)


@dataclass(frozen=True)
class Run:
    """What one run committed: requests per proposer, and iterations (dicts) per proposer when it was live."""

    requests: dict[str, list[Request]]
    concurrency: int = 1
    iterations: dict[str, list[dict]] = field(default_factory=dict)
    kv_cache: dict[str, dict] = field(default_factory=dict)


def random_request(rng: random.Random, filler: bool = True) -> Request:
    """A request of 0 to 8 steps: misses, filler, unverified steps, any acceptance, sometimes an overrun at the end."""
    workload = rng.choice(["edit", "chat [8B]: v1.2", "extract"])
    tenant = rng.choice(["acme", "(none)"])
    kind = rng.random()
    if kind < 0.1:
        return Request([], workload, tenant, output_tokens=0)
    if kind < 0.2:
        return Request([], workload, tenant, output_tokens=1)
    steps = []
    for _ in range(rng.randint(1, 8)):
        drafted = rng.choice([0, 0, 1, 2, 4, 5])
        padding = rng.randint(0, drafted) if filler and rng.random() < 0.3 else 0
        miss = None if drafted > padding else rng.choice(MISS_REASONS[1:])
        accepted = None if rng.random() < 0.1 else rng.choice([0, drafted, rng.randint(0, drafted)])
        steps.append(Step(drafted, accepted, padding, 0, miss))
    last = steps[-1]
    if last.accepted and rng.random() < 0.5:
        steps[-1] = Step(last.drafted, last.accepted, last.filler, rng.randint(1, last.accepted), last.miss)
    return Request(steps, workload, tenant)


def random_run(seed: int, requests: int = 40, live: bool = False) -> Run:
    """Two proposers over the same requests; a live run has `none` too, engine iterations and output digests."""
    rng = random.Random(seed)
    names = ["suffix", "ngram 2-4 k5"]
    drawn = {name: [random_request(rng) for _ in range(requests)] for name in names}
    if not live:
        return Run(drawn)
    drawn["none"] = [Request([], r.workload, r.tenant, r.length) for r in drawn["suffix"]]
    digests = {name: [Request(**{**vars(r), "digest": rng.choice("ab")}) for r in rs] for name, rs in drawn.items()}
    iterations = {name: [_iteration(rng, name) for _ in range(30)] for name in drawn}
    kv_cache = {name: {"kv_cache_tokens": rng.randint(1000, 9000), "max_concurrency": 2.5} for name in drawn}
    return Run(digests, 8, iterations, kv_cache)


def _iteration(rng: random.Random, name: str) -> dict:
    draft = 0 if name == "none" else rng.randint(1, 500)
    verify = rng.randint(500, 2000)
    return {
        "sequences": 8,
        "prefill_tokens": rng.choice([0, 0, 0, 64]),
        "decode_tokens": 8,
        "draft_tokens": 0,
        "emitted": rng.randint(0, 20),
        "step_us": draft + verify + 100,
        "verify_us": verify,
        "draft_us": draft,
    }


def commit(warehouse, name: str, run: Run, finished: bool = True, rolled: bool = True) -> None:
    """Write a run the way a replay does: its plan, one shard per proposer, then what came of it.

    `rolled` False = without rollups, as older warehouses are.
    """
    kind = "vllm" if run.iterations else "recorded"
    plan = {"trace": {"name": "demo"}, "engine": {"kind": kind, "runner": "v1"}, "label": kind}
    warehouse.write_plan(name, plan)
    for number, (proposer, requests) in enumerate(run.requests.items()):
        made = tables(run, proposer, requests)
        warehouse.commit_shard(name, f"{number:04d}", made | (rollups(made) if rolled else {}))
    if finished:
        shards = warehouse.committed(name)
        done = {"status": "complete", "reconciled": True, "proposers": run.kv_cache, "shards": shards}
        warehouse.write_done(name, done)


def tables(run: Run, proposer: str, requests: list[Request]) -> dict[str, pa.Table]:
    """The shard of one proposer."""
    log = step_log(requests)
    made = {"requests": requests_table(run, proposer, requests, log)}
    if len(log):
        made["decode_steps"] = log.table(proposer, run.concurrency)
    if proposer in run.iterations:
        made["engine_steps"] = _engine_table(proposer, run)
    return made


def step_log(requests: list[Request]) -> StepLog:
    """The requests' steps as the arrays a replay produces."""
    rows = [(i, n + 1, step) for i, request in enumerate(requests) for n, step in enumerate(request.steps)]
    return StepLog.of(
        len(requests),
        [i for i, _, _ in rows],
        [n for _, n, _ in rows],
        [s.drafted for _, _, s in rows],
        [NOT_VERIFIED if s.accepted is None else s.accepted for _, _, s in rows],
        [s.overrun for _, _, s in rows],
        [MISS_REASONS.index(s.miss) for _, _, s in rows],
        [s.filler for _, _, s in rows],
    )


def prefix_hit(i: int) -> int:
    """Prompt tokens that request i of a live run found in the prefix cache."""
    return 32 * (i % 3)


def requests_table(run: Run, proposer: str, requests: list[Request], log: StepLog) -> pa.Table:
    """The `requests` rows of one proposer. `none` logs no steps: it takes T - 1 of them."""
    n = len(requests)
    method = proposer.split()[0]
    counts = {name: values.tolist() for name, values in log.counts().items() if name != "emitted"}
    if method == "none":
        counts["steps"] = [r.emitted for r in requests]
    columns = counts | {
        "proposer": [proposer] * n,
        "concurrency": [run.concurrency] * n,
        "proposer_key": [proposer_key({"method": method}, "v1")] * n,
        "request": list(range(n)),
        "request_id": [r.request_id or f"{9007199254740993 + i}" for i, r in enumerate(requests)],
        "tenant": [r.tenant for r in requests],
        "workload": [r.workload for r in requests],
        "prompt_tokens": [100] * n,
        "output_tokens": [r.length for r in requests],
        "output_digest": [r.digest for r in requests],
        "prefix_cache_hit_tokens": [prefix_hit(i) if run.iterations else None for i in range(n)],
    }
    return pa.table(
        {f.name: pa.array(columns.get(f.name, [None] * n), f.type) for f in REQUESTS},
        schema=REQUESTS,
    )


def _engine_table(proposer: str, run: Run) -> pa.Table:
    rows = run.iterations[proposer]
    fixed = {"proposer": proposer, "concurrency": run.concurrency}
    return pa.Table.from_pylist(
        [{**row, **fixed, "engine_step": i, "started_us": i * 3000} for i, row in enumerate(rows)], schema=ENGINE_STEPS
    )
