"""Deals requests out to the trees they share: a serving replica, and within it a tenant where tenants are isolated.

Each part is walked alone, with a tree of its own, so nothing of one part can be proposed in another. Knows ids of
requests, sessions and tenants; knows no token.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.tracefiles import TraceInfo
from schemas.errors import InputError
from schemas.history import Days, History
from schemas.tables import NO_GROUP

Part = tuple[int, str]
"""(replica, tenant); tenant is "" where all share."""


@dataclass(frozen=True)
class Warm:
    """What was served before the replay: a trace, and the rows of it that each part has seen (int64, in order)."""

    trace: TraceInfo
    rows: dict[Part, np.ndarray]


def parts(meta: pa.Table, history: History) -> dict[Part, np.ndarray]:
    """Positions in `meta` (int64, ascending) by part, parts in order of replica and tenant.

    >>> meta = pa.table({"session_id": ["a", None, "a"], "request_id": ["1", "2", "3"], "tenant": ["x", None, "x"]})
    >>> {part: rows.tolist() for part, rows in parts(meta, History(scope="tenant")).items()}
    {(0, '(none)'): [1], (0, 'x'): [0, 2]}

    Args:
        meta: columns session_id, request_id and tenant, in serving order.
        history: scope "global" or "tenant".
    """
    sessions, requests = meta.column("session_id").to_pylist(), meta.column("request_id").to_pylist()
    tenants = meta.column("tenant").fill_null(NO_GROUP).to_pylist() if history.scope == "tenant" else [""] * len(meta)
    found: dict[Part, list[int]] = {}
    for at, (session, request, tenant) in enumerate(zip(sessions, requests, tenants, strict=True)):
        if history.routing == "round_robin":
            replica = at % history.replicas
        else:
            replica = _hash(session if session is not None else request) % history.replicas
        found.setdefault((replica, tenant), []).append(at)
    return {part: np.array(found[part], np.int64) for part in sorted(found)}


def refuse_overlap(name: str, warm: np.ndarray, counted: np.ndarray, warm_with: str | Days) -> None:
    """A replay that has seen its own answers would count them as foresight.

    Raises:
        InputError: rows of the same trace are in both.
    """
    if n := len(np.intersect1d(warm, counted)):
        raise InputError(
            f"history.warm_with ({warm_with}) holds {n} of the requests that are counted; "
            f"keep them apart by [trace] date_from and date_to of {name}"
        )


def total(facts: Sequence[Mapping]) -> dict[str, int | float | None]:
    """The trees of a proposer's shards as one: sums, and the bytes per cached token that follow.

    Args:
        facts: `tree` facts of each shard (`replay.recorded.suffix_walk.SuffixMemory` and warm_requests, as a dict).
    """
    out: dict[str, int | float | None] = {"trees": len(facts)}
    out |= {name: sum(shard[name] for shard in facts) for name in facts[0]}
    tokens = out["cached_tokens"]
    return out | {"bytes_per_cached_token": sum(shard["used_bytes"] for shard in facts) / tokens if tokens else None}


def _hash(key: str) -> int:
    """The same on every machine and in every version."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
