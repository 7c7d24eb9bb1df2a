"""Traces of lengths and arrival times without any token: Mooncake, Azure LLM inference, BurstGPT.

Kept for lengths and arrivals. Nothing can be said about acceptance from them: tokens are never invented.
"""

import math
from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, labels, text_field, whole
from pipeline.ingest.times import microseconds, moment

BLOCK = 512
"""Tokens per hash id in Mooncake's traces."""

_AZURE, _BURST = "ContextTokens", "Request tokens"


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return ("input_length" in record and "output_length" in record) or _AZURE in record or _BURST in record


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation]:
    """The one generation of a row.

    Raises:
        RowRefused: a length or a time is missing or no number.
    """
    out = Generation(text_field(record, "request_id", "id") or fallback_id, **labels(record))
    if "input_length" in record:
        names = "input_length", "output_length"
        out.arrival_offset_us = microseconds(record.get("timestamp"), 1000, "timestamp")
        _hashes(out, record.get("hash_ids"), whole(record, names[0]))
    elif _AZURE in record:
        names = _AZURE, "GeneratedTokens"
        out.arrival = moment(record, "TIMESTAMP")
    else:
        names = _BURST, "Response tokens"
        out.arrival_offset_us = microseconds(record.get("Timestamp"), 1_000_000, "Timestamp")
        out.model = out.model or text_field(record, "Model")
        out.session_id = out.session_id or text_field(record, "Session ID")
        out.workload = out.workload or text_field(record, "Log Type")
    out.logged_prompt_tokens, out.logged_output_tokens = (whole(record, name) for name in names)
    for name, length in zip(names, (out.logged_prompt_tokens, out.logged_output_tokens), strict=True):
        if length is None:
            raise RowRefused(name, "missing")
    yield out


def _hashes(out: Generation, hashes: Any, tokens: int | None) -> None:
    if not isinstance(hashes, list):
        return
    out.extra["hash_ids"] = hashes
    if tokens is not None and len(hashes) != math.ceil(tokens / BLOCK):
        out.notes.append(f"number of hash ids does not fit the length (one per {BLOCK} tokens)")
        out.extra["hash_ids_fit"] = False
