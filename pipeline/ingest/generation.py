"""One generation as a log tells it, before it has a place in the canonical trace. Knows no file format.

Errors and refusals name columns, positions and reasons. They never hold content: of a value, only a number is shown.
"""

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

MAX_ID = 2**31 - 1

ID_RANGE = "holds what is no token id (a whole number from 0 to 2**31-1)"

_json = msgspec.json.Decoder()


class RowRefused(Exception):
    """This row cannot be taken: the column at fault, the reason, and what is special about this row (no content).

    Rows are counted by column and reason; `detail` (a position, a number) stays out of the count.
    """

    def __init__(self, column: str, reason: str, detail: str = ""):
        super().__init__(f"{column}: {reason}" + (f" ({detail})" if detail else ""))
        self.column, self.reason, self.detail = column, reason, detail

    @property
    def kind(self) -> tuple[str, str]:
        """What it is counted by: column without positions, reason."""
        return re.sub(r"\[\d+\]", "[]", self.column), self.reason


@dataclass
class Generation:
    """One model output with its prompt: as token ids, as chat messages, as plain text, or as lengths only.

    `messages` are the chat messages before the output and `answer` is the output message; `prompt_text` and
    `output_text` are for completions without a chat template. Ids win where both are there. `logged_…_tokens` are
    lengths that the log states. `arrival` without a zone is still to be placed (see `times`).
    """

    request_id: str
    session_id: str | None = None
    turn: int | None = None
    sample: int = 0
    tenant: str | None = None
    workload: str | None = None
    model: str | None = None
    arrival: datetime | None = None
    arrival_offset_us: int | None = None
    prompt_token_ids: np.ndarray | None = None
    output_token_ids: np.ndarray | None = None
    tail_token_ids: np.ndarray | None = None
    messages: list[dict[str, Any]] | None = None
    answer: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    prompt_text: str | None = None
    output_text: str | None = None
    logged_prompt_tokens: int | None = None
    logged_output_tokens: int | None = None
    sampling: dict[str, Any] | None = None
    finish_reason: str | None = None
    tokenizer: str | None = None
    """Fingerprint of the tokenizer that made the ids, where the log says so."""
    extra: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What is worth saying about it in the summary (counted, no content)."""


def structured(value: Any, column: str) -> Any:
    """A list or object that some stores keep as JSON text, decoded as often as it was encoded.

    Raises:
        RowRefused: it looks like JSON and is none.
    """
    for _ in range(3):
        if not isinstance(value, str) or value[:1] not in ("[", "{", '"'):
            break
        try:
            value = _json.decode(value)
        except msgspec.MsgspecError:
            raise RowRefused(column, "not valid JSON") from None
    return value


def shown(value: Any) -> str:
    """A value as it may stand in an error: numbers and what is spelled like one; anything else only by its kind."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float) or (
        isinstance(value, str) and len(value) <= 40 and re.fullmatch(r"[-+0-9.:eETZ /]*\d[-+0-9.:eETZ /]*", value)
    ):
        return repr(value)
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    return {list: "a list", dict: "an object"}.get(type(value), f"a {type(value).__name__}")


def shown_name(column: str) -> str:
    """A column's name as it may stand in an error: prose taken for a header is content."""
    return column if re.fullmatch(r"\w[\w.:\[\]-]{0,49}( \w{1,20})?", column) else "…"


def text_field(record: dict[str, Any], *names: str) -> str | None:
    """A name as text, of the first of `names` that holds one: numbers keep their digits, absent, null, "" are None.

    Raises:
        RowRefused: the value is a list or an object.
    """
    for name in names:
        value = record.get(name)
        if value is None or value == "":
            continue
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int):
            return str(value)
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        raise RowRefused(name, "expected text", f"found {shown(value)}")
    return None


def whole(record: dict[str, Any], name: str) -> int | None:
    """A whole number from 0, or None where the record has none; digits as text (CSV) count.

    Raises:
        RowRefused: anything else.
    """
    value = record.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ID:
        raise RowRefused(name, "not a whole number from 0 to 2**31-1", f"found {shown(value)}")
    return value


