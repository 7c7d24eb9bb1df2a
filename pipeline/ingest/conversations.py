"""Chat conversations, one per row: `messages` in OpenAI's shape. Every assistant message is one generation.

Its prompt is everything before it. Optional beside `messages`: `session_id`, `tenant`, `workload`, `model`, `tools`;
on an assistant message: `timestamp` (arrival) and `finish_reason`.
"""

import json
from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, moment, text_field

_ROLES = ("system", "developer", "user", "assistant", "tool")


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return isinstance(record.get("messages"), list)


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation]:
    """One generation per assistant message, in order.

    Raises:
        RowRefused: a message is malformed, or the conversation holds no assistant message.
    """
    messages = [_message(m, i) for i, m in enumerate(record["messages"])]
    session = text_field(record, "session_id") or fallback_id
    turn = 0
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        source = record["messages"][i]
        called = bool(message.get("tool_calls"))
        yield Generation(
            request_id=f"{session}/{turn}",
            session_id=session,
            turn=turn,
            tenant=text_field(record, "tenant"),
            workload=text_field(record, "workload"),
            model=text_field(record, "model"),
            arrival=moment(source, "timestamp"),
            messages=messages[:i],
            answer=message,
            tools=record.get("tools"),
            finish_reason=text_field(source, "finish_reason") or ("tool_calls" if called else "stop"),
            extra={"token_ids": "tokenised"},
        )
        turn += 1
    if not turn:
        raise RowRefused("messages", "no assistant message: nothing was generated")


def _message(message: Any, i: int) -> dict[str, Any]:
    """What the chat template reads, in one canonical form: null, "" and absent content are the same."""
    where = f"messages[{i}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RowRefused(where, f"role must be one of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, dict) and p.get("type") == "text" else None for p in content]
        if any(not isinstance(p, str) for p in parts):
            raise RowRefused(f"{where}.content", "holds a part that is no text; only text can be replayed")
        content = "".join(parts)
    if content is not None and not isinstance(content, str):
        raise RowRefused(f"{where}.content", f"expected text, found {type(content).__name__}")
    out: dict[str, Any] = {"role": message["role"], "content": content or ""}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_call(c, f"{where}.tool_calls[{j}]") for j, c in enumerate(calls)]
    return out


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool call whose arguments are an object, however they were spelled."""
    function = call.get("function", call) if isinstance(call, dict) else {}
    name, arguments = function.get("name"), function.get("arguments", {})
    if not isinstance(name, str):
        raise RowRefused(where, "a tool call needs a function name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except json.JSONDecodeError:
            raise RowRefused(f"{where}.arguments", "not valid JSON") from None
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
