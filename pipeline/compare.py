"""What changed between two runs, or between the proposers of one: tokens per step, split into its causes, or noise.

    E / S = 1 + coverage * (mean acceptance length - 1) + accepted filler / S - overrun / S

is exact, so a change of tokens per step is the sum of a coverage part (change of coverage, at the mean of both
lengths), an acceptance part (change of length, at the mean of both coverages), a filler part and an overrun part.
Counts come from request_summary; intervals resample sessions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.output import text
from pipeline.report_tables import FEW_SESSIONS
from pipeline.statistics import bootstrap
from pipeline.views import Connection, query
from schemas.errors import InputError

PARTS = ("coverage", "acceptance", "filler", "overrun")

_COUNTS = ("steps", "rounds", "accepted", "filler", "overrun")  # steps first: the size of a session
_SESSIONS = """
    SELECT
        coalesce('s' || session_id, 'r' || request_id) AS session,
        sum(steps)::bigint AS steps,
        sum(rounds)::bigint AS rounds,
        sum(accepted)::bigint AS accepted,
        sum(engine_accepted - accepted)::bigint AS filler,
        sum(steps + engine_accepted - emitted)::bigint AS overrun
    FROM request_summary
    WHERE run = ? AND proposer = ? AND concurrency = ?
    GROUP BY ALL
"""

_Side = tuple[str, str, int]
"""(run, proposer, concurrency)."""


@dataclass(frozen=True)
class Change:
    """From one (run, proposer, concurrency) to another. Fractions are exact: the parts add up to the change of tokens
    per step.

    `before` and `after`: coverage, mean_acceptance_length and tokens_per_step, None where undefined. `intervals`: 95 %,
    of "change" and of each part; None with fewer than 2 sessions.
    """

    before_name: str
    after_name: str
    before: dict[str, Fraction | None]
    after: dict[str, Fraction | None]
    change: Fraction | None
    parts: dict[str, Fraction]
    intervals: dict[str, tuple[float, float] | None]
    sessions: int
    unpaired: str | None
    """Why sessions could not be compared one by one; None = they were."""
    settings_differ: bool
    concurrencies: tuple[int, int]
    """Before and after."""

    @property
    def noise(self) -> bool | None:
        """Whether sessions drawn anew could as well show no change or the opposite one; None = cannot be said."""
        interval = self.intervals.get("change")
        return None if interval is None else interval[0] <= 0 <= interval[1]

    @property
    def verdict(self) -> str:
        """The same in a word or two."""
        if self.change == 0:
            return "no change"
        return {None: "cannot be said", True: "noise", False: "real"}[self.noise]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: floats, None where undefined."""
        return {
            "before": {"name": self.before_name} | _floats(self.before),
            "after": {"name": self.after_name} | _floats(self.after),
            "change": _float(self.change),
            "parts": _floats(self.parts),
            "intervals": self.intervals,
            "sessions": self.sessions,
            "unpaired": self.unpaired,
            "settings_differ": self.settings_differ,
            "concurrencies": list(self.concurrencies),
            "noise": self.noise,
        }


