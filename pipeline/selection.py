"""Which requests of a trace a config selects, and in which order they were served.

Reads the light columns that it is given; knows no token and no proposer.
"""

import difflib
import hashlib
from collections.abc import Sequence
from datetime import date

import numpy as np
import pyarrow as pa

from pipeline.output import plain
from pipeline.tracefiles import TraceInfo
from pipeline.warehouse import Warehouse
from schemas.config import TraceSection
from schemas.errors import InputError
from schemas.tables import NO_GROUP

_DAY_US = 86_400_000_000
_NAMED = 20
"""Names that an error lists."""


def select(meta: pa.Table, section: TraceSection) -> np.ndarray:
    """Positions (int64) of the requests that pass the filters, by arrival, then in source order.

    Requests without an arrival come after those with one, by their offset where they have that.

    Args:
        meta: the trace's columns session_id, request_id, tenant, workload, arrival and arrival_offset_us.
        section: the filters.

    Raises:
        InputError: a filter names what the trace does not hold, or leaves nothing; names the filter and what there is
            to choose from.
    """
    keep = np.ones(meta.num_rows, bool)
    for column in ("workload", "tenant"):
        if wanted := getattr(section, column):
            values = np.array(meta.column(column).fill_null(NO_GROUP).to_pylist(), object)
            _must_be_known(section, column, wanted, set(values))
            text = f"{column} = {wanted!r}"
            keep = _narrow(keep, np.isin(values, wanted), section, text, f"there are: {_listed(set(values[keep]))}")
    arrival = meta.column("arrival").cast(pa.int64())
    known_arrival = arrival.is_valid().to_numpy()
    when = arrival.fill_null(0).to_numpy()
    if section.date_from or section.date_to:
        day = when // _DAY_US
        low, high = _day(section.date_from, -(10**9)), _day(section.date_to, 10**9)
        seen = keep & known_arrival
        days = (
            f"{_iso(day[seen].min())} to {_iso(day[seen].max())}" if seen.any() else "no request says when it arrived"
        )
        text = f"dates {section.date_from or '…'} to {section.date_to or '…'} (UTC)"
        keep = _narrow(keep, known_arrival & (day >= low) & (day <= high), section, text, f"there are: {days}")
    if section.sample < 1:
        keys = zip(meta.column("session_id").to_pylist(), meta.column("request_id").to_pylist(), strict=True)
        drawn = np.array([_draw(section.seed, s if s is not None else r) < section.sample for s, r in keys], bool)
        text = f"sample = {section.sample}"
        keep = _narrow(keep, drawn, section, text, "take a larger fraction or another seed")
    offset = meta.column("arrival_offset_us")
    rows = np.flatnonzero(keep)
    order = np.lexsort(
        (
            rows,
            offset.fill_null(0).to_numpy()[rows],
            ~offset.is_valid().to_numpy()[rows],
            when[rows],
            ~known_arrival[rows],
        )
    )
    return rows[order]


def arrivals(requests: pa.Table, trace: str) -> np.ndarray:
    """When each request arrived, in µs since the first of them (int64).

    Args:
        requests: columns request_id, arrival and arrival_offset_us.
        trace: its name, for errors.

    Raises:
        InputError: one does not say when, by the same clock as the others; names it.
    """
    lacks = {}
    for column in ("arrival", "arrival_offset_us"):
        lacks[column] = requests.column(column).is_null().to_numpy()
        if not lacks[column].any():
            when = requests.column(column).cast(pa.int64()).to_numpy()
            return when - when.min()
    neither = np.flatnonzero(np.logical_and(*lacks.values()))
    first = int(neither[0] if len(neither) else np.flatnonzero(lacks["arrival"])[0])
    said = "does not say when it arrived" if len(neither) else "has an offset where others have a time of arrival"
    raise InputError(
        f"trace {trace}: request {requests.column('request_id')[first].as_py()!r} {said}, "
        'which pace = "arrival" needs; take pace = "closed"'
    )


def with_outputs(warehouse: Warehouse, trace: TraceInfo, rows: np.ndarray) -> np.ndarray:
    """Which of the requests hold output ids, bool."""
    if trace.with_outputs == trace.requests:
        return np.ones(len(rows), bool)
    return warehouse.read_trace(trace.name, ["output_token_ids"], rows).column(0).is_valid().to_numpy()


def _narrow(keep: np.ndarray, passes: np.ndarray, section: TraceSection, text: str, hint: str) -> np.ndarray:
    left = keep & passes
    if not left.any():
        raise InputError(f"trace {section.name}: {text} leaves none of {int(keep.sum())} requests; {hint}")
    return left


def _must_be_known(section: TraceSection, column: str, wanted: Sequence[str], names: set[str]) -> None:
    """A name that is not in the trace is a slip, also beside one that is."""
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), 1)
            hint = f" (nearest: {plain(near[0], 60)})" if near else ""
            said = f"no request has {column} = {plain(name, 60)!r}{hint}"
            raise InputError(f"trace {section.name}: {said}; there are: {_listed(names)}")


def _listed(names: set[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(plain(name, 60) for name in ordered[:_NAMED]) + more


def _day(day: date | None, default: int) -> int:
    return default if day is None else (day - date(1970, 1, 1)).days


def _iso(day: int) -> str:
    return str(np.datetime64(int(day), "D"))


def _draw(seed: int, key: str) -> float:
    """A number in [0, 1) that depends on seed and key alone, on every machine and in every version."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=6).digest(), "big") / 2**48
