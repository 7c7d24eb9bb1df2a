"""Tap traces of vllm-vcr: lengths, timing, why it ended, and with `--record-tokens` the output ids; never a prompt.

Such rows are kept, and replayed only by proposers that need no prompt.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, labels, numbers, text_field, token_ids, whole
from pipeline.ingest.times import microseconds


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format; the first line may hold only what was measured on."""
    return ("ttft_ms" in record and "output_tokens" in record and "prompt_tokens" in record) or (
        set(record) == {"meta"} and isinstance(record["meta"], dict)
    )


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation]:
    """The one generation of a row; none for the line of metadata.

    Raises:
        RowRefused: a length is missing, or the ids do not fit it.
    """
    if "meta" in record:
        return
    lengths = whole(record, "prompt_tokens"), whole(record, "output_tokens")
    ids = token_ids(record, "output_token_ids")
    if None in lengths:
        raise RowRefused("prompt_tokens" if lengths[0] is None else "output_tokens", "missing")
    if ids is not None and len(ids) != lengths[1]:
        raise RowRefused("output_token_ids", "as many ids as output_tokens says are needed", f"{len(ids)} ids")
    yield Generation(
        text_field(record, "request_id") or fallback_id,
        **labels(record),
        arrival_offset_us=microseconds(record.get("arrival_ms"), 1000, "arrival_ms"),
        output_token_ids=ids,
        logged_prompt_tokens=lengths[0],
        logged_output_tokens=lengths[1],
        finish_reason=text_field(record, "finish_reason"),
        extra=numbers(record, ("prompt_tokens", "output_tokens", "arrival_ms"))
        | ({"block_hashes": record["block_hashes"]} if record.get("block_hashes") else {}),
    )