def compare(con: Connection, before: str, after: str | None = None) -> list[Change]:
    """Each proposer that two runs have in common; or each proposer of one run against its best, most tokens first.

    Concurrencies are kept apart: proposers of one run are compared at the same one, and so are two runs, unless each
    has a single one of its own.

    Args:
        con: from `pipeline.views.connect`.
        before: a run.
        after: another run; None = compare the proposers of `before`.

    Raises:
        InputError: no such run, no proposer or concurrency in common, or fewer than two proposers in the run.
    """
    keys = {run: _proposers(con, run) for run in (before, after) if run is not None}
    if after is None:
        pairs = []
        for concurrency in sorted({at for _, at in keys[before]}):
            best, *others = (name for name, at in keys[before] if at == concurrency)
            pairs += [((before, best, concurrency), (before, other, concurrency)) for other in others]
        if not pairs:
            raise InputError(f"run {before} has one proposer: name a second run to compare it with")
        return [_change(con, *pair, None, False) for pair in pairs]
    at_one = all(len({at for _, at in keys[run]}) == 1 for run in (before, after))
    common = [
        ((before, name, at), (after, name, other))
        for name, at in keys[before]
        for same, other in keys[after]
        if name == same and (at_one or at == other)
    ]
    if not common:
        what = "proposer" if at_one else "proposer at the same concurrency"
        said = [", ".join(n if at_one else f"{n} at {at}" for n, at in keys[run]) for run in (before, after)]
        raise InputError(f"no {what} in common: {before} has {said[0]}; {after} has {said[1]}")
    traces = [
        query(con, "SELECT trace_fingerprint AS f, trace FROM run_info WHERE run = ?", [run]).to_pylist()[0]
        for run in (before, after)
    ]
    unpaired = None
    if traces[0]["f"] != traces[1]["f"]:
        unpaired = f"the traces differ ({traces[0]['trace']}, {traces[1]['trace']})"
    return [_change(con, a, b, unpaired, keys[before][a[1:]] != keys[after][b[1:]]) for a, b in common]


