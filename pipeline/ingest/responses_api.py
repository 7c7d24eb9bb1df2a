"""OpenAI's Responses API: `input` and `output` as lists of items, one response per model call.

Reasoning, message and function_call items that follow each other are one assistant turn. Where a server logged token
ids on an item (`prompt_token_ids`, `generation_token_ids`), they cover the whole turn and are taken first.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, sampling, structured, text_field, token_ids
from pipeline.ingest.messages import NotText, message, tools

_CALL, _RESULT = ("function_call", "custom_tool_call"), ("function_call_output", "custom_tool_call_output")


def is_response(body: Any) -> bool:
    """Whether a body is an answer of this API."""
    return (
        isinstance(body, dict) and isinstance(body.get("output"), list) and body.get("object", "response") == "response"
    )


def items(value: Any, column: str) -> list[dict[str, Any]]:
    """Input or output items as chat messages.

    Raises:
        RowRefused: an item is malformed or of a kind that is no text.
    """
    value = structured(value, column) if isinstance(value, str) and value[:2] in ("[{", "[ ") else value
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise RowRefused(column, "expected a text or a list of items")
    out: list[dict[str, Any]] = []
    for i, item in enumerate(value):
        _append(out, item, f"{column}[{i}]")
    for turn in out:
        turn.pop("open", None)
    return out


def generations(
    request: dict[str, Any], response: dict[str, Any], base: dict[str, Any], fallback_id: str
) -> Iterator[Generation]:
    """The generations of one response: one, unless the server called tools and went on.

    Args:
        request: body of the request; {} where it was not logged.
        response: body of the response.
        base: fields every generation gets (labels, arrival).
        fallback_id: request id where the response has none.

    Raises:
        RowRefused: nothing was put out, or an item is malformed.
    """
    identity = text_field(response, "id") or fallback_id
    usage: dict[str, Any] = response["usage"] if isinstance(response.get("usage"), dict) else {}
    given: list[tuple] = [
        (token_ids(item, "prompt_token_ids"), token_ids(item, "generation_token_ids"))
        for item in response["output"]
        if isinstance(item, dict) and item.get("generation_token_ids") is not None
    ] or _raw_messages(response)
    history: list[dict[str, Any]] | None = None
    note: list[str] = []
    if "input" in request:
        instructions = request.get("instructions") or response.get("instructions")
        try:
            system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
            history = system + items(request["input"], "input")
        except NotText:
            history, note = None, [NO_TEXT]
        if request.get("previous_response_id"):
            history, note = None, ["earlier messages are only on the server (previous_response_id): prompt unknown"]
    said = items(response["output"], "output")
    turns = [i for i, m in enumerate(said) if m["role"] == "assistant"]
    if not turns:
        raise RowRefused("response.output", "no message: nothing was generated")
    for turn, i in enumerate(turns):
        ids: tuple = given[turn] if len(given) == len(turns) else (None, None)
        alone = len(turns) == 1
        yield Generation(
            **base,
            request_id=identity if alone else f"{identity}/{turn}",
            prompt_token_ids=ids[0],
            output_token_ids=ids[1],
            messages=None if history is None else [*history, *said[:i]],
            answer=said[i],
            tools=tools(request.get("tools")),
            logged_prompt_tokens=usage.get("input_tokens") if alone else None,
            logged_output_tokens=usage.get("output_tokens") if alone else None,
            sampling=sampling(response, request),
            finish_reason=_finish(response, said[i]),
            notes=list(note),
        )


NO_TEXT = "prompt holds an image or the like: kept for its lengths"


def _raw_messages(response: dict[str, Any]) -> list[tuple]:
    """The ids of vLLM's `enable_response_messages`: all there is to know when it was one call of the model."""
    ids = []
    for key in ("input_messages", "output_messages"):
        match response.get(key):
            case [{"tokens": _} as only]:
                ids.append(token_ids(only, "tokens"))
    return [tuple(ids)] if len(ids) == 2 else []


def _finish(response: dict[str, Any], answer: dict[str, Any]) -> str | None:
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return "length" if reason == "max_output_tokens" else reason
    if response.get("status") == "completed":
        return "tool_calls" if answer.get("tool_calls") else "stop"
    return None


def _append(out: list[dict[str, Any]], item: Any, where: str) -> None:
    """Add one item: what the assistant says in a row goes into one message."""
    if not isinstance(item, dict):
        raise RowRefused(where, "not an item")
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind in _RESULT:
        out.append(message({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}, where))
        return
    if kind == "message" and item.get("role") != "assistant":
        out.append(message(item, where))
        return
    if not (out and out[-1].get("open")):
        out.append({"role": "assistant", "content": "", "open": True})
    turn = out[-1]
    if kind == "message":
        turn["content"] += message(item, where)["content"]
    elif kind in _CALL:
        spelled = {"name": item.get("name"), "arguments": item.get("arguments", item.get("input"))}
        turn.setdefault("tool_calls", []).extend(
            message({"role": "assistant", "tool_calls": [spelled]}, where)["tool_calls"]
        )
    elif kind == "reasoning":
        parts = [p for key in ("content", "summary") for p in (item.get(key) or []) if isinstance(p, dict)]
        thought = "".join(str(p.get("text") or "") for p in parts)
        if thought:
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
    else:
        raise NotText(where, "an item that is no text")
