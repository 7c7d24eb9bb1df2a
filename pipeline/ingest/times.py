"""Instants as logs write them: ISO 8601, RFC 1123, numbers since 1970. Which zone a text without one means is asked."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pipeline.ingest.generation import RowRefused, shown
from schemas.errors import InputError

_FAR = 2**62
"""Microseconds that no log spans: 146,000 years."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Seconds, milli-, micro- and nanoseconds since 1970 do not overlap between 1973 and 5138.
_UNITS = ((1e8, 1e11, 1_000_000), (1e11, 1e14, 1_000), (1e14, 1e17, 1), (1e17, 1e20, 0))

NAMES = ("arrival", "timestamp", "start_time", "startTime", "date", "time", "created_at", "createdAt", "created")


def moment(record: dict[str, Any], *names: str) -> datetime | None:
    """When it happened, of the first of `names` that says so: with a zone (UTC), or naive where the text has none.

    Whole microseconds; finer digits are cut. 0 and "" count as absent.

    Raises:
        RowRefused: not an instant.
    """
    for name in names:
        value = record.get(name)
        if value is None or value == "" or (value == 0 and not isinstance(value, bool)):
            continue
        return _moment(value, name)
    return None


def _moment(value: Any, name: str) -> datetime:
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value
    try:
        if isinstance(value, str):
            text = value.strip()
            if text.replace(".", "", 1).isdecimal():
                value = int(text) if text.isdecimal() else float(text)
            else:
                parsed = parsedate_to_datetime(text) if text[:1].isalpha() else datetime.fromisoformat(text)
                return parsed.astimezone(UTC) if parsed.tzinfo else parsed
        if isinstance(value, int | float) and not isinstance(value, bool):
            for low, high, factor in _UNITS:
                if low <= value < high:
                    microseconds = value // 1000 if not factor else round(value * factor)
                    return _EPOCH + timedelta(microseconds=int(microseconds))
    except (TypeError, ValueError, OverflowError):
        pass
    raise RowRefused(
        name, "no time (ISO 8601, RFC 1123, or seconds, milli-, micro- or nanoseconds since 1970)", shown(value)
    ) from None


def microseconds(value: Any, per_unit: int, name: str) -> int | None:
    """A relative time as whole microseconds; `per_unit` is how many of them one unit is.

    Raises:
        RowRefused: not a number.
    """
    if value is None or value == "":
        return None
    try:
        number = float(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not -_FAR < number * per_unit < _FAR:
            raise ValueError
        return round(number * per_unit)
    except (TypeError, ValueError, OverflowError):
        raise RowRefused(name, "not a relative time", shown(value)) from None


class Placer:
    """Gives every generation its `arrival` or, where the log has no zone, its offset from the first such time."""

    def __init__(self, timezone: str | None):
        """Take `timezone` (an IANA name) for times that have none; None = keep them relative.

        Raises:
            InputError: no such zone.
        """
        try:
            self._zone = ZoneInfo(timezone) if timezone else None
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InputError(
                f"--timezone {timezone!r}: no such zone; write an IANA name such as Europe/Berlin or UTC"
            ) from None
        self._first: datetime | None = None

    def place(self, when: datetime | None) -> tuple[datetime | None, int | None, str | None]:
        """(arrival in UTC, microseconds since the first, note) of a time as read."""
        if when is None or when.tzinfo is not None:
            return when, None, None
        if self._zone is None:
            self._first = self._first or when
            offset = (when - self._first) // timedelta(microseconds=1)
            return None, offset, "time without a zone: kept relative to the first (--timezone places it)"
        early, late = (when.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if early != late:
            gone = early > late
            return None, None, f"local time that {'never was' if gone else 'comes twice'} (change of clocks): left out"
        return early, None, None