def parts_of(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The change of tokens per step and its parts: (..., 5), "change" and then PARTS.

    Exact for object arrays of Fractions. Where one side has no rounds, its length is undefined and all of the product's
    change is coverage's.

    Args:
        before: totals (..., 5) of steps, rounds, accepted, accepted filler, overrun; likewise `after`.
    """
    (s0, r0, c0, f0, o0), (s1, r1, c1, f1, o1) = np.moveaxis(before, -1, 0), np.moveaxis(after, -1, 0)
    coverage0, coverage1 = _over(r0, s0), _over(r1, s1)
    length0, length1 = _over(c0, r0), _over(c1, r1)
    length0, length1 = np.where(r0 == 0, length1, length0), np.where(r1 == 0, length0, length1)
    parts = [
        (coverage1 - coverage0) * (length0 + length1) / 2,
        (length1 - length0) * (coverage0 + coverage1) / 2,
        _over(f1, s1) - _over(f0, s0),
        _over(o0, s0) - _over(o1, s1),
    ]
    return np.stack([sum(parts), *parts], axis=-1)


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    nothing = whole == 0
    return np.where(nothing, 0 * part, part / np.where(nothing, 1, whole))


def _proposers(con: Connection, run: str) -> dict[tuple[str, int], str]:
    """Keys of a run's proposers by name and concurrency, most tokens per step first."""
    sql = (
        "SELECT proposer, concurrency, proposer_key FROM proposer_summary WHERE run = ? "
        "ORDER BY tokens_per_step DESC NULLS LAST, proposer"
    )
    rows = query(con, sql, [run]).to_pylist()
    if not rows:
        known = query(con, "SELECT run FROM run_info ORDER BY started NULLS FIRST, run")["run"].to_pylist()
        listed = f"there are: {', '.join(known[-10:])}" if known else "the warehouse holds none yet"
        raise InputError(f"no numbers of a run {run!r}; {listed}")
    return {(row["proposer"], row["concurrency"]): row["proposer_key"] for row in rows}


def _change(con: Connection, before: _Side, after: _Side, unpaired: str | None, settings_differ: bool) -> Change:
    a, b = (query(con, _SESSIONS, side).to_pydict() for side in (before, after))
    for (run, name, _), side in ((before, a), (after, b)):
        if unknown := [count for count in _COUNTS if None in side[count]]:
            raise InputError(
                f"run {run}: the counts of {name} were imported and lack {', '.join(unknown)}, which a "
                "comparison needs; specreplay report shows what they say"
            )
    if unpaired is None and not _same_requests(con, before, after):
        unpaired = "the runs hold other requests of the trace"
    first, second = (np.array([side[name] for name in _COUNTS], float).T.reshape(-1, len(_COUNTS)) for side in (a, b))
    if unpaired is None:
        place = {session: i for i, session in enumerate(b["session"])}
        second = second[[place[session] for session in a["session"]]]
        samples, sessions = [np.hstack([first, second])], len(first)
        split = len(_COUNTS)
        low, high = bootstrap(samples, lambda t: parts_of(t[..., :split], t[..., split:]))
    else:
        sessions = min(len(first), len(second))
        low, high = bootstrap([first, second], parts_of)
    exact = [np.array([Fraction(sum(side[name])) for name in _COUNTS], dtype=object) for side in (a, b)]
    defined = all(totals[0] != 0 for totals in exact)
    made = parts_of(*exact)
    names = ("change", *PARTS)
    intervals = {
        name: (float(least), float(most)) if defined and not np.isnan(least) else None
        for name, least, most in zip(names, low, high, strict=True)
    }
    return Change(
        before[1],
        after[1],
        *(_rates(totals) for totals in exact),
        made[0] if defined else None,
        dict(zip(PARTS, made[1:], strict=True)) if defined else {},
        intervals,
        sessions,
        unpaired,
        settings_differ,
        (before[2], after[2]),
    )


def _same_requests(con: Connection, before: _Side, after: _Side) -> bool:
    one = "SELECT request_id FROM request_summary WHERE run = ? AND proposer = ? AND concurrency = ?"
    sql = (
        f"SELECT count(*) AS n FROM ({one}) AS a FULL JOIN ({one}) AS b USING (request_id) "
        "WHERE a.request_id IS NULL OR b.request_id IS NULL"
    )
    return query(con, sql, [*before, *after])["n"].to_pylist() == [0]


def _rates(totals: Iterable[Fraction]) -> dict[str, Fraction | None]:
    steps, rounds, accepted, filler, overrun = totals
    return {
        "coverage": rounds / steps if steps else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        "tokens_per_step": (steps + accepted + filler - overrun) / steps if steps else None,
    }


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _floats(values: Mapping[str, Fraction | None]) -> dict[str, float | None]:
    return {name: _float(value) for name, value in values.items()}


def lines(changes: Iterable[Change]) -> list[dict[str, str]]:
    """Rows for a terminal table, without the parts' intervals; filler and overrun are left out where they are 0."""
    changes = list(changes)
    several = len({c.concurrencies for c in changes}) > 1
    shown = [part for part in PARTS if part in PARTS[:2] or any(c.parts.get(part) for c in changes)]
    return [
        {
            "from": c.before_name,
            "to": c.after_name,
            **({"concurrency": str(c.concurrencies[1])} if several else {}),
            "tokens/step": f"{text(_float(c.before['tokens_per_step']))} → {text(_float(c.after['tokens_per_step']))}",
            "change": _signed(c.change, c.intervals["change"]),
            **{f"of it {part}": _signed(c.parts.get(part), None) for part in shown},
            "sessions": f"{c.sessions:,}" + (" few" if c.sessions < FEW_SESSIONS else ""),
            "verdict": c.verdict,
        }
        for c in changes
    ]


def notes(changes: Iterable[Change]) -> list[str]:
    """What a reader must know besides, one line each."""
    changes = list(changes)
    out = [f"compared session by session: no, {why}" for why in dict.fromkeys(c.unpaired for c in changes) if why]
    if differ := sorted({c.concurrencies for c in changes if c.concurrencies[0] != c.concurrencies[1]}):
        out.append(f"the runs' concurrencies differ: {differ[0][0]} before, {differ[0][1]} after")
    out += [f"{c.after_name}: its settings differ between the runs" for c in changes if c.settings_differ]
    if any(c.sessions < FEW_SESSIONS for c in changes):
        out.append(f"few: under {FEW_SESSIONS} sessions, so take the interval and the verdict as rough")
    if any(c.parts.get("overrun") for c in changes):
        out.append("overrun: tokens past the end of an output, which a longer draft throws away more of")
    return out


def _signed(value: Fraction | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return "n/a"
    return f"{float(value):+.3f}" + (f" [{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else "")
