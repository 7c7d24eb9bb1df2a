"""What a proposer's numbers are: live, recorded and exact, or recorded and a proxy, with the reason.

Reads lengths and what the trace says of itself; token ids stay where they are, but for the short tails.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.plan import Plan
from pipeline.warehouse import Warehouse
from replay.recorded.exactness import label, not_as_sampled
from replay.requests import Requests, Tokens
from schemas.config import Proposer
from schemas.history import History

_SAID = "model sampling finish_reason extra".split()


def labels(planned: Plan, warehouse: Warehouse) -> dict[str, dict[str, str]]:
    """{proposer: {label, reason}}: label is "live", "exact", "proxy" or "hypothetical"; live has no reason."""
    if planned.live:
        return {proposer.name: {"label": "live"} for proposer in planned.config.proposer}
    config = planned.config
    requests = _lengths_only(planned, warehouse)
    engine = config.engine
    out = {}
    for proposer in config.proposer:
        kind, reason = label(
            requests,
            proposer.config,
            target=engine.model,
            sampling=engine.sampling or None,
            max_model_len=None if config.trace.max_model_len == "none" else config.trace.max_model_len,
            # Recorded replay walks one sequence at a time, and its rows say so, unless the config asks for more.
            concurrency=max(engine.concurrencies) if "concurrency" in engine.model_fields_set else 1,
            runner=engine.runner,
        )
        if proposer.history is not None:
            reason += f"; {_served(proposer.history)}"
            if before := _warmed(planned, proposer, warehouse):
                kind, reason = "proxy", f"{reason}, where {before}"
        out[proposer.name] = {"label": kind, "reason": reason}
    return out


def _served(history: History) -> str:
    """Which deployment of vLLM these are the counts of: it knows no tenants, so each has an engine of its own."""
    if history.scope == "none":
        return "no outputs of earlier requests, as with suffix_decoding_max_cached_requests = 0"
    each = ["each tenant"] if history.scope == "tenant" else []
    if history.replicas > 1:
        each.append(f"each of {history.replicas} replicas ({history.routing.replace('_', ' ')} routing)")
    served = f"one engine for {' on '.join(each)}" if each else "one engine"
    if history.warm_with is None:
        return f"{served}, cold"
    what = "trace" if isinstance(history.warm_with, str) else "requests"
    return f"{served}, warmed with {what} {history.warm_with}"


def _warmed(planned: Plan, proposer: Proposer, warehouse: Warehouse) -> str:
    """Why the tree may have been warmed with other ids than the target sampled; "" if not known."""
    units = [unit for unit in planned.units if unit.proposer.name == proposer.name and len(unit.warm)]
    if not units or units[0].warm_trace is None:
        return ""
    rows = np.concatenate([unit.warm for unit in units])
    meta = warehouse.read_trace(units[0].warm_trace, ["extra"], rows)
    nothing = _hollow(np.zeros(len(rows), np.int64))
    return not_as_sampled(Requests(nothing, nothing, nothing, meta))


def _lengths_only(planned: Plan, warehouse: Warehouse) -> Requests:
    """The selected requests with offsets but no ids: lengths are right, ids must not be asked for."""
    trace = planned.trace
    first = planned.config.proposer[0].name
    rows = np.concatenate([unit.rows for unit in planned.units if unit.proposer.name == first])
    meta = warehouse.read_trace(trace.name, [*_SAID, "prompt_tokens", "output_tokens"], rows)
    tails = np.zeros(len(rows), np.int64)
    if trace.with_tails:
        tails = Tokens.of_column(warehouse.read_trace(trace.name, ["tail_token_ids"], rows).column(0)).lengths
    lengths = [meta.column(name).to_numpy() for name in ("prompt_tokens", "output_tokens")]
    return Requests(*(_hollow(values) for values in (*lengths, tails)), meta)


def _hollow(lengths: np.ndarray | Sequence[int]) -> Tokens:
    return Tokens(np.zeros(0, np.int32), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
