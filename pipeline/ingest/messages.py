"""Chat messages in the one form that chat templates read, however a log spells them. Knows no file format.

Content null, "" and absent are the same, so are arguments as text or as an object, `function_call` and `tool_calls`.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import RowRefused, structured

ROLES = ("system", "developer", "user", "assistant", "tool")
_SAME_ROLE = {"function": "tool", "model": "assistant", "human": "user", "ai": "assistant"}
_TEXT_PARTS = ("text", "input_text", "output_text")


class NotText(RowRefused):
    """A message holds a part that is no text (an image, audio): it cannot become token ids here."""


def messages(value: Any, column: str = "messages") -> list[dict[str, Any]]:
    """A list of messages in canonical form.

    Raises:
        RowRefused: not a list of messages, or one of them is malformed.
        NotText: a message holds an image or the like.
    """
    value = structured(value, column)
    if not isinstance(value, list):
        raise RowRefused(column, "expected a list of messages")
    return [message(m, f"{column}[{i}]") for i, m in enumerate(value)]


def message(value: Any, where: str = "message") -> dict[str, Any]:
    """One message: role, content as text, and where there are any tool_calls, reasoning_content, name, tool_call_id.

    A refusal is what the model said: it becomes the content where there is none.

    Raises:
        RowRefused, NotText: as `messages`.
    """
    if not isinstance(value, dict):
        raise RowRefused(where, "not a message")
    role = value.get("role")
    role = _SAME_ROLE.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        raise RowRefused(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    content, thought = _content(value.get("content"), f"{where}.content")
    if not content and isinstance(value.get("refusal"), str):
        content = value["refusal"]
    out: dict[str, Any] = {"role": role, "content": content}
    calls = structured(value.get("tool_calls"), f"{where}.tool_calls")
    if not calls and isinstance(value.get("function_call"), dict) and value["function_call"].get("name"):
        calls = [value["function_call"]]
    if calls:
        if not isinstance(calls, list):
            raise RowRefused(f"{where}.tool_calls", "expected a list")
        out["tool_calls"] = [call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)]
    reasoning = value.get("reasoning_content") or value.get("reasoning") or thought
    if isinstance(reasoning, str) and reasoning and role == "assistant":
        out["reasoning_content"] = reasoning
    if role == "tool":
        identity = value.get("tool_call_id") or next(iter(value.get("tool_call_ids") or []), None)
        out |= {k: v for k, v in (("tool_call_id", identity), ("name", value.get("name"))) if isinstance(v, str)}
    return out


def call(value: Any, where: str = "tool_call") -> dict[str, Any]:
    """A tool call whose arguments are an object, however they were spelled.

    Raises:
        RowRefused: no name, or arguments that are no JSON object.
    """
    function = value.get("function", value) if isinstance(value, dict) else {}
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise RowRefused(where, "a tool call needs a function name")
    arguments = function.get("arguments")
    arguments = {} if arguments in (None, "") else structured(arguments, f"{where}.arguments")
    if not isinstance(arguments, dict):
        raise RowRefused(f"{where}.arguments", "not a JSON object")
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tools(value: Any, column: str = "tools") -> list[dict[str, Any]] | None:
    """The tools a request offered, in OpenAI's nested shape; None where there are none.

    Raises:
        RowRefused: not a list of objects.
    """
    value = structured(value, column)
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowRefused(column, "expected a list of tools")
    out = []
    for tool in value:
        if "function" not in tool and "name" in tool and tool.get("type", "function") == "function":
            tool = {"type": "function", "function": {k: v for k, v in tool.items() if k not in ("type", "strict")}}
        out.append(tool)
    return out


def answers(history: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """(turn from 0, position) of each assistant message: each of them is one generation."""
    at = [i for i, m in enumerate(history) if m["role"] == "assistant"]
    return iter(list(enumerate(at)))


def is_empty(answer: dict[str, Any]) -> bool:
    """Whether the model put out nothing at all."""
    return not (answer["content"] or answer.get("tool_calls") or answer.get("reasoning_content"))


def _content(content: Any, where: str) -> tuple[str, str]:
    """(text, reasoning) of a message's content: text as it is, parts joined."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise RowRefused(where, "expected text or parts")
    texts, thoughts = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind in ("reasoning", "thinking", "reasoning_text"):
            thoughts.append(str(part.get("text") or part.get("thinking") or ""))
        else:
            raise NotText(where, "holds a part that is no text")
    return "".join(texts), "".join(thoughts)
