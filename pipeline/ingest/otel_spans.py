"""OpenTelemetry GenAI spans: OTLP JSON, a list of `spans`, or one span per row. Each model call is one generation.

Prompts stand in `gen_ai.input.messages` (with `parts` or in OpenAI's shape) or flattened in `gen_ai.prompt.0.…`;
answers in `gen_ai.output.messages`, `gen_ai.output.text` or `gen_ai.completion.0.…`. Other spans are passed over.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused, sampling, structured, text_field
from pipeline.ingest.messages import NotText, message, tools
from pipeline.ingest.responses_api import NO_TEXT
from pipeline.ingest.times import moment

_FLAT = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(.+)")
_SAID = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion.0.content", "gen_ai.completion.0.role")


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return isinstance(record.get("resourceSpans"), list) or (
        isinstance(record.get("spans"), list)
        or ("attributes" in record and ("span_id" in record or "spanId" in record))
    )


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """The generations of a row in order of their start."""
    calls = [(span, found) for span in _spans(record) if _is_call(found := _attributes(span.get("attributes")))]
    calls.sort(key=lambda call: _start_key(call[0]))
    turns: dict[str, int] = {}
    for i, (span, found) in enumerate(calls):
        session = _session(found) or text_field(span, "trace_id", "traceId")
        turn = None
        if session is not None and len(calls) > 1:
            turn = turns[session] = turns.get(session, -1) + 1
        try:
            yield from _one(span, found, session, turn, f"{fallback_id}/{i}" if len(calls) > 1 else fallback_id)
        except RowRefused as refused:
            yield refused


def _one(span: dict, found: dict, session: str | None, turn: int | None, fallback_id: str) -> Iterator[Generation]:
    notes: list[str] = []
    try:
        history = _prompt(found)
    except NotText:
        history, notes = None, [NO_TEXT]
    identity = text_field(span, "span_id", "spanId") or fallback_id
    request = {k.removeprefix("gen_ai.request."): v for k, v in found.items() if k.startswith("gen_ai.request.")}
    finish = found.get("gen_ai.response.finish_reasons")
    finish = structured(finish, "gen_ai.response.finish_reasons") if isinstance(finish, str) else finish
    answers = _answers(found)
    for sample, answer in enumerate(answers):
        reason = answer.pop("finish_reason", None) or (finish[min(sample, len(finish) - 1)] if finish else None)
        yield Generation(
            identity if len(answers) == 1 else f"{identity}/{sample}",
            session_id=session,
            turn=turn,
            sample=sample,
            tenant=text_field(found, "tenant", "tenant.id"),
            workload=text_field(found, "workload"),
            model=text_field(found, "gen_ai.response.model", "gen_ai.request.model"),
            arrival=moment(span, "start_time", "startTime", "startTimeUnixNano"),
            messages=history,
            answer=answer,
            tools=tools(found.get("gen_ai.tool.definitions"), "gen_ai.tool.definitions"),
            sampling=sampling(request),
            finish_reason=reason if isinstance(reason, str) else None,
            logged_prompt_tokens=_count(found, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
            logged_output_tokens=_count(found, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
            if len(answers) == 1
            else None,
            notes=list(notes),
        )


def _spans(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(record.get("resourceSpans"), list):
        for resource in record["resourceSpans"]:
            for scope in resource.get("scopeSpans") or []:
                yield from (s for s in scope.get("spans") or [] if isinstance(s, dict))
    elif isinstance(record.get("spans"), list):
        yield from (s for s in record["spans"] if isinstance(s, dict))
    else:
        yield record


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes as a plain dict: OTLP's key and typed value pairs unpacked."""
    if isinstance(value, list):
        return {a["key"]: _value(a.get("value")) for a in value if isinstance(a, dict) and "key" in a}
    value = structured(value, "attributes")
    return value if isinstance(value, dict) else {}


