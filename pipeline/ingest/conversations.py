"""Chat conversations, one per row: `messages` in OpenAI's shape, `conversations` in ShareGPT's.

Every assistant message is one generation; its prompt is everything before it. Optional beside the messages:
`session_id` (or `id`), `tenant`, `workload`, `model`, `tools`, `system`; on an assistant message: `timestamp` (its
arrival), `finish_reason`, and where they were logged `prompt_token_ids` and `token_ids`.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import (
    Generation,
    RowRefused,
    labels,
    numbers,
    sampling,
    structured,
    text_field,
    token_ids,
)
from pipeline.ingest.messages import answers, messages, tools
from pipeline.ingest.text_pairs import answers_beside
from pipeline.ingest.times import NAMES, moment

_FROM = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}
_CALLS = ("function_call", "tool_call")


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return not answers_beside(record) and any(
        isinstance(record.get(k), list) or (isinstance(record.get(k), str) and record[k][:1] == "[")
        for k in ("messages", "conversations")
    )


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """One generation per assistant message, in order; a greeting before any prompt is refused, what follows it is not.

    Raises:
        RowRefused: a message is malformed, or the conversation holds no assistant message.
    """
    source = structured(record.get("messages"), "messages")
    if not isinstance(source, list):
        source = _share_gpt(structured(record.get("conversations"), "conversations"))
        if (system := text_field(record, "system")) and source[0].get("role") != "system":
            source = [{"role": "system", "content": system}, *source]
    yield from of_session(
        source,
        text_field(record, "session_id", "conversation_id", "id") or fallback_id,
        labels(record),
        offered=tools(record.get("tools")),
        settings=sampling(record),
        extra=numbers(record, ("turn", "id", "conversation_id", "session_id", *NAMES)),
    )


def of_session(
    source: list,
    session: str,
    names: dict[str, str | None],
    *,
    offered: list[dict] | None = None,
    settings: dict | None = None,
    extra: dict | None = None,
) -> Iterator[Generation | RowRefused]:
    """The generations of one session told as one list of messages.

    Args:
        source: messages as logged, in order.
        session: its name; request ids are `<session>/<turn>`.
        names: tenant, workload, model (see `generation.labels`).
        offered: tools of the requests.
        settings: sampling settings.
        extra: kept with every generation.

    Raises:
        RowRefused: as `generations`.
    """
    history = messages(source)
    turn = -1
    for turn, i in answers(history):
        if i == 0:
            yield RowRefused("messages[0]", "the assistant speaks first: there is no prompt")
            continue
        logged = source[i]
        given = token_ids(logged, "token_ids")
        yield Generation(
            request_id=f"{session}/{turn}",
            session_id=session,
            turn=turn,
            tenant=names["tenant"],
            workload=names["workload"],
            model=text_field(logged, "model") or names["model"],
            arrival=moment(logged, *NAMES),
            prompt_token_ids=token_ids(logged, "prompt_token_ids") if given is not None else None,
            output_token_ids=given,
            messages=history[:i],
            answer=history[i],
            tools=offered,
            sampling=settings,
            finish_reason=text_field(logged, "finish_reason"),
            extra=dict(extra or {}),
        )
    if turn < 0:
        raise RowRefused("messages", "no assistant message: nothing was generated")


def _share_gpt(turns: Any) -> list[dict[str, Any]]:
    if not isinstance(turns, list) or not turns:
        raise RowRefused("conversations", "expected a list of turns")
    out = []
    for i, turn in enumerate(turns):
        where = f"conversations[{i}]"
        speaker = (turn.get("from") or turn.get("role")) if isinstance(turn, dict) else None
        value = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if speaker in _CALLS:
            calls = structured(value, where)
            calls = calls if isinstance(calls, list) else [calls]
            out.append({"role": "assistant", "content": "", "tool_calls": calls})
        elif speaker in _FROM:
            out.append({**turn, "role": _FROM[speaker], "content": value})
        else:
            raise RowRefused(f"{where}.from", f"must be one of {', '.join([*_FROM, *_CALLS])}")
    return out
