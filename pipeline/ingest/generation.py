"""One generation as a log tells it, before it has a place in the canonical trace. Knows no file format."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


class RowRefused(Exception):
    """This row cannot be taken: the column at fault and the reason, never the content."""

    def __init__(self, column: str, reason: str):
        super().__init__(f"{column}: {reason}")
        self.column, self.reason = column, reason


@dataclass
class Generation:
    """One model output with its prompt: as token ids, or as chat messages still to be tokenised.

    `messages` are the messages before the output and `answer` is the output message; both None when ids are given.
    """

    request_id: str
    session_id: str | None = None
    turn: int | None = None
    sample: int = 0
    tenant: str | None = None
    workload: str | None = None
    model: str | None = None
    arrival: datetime | None = None
    prompt_token_ids: list[int] | None = None
    output_token_ids: list[int] | None = None
    tail_token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    answer: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    sampling: dict[str, Any] | None = None
    finish_reason: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def text_field(record: dict[str, Any], name: str) -> str | None:
    """A name as text: numbers keep their digits, absent and null are None.

    Raises:
        RowRefused: the value is a list or an object.
    """
    value = record.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(value)
    raise RowRefused(name, f"expected text, found {type(value).__name__}")


def token_ids(record: dict[str, Any], name: str) -> list[int] | None:
    """A list of token ids, or None where the record has none.

    Raises:
        RowRefused: something in it is no integer from 0 to 2**31 - 1; names the position and the value.
    """
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, Iterable) or isinstance(value, str | dict):
        raise RowRefused(name, f"expected a list of token ids, found {type(value).__name__}")
    out = []
    for i, item in enumerate(value):
        whole = int(item) if isinstance(item, float) and item.is_integer() else item
        if isinstance(whole, bool) or not isinstance(whole, int) or not 0 <= whole < 2**31:
            raise RowRefused(name, f"position {i} holds {item!r}, which is no token id (0 to 2**31-1)")
        out.append(whole)
    return out


def moment(record: dict[str, Any], name: str) -> datetime | None:
    """An instant: ISO 8601 with a zone, or seconds since 1970.

    Raises:
        RowRefused: not an instant, or a text without a zone.
    """
    value = record.get(name)
    if value is None or isinstance(value, datetime):
        return value
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        parsed = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        raise RowRefused(name, f"{value!r} is no time (ISO 8601 with a zone, or seconds since 1970)") from None
    if parsed.tzinfo is None:
        raise RowRefused(name, f"{value!r} has no time zone; write it with one (for example a trailing Z)")
    return parsed.astimezone(UTC)
