"""Answers that were logged as they streamed: chunks, one per line or as server-sent events, put together again.

A chunk without choices carries usage or nothing; ids may be missing in the first chunks; pieces of a tool call are
joined by index. Knows the wire format only: what comes out is a response body as it would have come in one piece.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

_json = msgspec.json.Decoder()
_OPEN = 256
"""Streams of one file that may be interleaved; beyond it the oldest is taken as complete."""


def is_chunk(record: Any) -> bool:
    """Whether a record is one piece of a streamed answer."""
    if not isinstance(record, dict) or not isinstance(record.get("choices"), list):
        return False
    if record.get("object") == "chat.completion.chunk":
        return True
    choices = record["choices"]
    if choices and isinstance(choices[0], dict):
        # completions stream `text` in the shape of a whole answer: without usage in the same body it is a piece
        piece = record.get("object") == "text_completion" and not record.get("usage") and "prompt" not in record
        return "delta" in choices[0] or piece
    return not choices


def fold(records: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """(row, record) with the chunks of each stream replaced by one response, at the row of its first chunk."""
    streams: OrderedDict[str, tuple[int, Assembly]] = OrderedDict()
    last = ""
    for row, record in records:
        if not is_chunk(record):
            yield row, record
            continue
        last = (record.get("id") or last) if isinstance(record.get("id"), str) else last
        if last not in streams:
            if not last and not record["choices"]:
                continue  # a preface before any id is known
            streams[last] = (row, Assembly())
            if len(streams) > _OPEN:
                start, oldest = streams.popitem(last=False)[1]
                yield start, oldest.response()
        streams[last][1].add(record)
    for row, assembly in streams.values():
        yield row, assembly.response()


def from_events(text: str) -> dict[str, Any] | None:
    """The response that a server-sent event stream tells, or None where it holds none.

    Chat and completion chunks are put together; the Responses API says it whole in its last event.

    Raises:
        ValueError: an event is no JSON.
    """
    assembly, found = Assembly(), False
    for line in text.splitlines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if not data or data == "[DONE]":
            continue
        event = _json.decode(data)
        if not isinstance(event, dict):
            continue
        if isinstance(event.get("response"), dict) and str(event.get("type", "")).startswith("response."):
            if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                return event["response"]
        elif "choices" in event or "error" in event:
            assembly.add(event)
            found = True
    return assembly.response() if found else None


class Assembly:
    """One streamed answer while its pieces come in."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        """Take in one chunk."""
        for key in ("id", "model", "created", "object", "usage", "error", "prompt_token_ids", "metrics"):
            if chunk.get(key):
                self._head[key] = chunk[key]
        for piece in chunk.get("choices") or []:
            if isinstance(piece, dict):
                index = piece.get("index")
                self._add_piece(self._choices.setdefault(index if isinstance(index, int) else 0, {}), piece)

    def _add_piece(self, choice: dict[str, Any], piece: dict[str, Any]) -> None:
        for key in ("finish_reason", "stop_reason", "prompt_token_ids"):
            if piece.get(key) is not None:
                choice[key] = piece[key]
        if isinstance(piece.get("token_ids"), list):
            choice.setdefault("token_ids", []).extend(piece["token_ids"])
        if isinstance(piece.get("text"), str):
            choice.setdefault("text", []).append(piece["text"])
        delta = piece.get("delta")
        if not isinstance(delta, dict):
            return
        message = choice.setdefault("message", {})
        for key, value in delta.items():
            if key == "tool_calls":
                for i, call in enumerate(value or []):
                    _add_call(message.setdefault("tool_calls", {}), call, i)
            elif key == "function_call" and isinstance(value, dict):
                _add_call(message.setdefault("tool_calls", {}), {"function": value}, 0)
            elif key == "role":
                message["role"] = value or message.get("role")
            elif isinstance(value, str):
                message.setdefault(key, []).append(value)

    def response(self) -> dict[str, Any]:
        """The whole answer in the shape of an unstreamed one."""
        choices = []
        for index, choice in sorted(self._choices.items()):
            whole = {"index": index, **choice}
            if "text" in choice:
                whole["text"] = "".join(choice["text"])
            if "message" in choice:
                message = {k: "".join(v) if isinstance(v, list) else v for k, v in choice["message"].items()}
                message["role"] = message.get("role") or "assistant"
                if "tool_calls" in message:
                    message["tool_calls"] = [_joined(call) for _, call in sorted(message["tool_calls"].items())]
                whole["message"] = message
            choices.append(whole)
        out = {**self._head, "choices": choices}
        if out.get("object") == "chat.completion.chunk":
            out["object"] = "chat.completion"
        return out


def _add_call(calls: dict[int, dict[str, Any]], piece: Any, position: int) -> None:
    if not isinstance(piece, dict):
        return
    index = piece.get("index")
    call = calls.setdefault(index if isinstance(index, int) else position, {"name": [], "arguments": []})
    if piece.get("id"):
        call["id"] = piece["id"]
    function = piece.get("function")
    for key in ("name", "arguments"):
        if isinstance(function, dict) and isinstance(function.get(key), str):
            call[key].append(function[key])


def _joined(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": "".join(call["name"]), "arguments": "".join(call["arguments"])},
    }