def token_ids(record: dict[str, Any], name: str) -> np.ndarray | None:
    """A list of token ids as int32, or None where the record has none. Whole floats (7.0) are ids.

    Raises:
        RowRefused: something in it is no integer from 0 to 2**31 - 1; names the first position and its value.
    """
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        value = structured(value, name)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return _array_ids(value, name)
    if not isinstance(value, Iterable) or isinstance(value, str | dict):
        raise RowRefused(name, "expected a list of token ids", f"found {shown(value)}")
    value = value if isinstance(value, list) else list(value)
    kinds = set(map(type, value))
    if kinds <= {int}:
        try:
            ids = np.frombuffer(array("i", value), np.int32)
        except OverflowError:
            ids = None
        if ids is not None and (not len(ids) or ids.min() >= 0):
            return ids
    elif kinds == {float}:
        return _array_ids(np.array(value, np.float64), name)
    out = []
    for i, item in enumerate(value):
        number = int(item) if isinstance(item, float) and item.is_integer() else item
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_ID:
            raise RowRefused(name, ID_RANGE, f"position {i}: {shown(item)}")
        out.append(number)
    return np.array(out, np.int32)


def _array_ids(ids: np.ndarray, name: str) -> np.ndarray:
    bad = (ids < 0) | (ids > MAX_ID) if len(ids) else np.zeros(0, bool)
    if ids.dtype.kind == "f":
        bad |= ids != np.floor(ids)
    if bad.any() or (ids.dtype.kind == "f" and np.isnan(ids).any()):
        at = int(np.argmax(bad | (ids != ids)))
        raise RowRefused(name, ID_RANGE, f"position {at}: {shown(ids[at].item())}")
    return ids.astype(np.int32)


def labels(record: dict[str, Any]) -> dict[str, Any]:
    """Who sent it and what it belongs to, from the fields named so, beside the content or in its `metadata`."""
    metadata = record.get("metadata")
    if isinstance(metadata, str) and metadata[:1] == "{":
        metadata = structured(metadata, "metadata")
    places = [record, metadata] if isinstance(metadata, dict) else [record]
    out: dict[str, Any] = {}
    for field_, names in LABELS.items():
        out[field_] = next((value for place in places if (value := text_field(place, *names)) is not None), None)
    return out


LABELS = {
    "session_id": ("session_id", "conversation_id", "sessionId", "thread_id"),
    "tenant": ("tenant", "tenant_id"),
    "workload": ("workload",),
    "model": ("model",),
}
"""Label of the canonical trace: names it is taken from, the first one found."""

SAMPLING = (
    "temperature top_p top_k min_p max_tokens min_tokens seed stop stop_token_ids ignore_eos n presence_penalty "
    "frequency_penalty repetition_penalty logit_bias bad_words"
).split()


def sampling(*sources: Any) -> dict[str, Any] | None:
    """The sampling settings of a request, by SamplingParams names; later sources win; None when nothing is set."""
    out: dict[str, Any] = {}
    for source in sources:
        if isinstance(source, dict):
            out |= {k: source[k] for k in SAMPLING if source.get(k) is not None}
            for other in ("max_completion_tokens", "max_output_tokens"):
                if source.get(other) is not None:
                    out["max_tokens"] = source[other]
            if kind := _grammar(source):
                out["structured_outputs"] = kind
    return out or None


def _grammar(request: dict[str, Any]) -> str | None:
    """What kind of grammar was put on the output, without the grammar: it cuts candidates, so a replay must know."""
    form = request.get("response_format")
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        return str(form["type"])
    given = request.get("structured_outputs")
    if isinstance(given, dict):
        return next((str(kind) for kind, value in given.items() if value is not None), None)
    return next((k.removeprefix("guided_") for k in _GUIDED if request.get(k) is not None), None)


_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


def numbers(record: dict[str, Any], taken: Iterable[str]) -> dict[str, Any]:
    """What else the row holds and is no text: text may be content, so it is never carried along unasked."""
    return {k: v for k, v in record.items() if isinstance(v, int | float) and k not in taken and -1e300 < v < 1e300}
