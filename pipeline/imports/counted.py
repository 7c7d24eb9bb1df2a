"""One output as another tool counted it, and the checks on numbers that every format needs. Knows no format."""

from dataclasses import dataclass
from typing import Any

from pipeline.ingest.generation import RowRefused
from schemas.tables import NO_GROUP

SUMMED = ("prompt_tokens", "output_tokens", "steps", "rounds", "drafted", "accepted")
"""Columns that hold counts."""

_MOST = 2**31 - 1
_LATEST = 2**61
"""In microseconds: three such times added up still fit a column."""


@dataclass(frozen=True)
class Counted:
    """One output. Columns are those of the table `requests`; None = the tool does not say."""

    request_id: str
    """Unique among the outputs of one proposer."""
    output_tokens: int | None
    proposer: str | None = None
    """None: the file is called after it."""
    session_id: str | None = None
    turn: int | None = None
    workload: str = NO_GROUP
    prompt_tokens: int | None = None
    steps: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    longest: int = 0
    """k, the most candidates a round may hold; 0 where that is not logged."""
    finish_reason: str | None = None
    first_token_us: int | None = None
    finished_us: int | None = None

    def __post_init__(self) -> None:
        """Hold sums of counts to what a column takes.

        Raises:
            RowRefused: a count is more than 2^31 - 1; names the column.
        """
        for column in SUMMED:
            if (value := getattr(self, column)) is not None and value > _MOST:
                raise RowRefused(column, f"comes to {value}, more than any request has")


def whole(value: Any, column: str) -> int:
    """The value, if it is a count.

    Raises:
        RowRefused: no whole number from 0 to 2^31 - 1; names the column.
    """
    if type(value) is not int or not 0 <= value <= _MOST:
        raise RowRefused(column, "must be a whole number, 0 or more", _shown(value))
    return value


def wholes(value: Any, column: str) -> list[int]:
    """The value, if it is a list of counts.

    Raises:
        RowRefused: no list, or one with something else in it; names the column and the place.
    """
    if not isinstance(value, list):
        raise RowRefused(column, "must be a list of whole numbers")
    return [whole(each, f"{column}[{place}]") for place, each in enumerate(value)]


def microseconds(time: Any, unit: float) -> int | None:
    """A time in microseconds, `unit` of which make one of its own; None where it is no time."""
    return round(time * unit) if type(time) in (int, float) and 0 <= time < _LATEST / unit else None


def _shown(value: Any) -> str:
    """A number as it stands; of anything else its type, for it may be content."""
    return f"is {value!r}" if type(value) in (int, float, bool, type(None)) else f"is a {type(value).__name__}"
