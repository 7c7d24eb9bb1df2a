"""Rows that hold token ids: `prompt_token_ids` and, where recorded, `output_token_ids` (JSONL, CSV or Parquet).

The canonical trace is of this format too, so a trace written out by `capture` or `trace sample` can be read back.
Text beside the ids (`prompt` or `messages`, `output`) is only compared with them.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import (
    Generation,
    RowRefused,
    labels,
    numbers,
    structured,
    text_field,
    token_ids,
    whole,
)
from pipeline.ingest.messages import messages
from pipeline.ingest.times import NAMES, microseconds, moment

_TAKEN = frozenset(
    "request_id id session_id turn sample tenant workload model arrival arrival_offset_us prompt_token_ids "
    "output_token_ids tail_token_ids prompt_tokens output_tokens sampling finish_reason source_row".split()
) | frozenset(NAMES)


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return "prompt_token_ids" in record


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation]:
    """The one generation of a row.

    Raises:
        RowRefused: a column is missing or holds what it must not.
    """
    prompt, output = token_ids(record, "prompt_token_ids"), token_ids(record, "output_token_ids")
    if prompt is None and record.get("prompt_tokens") is None:
        raise RowRefused("prompt_token_ids", "missing; a prompt has at least one token")
    if prompt is not None and not len(prompt):
        raise RowRefused("prompt_token_ids", "empty; a prompt has at least one token")
    chat = record.get("messages")
    text = next((record[k] for k in ("output", "output_text", "completion") if isinstance(record.get(k), str)), None)
    yield Generation(
        request_id=text_field(record, "request_id", "id") or fallback_id,
        **labels(record),
        turn=whole(record, "turn"),
        sample=whole(record, "sample") or 0,
        arrival=moment(record, *NAMES),
        arrival_offset_us=microseconds(record.get("arrival_offset_us"), 1, "arrival_offset_us"),
        prompt_token_ids=prompt,
        output_token_ids=output,
        tail_token_ids=token_ids(record, "tail_token_ids"),
        messages=messages(chat) if chat and output is not None else None,
        output_text=text,
        prompt_text=record["prompt"] if isinstance(record.get("prompt"), str) else None,
        logged_prompt_tokens=whole(record, "prompt_tokens"),
        logged_output_tokens=whole(record, "output_tokens"),
        sampling=_settings(record),
        finish_reason=text_field(record, "finish_reason"),
        tokenizer=text_field(record, "tokenizer"),
        extra=_extra(record),
    )


def _settings(record: dict[str, Any]) -> dict[str, Any] | None:
    value = structured(record.get("sampling"), "sampling")
    if value is not None and not isinstance(value, dict):
        raise RowRefused("sampling", "expected an object with SamplingParams names")
    return value or None


def _extra(record: dict[str, Any]) -> dict[str, Any]:
    """What else there is, and whose the ids are: a canonical trace says so of itself, elsewhere they were given."""
    kept = structured(record.get("extra"), "extra")
    kept = kept if isinstance(kept, dict) else {}
    whose = kept.get("token_ids")
    return numbers(record | kept, _TAKEN) | {"token_ids": whose if whose in ("tokenised", "captured") else "given"}