def _value(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "intValue":
        return int(inner)
    if kind == "arrayValue":
        return [_value(v) for v in inner.get("values") or []]
    if kind == "kvlistValue":
        return {v["key"]: _value(v.get("value")) for v in inner.get("values") or []}
    return inner


def _is_call(found: dict[str, Any]) -> bool:
    return any(name in found for name in _SAID)


def _start_key(span: dict[str, Any]) -> tuple[int, str]:
    start = str(span.get("start_time") or span.get("startTime") or span.get("startTimeUnixNano") or "")
    return len(start) if start.isdecimal() else 0, start


def _session(found: dict[str, Any]) -> str | None:
    names = ["gen_ai.conversation.id", "session.id", *sorted(k for k in found if k.endswith(".session.id"))]
    return text_field(found, *names)


def _count(found: dict[str, Any], *names: str) -> int | None:
    return next((found[n] for n in names if isinstance(found.get(n), int)), None)


def _prompt(found: dict[str, Any]) -> list[dict[str, Any]] | None:
    system = structured(found.get("gen_ai.system_instructions"), "gen_ai.system_instructions")
    history = [_message({"role": "system", "parts": system}, "gen_ai.system_instructions")] if system else []
    column = "gen_ai.input.messages"
    said = structured(found.get(column), column)
    if said is None:
        said = _flat(found, "prompt")
    if not said:
        return None
    if not isinstance(said, list):
        raise RowRefused(column, "expected a list of messages")
    return history + [_message(m, f"{column}[{i}]") for i, m in enumerate(said)]


def _answers(found: dict[str, Any]) -> list[dict[str, Any]]:
    column = "gen_ai.output.messages"
    said = structured(found.get(column), column) or _flat(found, "completion")
    if not said and isinstance(found.get("gen_ai.output.text"), str):
        said = [{"role": "assistant", "content": found["gen_ai.output.text"]}]
    if not isinstance(said, list) or not said:
        raise RowRefused(column, "no message: nothing was generated")
    out = []
    for i, m in enumerate(said):
        canonical = _message({"role": "assistant"} | m if isinstance(m, dict) else m, f"{column}[{i}]")
        out.append(canonical | {"finish_reason": m.get("finish_reason")})
    return out


def _message(value: Any, where: str) -> dict[str, Any]:
    """A message with `parts` as the semantic conventions write it, or one in OpenAI's shape."""
    parts = value.get("parts") if isinstance(value, dict) else None
    if parts is None:
        return message(value, where)
    if isinstance(parts, str):
        parts = [{"type": "text", "content": parts}]
    content, calls, thoughts, role, identity = [], [], [], value.get("role"), None
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("content"), str):
            content.append(part["content"])
        elif kind == "reasoning":
            thoughts.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            calls.append({"name": part.get("name"), "arguments": part.get("arguments")})
        elif kind == "tool_call_response":
            role, identity = "tool", part.get("id")
            result = part.get("response", part.get("result"))
            content.append(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))
        else:
            raise NotText(f"{where}.parts[{i}]", "a part that is no text")
    out = {"role": role, "content": "".join(content), "tool_calls": calls, "reasoning_content": "".join(thoughts)}
    return message(out | ({"tool_call_id": identity} if identity else {}), where)


def _flat(found: dict[str, Any], side: str) -> list[dict[str, Any]]:
    """Messages that were flattened into one attribute per field."""
    out: dict[int, dict[str, Any]] = {}
    for key, value in found.items():
        match = _FLAT.fullmatch(key)
        if not match or match[1] != side:
            continue
        entry = out.setdefault(int(match[2]), {"role": "assistant" if side == "completion" else "user"})
        inner = re.fullmatch(r"tool_calls\.(\d+)\.(name|arguments|id)", match[3])
        if inner:
            entry.setdefault("calls", {}).setdefault(int(inner[1]), {})[inner[2]] = value
        else:
            entry[match[3]] = structured(value, key) if match[3] == "content" and str(value)[:2] == "[{" else value
    for entry in out.values():
        if calls := entry.pop("calls", None):
            entry["tool_calls"] = [call for _, call in sorted(calls.items())]
    return [entry for _, entry in sorted(out.items())]
