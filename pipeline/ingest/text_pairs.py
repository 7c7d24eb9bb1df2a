"""A prompt and what the model said to it, as text: `prompt`, `instruction` or `messages` with `output`.

A `prompt` that is a text is tokenised as it stands (a completion); an `instruction` or a list of messages goes through
the chat template. A row without an output is kept as a prompt to be captured.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import (
    Generation,
    RowRefused,
    labels,
    numbers,
    sampling,
    shown,
    structured,
    text_field,
    whole,
)
from pipeline.ingest.messages import message, messages, tools
from pipeline.ingest.times import NAMES, microseconds, moment

_OUTPUTS = ("output", "completion", "response", "answer", "generated_text")


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return (
        isinstance(record.get("prompt"), str | list)
        or isinstance(record.get("instruction"), str)
        or (isinstance(record.get("messages"), list) and answers_beside(record))
    )


def answers_beside(record: dict[str, Any]) -> bool:
    """Whether the output stands in a field of its own, so that messages before it are all prompt."""
    return any(isinstance(record.get(name), str) for name in _OUTPUTS)


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation]:
    """The one generation of a row.

    Raises:
        RowRefused: the prompt is empty, or prompt or output is no text.
    """
    said = next((record[name] for name in _OUTPUTS if record.get(name) is not None), None)
    out = Generation(
        request_id=text_field(record, "request_id", "id") or fallback_id,
        **labels(record),
        turn=whole(record, "turn"),
        sample=whole(record, "sample") or 0,
        arrival=moment(record, *NAMES),
        arrival_offset_us=microseconds(record.get("arrival_offset_us"), 1, "arrival_offset_us"),
        tools=tools(record.get("tools")),
        logged_prompt_tokens=whole(record, "prompt_tokens"),
        logged_output_tokens=whole(record, "output_tokens"),
        sampling=sampling(record, structured(record.get("sampling"), "sampling")),
        finish_reason=text_field(record, "finish_reason"),
        extra=numbers(record, ("turn", "sample", "id", "prompt_tokens", "output_tokens", *NAMES)),
    )
    if out.model is None:
        out.model = text_field(record, "generator")
    prompt = record.get("prompt", record.get("messages"))
    if isinstance(prompt, str) and prompt[:2] in ("[{", "[ "):
        prompt = structured(prompt, "prompt") if '"role"' in prompt else prompt
    if isinstance(prompt, list) and prompt and all(isinstance(p, dict) for p in prompt):
        out.messages = messages(prompt, "prompt")
    elif isinstance(prompt, str):
        out.prompt_text = prompt
    elif isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        out.prompt_text = prompt[0]
    elif prompt is None:
        more = text_field(record, "input")
        out.messages = [{"role": "user", "content": record["instruction"] + (f"\n\n{more}" if more else "")}]
    else:
        raise RowRefused("prompt", "expected a text or a list of messages", f"found {shown(prompt)}")
    if not (out.messages or out.prompt_text):
        raise RowRefused("prompt", "empty; a prompt has at least one token")
    _answer(out, said)
    yield out


def _answer(out: Generation, said: Any) -> None:
    if isinstance(said, list) and len(said) == 1:
        said = said[0]
    if isinstance(said, dict):
        out.answer = message(said, "output")
    elif isinstance(said, str) and out.messages is not None:
        out.answer = {"role": "assistant", "content": said}
    elif isinstance(said, str):
        out.output_text = said
    elif said is not None:
        raise RowRefused("output", "expected a text", f"found {shown(said)}")
