"""OpenAI chat, completion and Responses API calls as gateways log them: request and response bodies in one row.

Bodies may be objects, JSON text, or the raw event stream; under `request`/`response`, `request_body`/`response_body`,
with `body` and `status` inside, or with the request's own fields beside the response. A response alone is kept too:
what it put out is known, its prompt is not. vLLM's `prompt_token_ids` and `token_ids` are taken first.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from pipeline.ingest import responses_api
from pipeline.ingest.generation import (
    Generation,
    RowRefused,
    labels,
    sampling,
    structured,
    text_field,
    token_ids,
)
from pipeline.ingest.messages import NotText, message, messages, tools
from pipeline.ingest.openai_stream import from_events
from pipeline.ingest.times import NAMES, moment

_REQUEST = ("request", "request_body", "requestBody", "req", "request_data", "responses_create_params")
_RESPONSE = ("response", "response_body", "responseBody", "resp", "response_data")
_ASKED = ("messages", "prompt", "input")


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    if isinstance(record.get("choices"), list):
        return not record["choices"] or (isinstance(record["choices"][0], dict) and "turns" not in record["choices"][0])
    if record.get("object") == "response" and isinstance(record.get("output"), list):
        return True
    if any(_looks_like(record[k], _ASKED) for k in _REQUEST if record.get(k) is not None):
        return True
    if "messages" in record and any(k in record and not isinstance(record[k], str) for k in _RESPONSE):
        return True
    response = next((record[k] for k in _RESPONSE if record.get(k) is not None), None)
    return _looks_like(response, ("choices", "error")) or responses_api.is_response(response)


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """The generations of one call: one per choice.

    Raises:
        RowRefused: an error response, nothing put out, or a malformed body.
    """
    request, response, status = _bodies(record)
    if isinstance(status, int) and status >= 400:
        raise RowRefused("response", "an error response", f"status {status}")
    if response.get("error") and not response.get("choices"):
        raise RowRefused("response", "an error body in place of an answer")
    names = labels(record)
    for field, value in labels(request).items():
        names[field] = names[field] or value
    names["model"] = text_field(response, "model") or names["model"]
    base: dict[str, Any] = {**names, "arrival": moment(record, *NAMES) or moment(response, "created", "created_at")}
    identity = text_field(record, "request_id") or text_field(response, "id") or text_field(record, "id") or fallback_id
    if responses_api.is_response(response):
        yield from responses_api.generations(request, response, base, identity)
        return
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        raise RowRefused("response.choices", "missing or empty: nothing was generated")
    base |= {"sampling": sampling(request), "tools": tools(request.get("tools") or request.get("functions"))}
    prompts = _prompts(request, response)
    each = max(1, len(choices) // len(prompts))
    usage: dict[str, Any] = response["usage"] if isinstance(response.get("usage"), dict) else {}
    for i, choice in enumerate(choices):
        where = f"response.choices[{i}]"
        index = choice.get("index") if isinstance(choice, dict) else None
        index = index if isinstance(index, int) and 0 <= index < len(choices) else i
        try:
            yield Generation(
                **base,
                **prompts[min(index // each, len(prompts) - 1)] | _given(response, choice),
                **_said(choice, request, where),
                request_id=identity if len(choices) == 1 else f"{identity}/{index}",
                sample=index % each,
                finish_reason=text_field(choice, "finish_reason"),
                logged_prompt_tokens=usage.get("prompt_tokens") if len(prompts) == 1 else None,
                logged_output_tokens=usage.get("completion_tokens") if len(choices) == 1 else None,
            )
        except RowRefused as refused:
            yield refused


def _looks_like(body: Any, keys: tuple[str, ...]) -> bool:
    if isinstance(body, str):
        return (body[:1] == "{" and any(f'"{k}"' in body for k in keys)) or body.startswith(("data:", "event:"))
    if isinstance(body, dict) and "body" in body:
        body = body["body"]
        return isinstance(body, str) or _looks_like(body, keys)
    return isinstance(body, dict) and any(k in body for k in keys)


def _bodies(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """(request, response, HTTP status) of a row, however they are nested."""
    status = next((record[k] for k in ("status", "status_code", "statusCode") if k in record), None)
    if "choices" in record or record.get("object") == "response":
        return {}, record, None
    request = next((record[k] for k in _REQUEST if record.get(k) is not None), None)
    response = next((record[k] for k in _RESPONSE if record.get(k) is not None), None)
    if request is None and any(k in record for k in _ASKED):
        request = record | (record["model_parameters"] if isinstance(record.get("model_parameters"), dict) else {})
    if isinstance(response, dict) and "body" in response:
        status = response.get("status_code", response.get("status", status))
    return _body(request, "request"), _body(response, "response"), status


def _body(value: Any, column: str) -> dict[str, Any]:
    if isinstance(value, dict) and "body" in value:
        value = value["body"]
    if isinstance(value, dict) and "string" in value and len(value) <= 2:
        value = value["string"]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        if value.startswith(("data:", "event:", ":")) or "\ndata:" in value[:2000]:
            try:
                value = from_events(value)
            except (ValueError, msgspec.MsgspecError):
                raise RowRefused(column, "an event of the stream is not valid JSON") from None
        else:
            value = structured(value, column)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise RowRefused(column, "not a JSON body")
    return value


def _prompts(request: dict[str, Any], response: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked, one per prompt of the request; [{}] where it was not logged."""
    if request.get("messages"):
        try:
            history = messages(request["messages"], "request.messages")
        except NotText:
            return [{"notes": [responses_api.NO_TEXT]}]
        return [{"messages": history, "turn": sum(m["role"] == "assistant" for m in history)}]
    prompt = request.get("prompt")
    if prompt is None or prompt == []:
        return [{}]
    if isinstance(prompt, str):
        return [{"prompt_text": prompt}]
    if isinstance(prompt, list) and all(isinstance(p, str) for p in prompt):
        return [{"prompt_text": p} for p in prompt]
    if isinstance(prompt, list) and all(isinstance(p, list) for p in prompt):
        return [{"prompt_token_ids": token_ids({"request.prompt": p}, "request.prompt")} for p in prompt]
    return [{"prompt_token_ids": token_ids(request, "prompt")}]


def _given(response: dict[str, Any], choice: Any) -> dict[str, np.ndarray]:
    """The ids a vLLM server returned; without output ids the prompt's are of no use for a replay, yet kept."""
    out = {}
    for source, name, field in (
        (response, "prompt_token_ids", "prompt_token_ids"),
        (choice, "prompt_token_ids", "prompt_token_ids"),
        (choice, "token_ids", "output_token_ids"),
    ):
        if isinstance(source, dict) and (ids := token_ids(source, name)) is not None:
            out[field] = ids
    return out


def _said(choice: Any, request: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(choice, dict):
        raise RowRefused(where, "not a choice")
    if isinstance(choice.get("message"), dict):
        return {"answer": message({"role": "assistant"} | choice["message"], f"{where}.message")}
    if isinstance(choice.get("text"), str):
        text, prompt = choice["text"], request.get("prompt")
        if request.get("echo"):
            if not isinstance(prompt, str) or not text.startswith(prompt):
                raise RowRefused(f"{where}.text", "echoes a prompt that is not the request's")
            text = text[len(prompt) :]
        return {"output_text": text}
    raise RowRefused(where, "neither message nor text: nothing was generated")
