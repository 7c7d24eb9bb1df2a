"""Rows that hold token ids: `prompt_token_ids` and, where recorded, `output_token_ids` (JSONL or Parquet).

The canonical trace is of this format too, so a trace written out by `capture` can be read back.
"""

import json
from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, moment, text_field, token_ids

_TAKEN = frozenset(
    "request_id session_id turn sample tenant workload model arrival prompt_token_ids output_token_ids tail_token_ids "
    "sampling finish_reason".split()
)


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return "prompt_token_ids" in record


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation]:
    """The one generation of a row.

    Raises:
        RowRefused: a column is missing or holds what it must not.
    """
    prompt = token_ids(record, "prompt_token_ids")
    if not prompt:
        raise RowRefused("prompt_token_ids", "missing or empty; a prompt has at least one token")
    sampling = record.get("sampling")
    try:
        sampling = json.loads(sampling) if isinstance(sampling, str) else sampling
    except json.JSONDecodeError:
        raise RowRefused("sampling", "not valid JSON") from None
    yield Generation(
        request_id=text_field(record, "request_id") or fallback_id,
        session_id=text_field(record, "session_id"),
        turn=_whole(record, "turn"),
        sample=_whole(record, "sample") or 0,
        tenant=text_field(record, "tenant"),
        workload=text_field(record, "workload"),
        model=text_field(record, "model"),
        arrival=moment(record, "arrival"),
        prompt_token_ids=prompt,
        output_token_ids=token_ids(record, "output_token_ids"),
        tail_token_ids=token_ids(record, "tail_token_ids"),
        sampling=sampling,
        finish_reason=text_field(record, "finish_reason"),
        extra={k: v for k, v in record.items() if k not in _TAKEN and isinstance(v, str | int | float)}
        | {"token_ids": "given"},
    )


def _whole(record: dict[str, Any], name: str) -> int | None:
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RowRefused(name, f"{value!r} is no whole number from 0")
    return value
