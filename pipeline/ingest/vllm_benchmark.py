"""Results of `vllm bench serve --save-detailed`: one object, one entry per request in each of its lists.

It holds lengths and generated texts, and no prompts. A request that failed put nothing out and is refused.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, text_field, whole
from pipeline.ingest.times import microseconds


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return isinstance(record.get("input_lens"), list) and isinstance(record.get("output_lens"), list)


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """One generation per request of the run, in the order of its lists.

    Raises:
        RowRefused: the lists differ in length.
    """
    inputs, outputs = record["input_lens"], record["output_lens"]
    texts, errors = record.get("generated_texts") or [], record.get("errors") or []
    starts = record.get("start_times") or []
    for name, other in (("output_lens", outputs), ("generated_texts", texts), ("errors", errors)):
        if other and len(other) != len(inputs):
            raise RowRefused(name, "as many entries as input_lens has are needed", f"{len(other)} of {len(inputs)}")
    first = min(starts, default=0)
    for i, (prompt, output) in enumerate(zip(inputs, outputs, strict=True)):
        if errors and errors[i]:
            yield RowRefused(f"errors[{i}]", "the request failed")
            continue
        yield Generation(
            f"{fallback_id}/{i}",
            model=text_field(record, "model_id"),
            logged_prompt_tokens=whole({"input_lens": prompt}, "input_lens"),
            logged_output_tokens=whole({"output_lens": output}, "output_lens"),
            output_text=texts[i] if texts and isinstance(texts[i], str) else None,
            arrival_offset_us=microseconds(starts[i] - first, 1_000_000, "start_times") if starts else None,
        )
