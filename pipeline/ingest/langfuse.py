"""Langfuse exports: a trace with its observations, or observations one per row. Each GENERATION is one generation.

Inputs and outputs are JSON inside strings, sometimes twice; order is not time order; a trace may hold the same
observations again. Spans and tools repeat the text and are not read.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest import responses_api
from pipeline.ingest.generation import Generation, RowRefused, sampling, structured, text_field
from pipeline.ingest.messages import NotText, message, messages, tools
from pipeline.ingest.times import moment

_LANGCHAIN = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    if isinstance(record.get("observations"), list):
        return True
    return isinstance(record.get("type"), str) and ("traceId" in record or "trace_id" in record) and "input" in record


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """The generations of a trace in order of their start, or the one of an observation."""
    trace = record["trace"] if isinstance(record.get("trace"), dict) else record
    found = record.get("observations")
    inside = trace.get("observations")
    observations: dict[str, dict] = {}
    for i, observation in enumerate([*(found or []), *(inside if isinstance(inside, list) else [])]):
        if isinstance(observation, dict):
            observations.setdefault(text_field(observation, "id") or f"{fallback_id}/{i}", observation)
    if found is None and not observations:
        observations = {text_field(record, "id") or fallback_id: record}
    made = [(k, o) for k, o in observations.items() if o.get("type") == "GENERATION"]
    made.sort(key=lambda item: str(item[1].get("startTime", item[1].get("start_time")) or ""))
    for turn, (identity, observation) in enumerate(made):
        try:
            yield from _one(observation, trace, identity, turn if found is not None else None)
        except RowRefused as refused:
            yield refused


def _one(o: dict[str, Any], trace: dict[str, Any], identity: str, turn: int | None) -> Iterator[Generation]:
    base: dict[str, Any] = {
        "session_id": text_field(trace, "sessionId", "session_id") or text_field(o, "traceId", "trace_id"),
        "model": text_field(o, "model", "providedModelName"),
        "arrival": moment(o, "startTime", "start_time"),
        "turn": turn,
    }
    asked, said = structured(o.get("input"), "input"), structured(o.get("output"), "output")
    usage = _lenient(o.get("usageDetails", o.get("usage_details"))) or {}
    logged_in = o.get("inputUsage") or usage.get("input")
    logged_out = o.get("outputUsage") or usage.get("output")
    if responses_api.is_response(said):
        request = {"input": asked, "tools": said.get("tools"), "instructions": said.get("instructions")}
        yield from responses_api.generations(request, {**said, "id": identity}, base, identity)
        return
    offered = None
    if isinstance(asked, dict):
        offered, asked = tools(asked.get("tools")), asked.get("messages", asked.get("input", asked))
    notes: list[str] = []
    try:
        history = _messages(asked, "input")
    except NotText:
        history, notes = None, [responses_api.NO_TEXT]
    answer, finish = _answer(said)
    yield Generation(
        **base,
        request_id=identity,
        messages=history,
        answer=answer,
        tools=offered,
        sampling=sampling(_lenient(o.get("modelParameters", o.get("model_parameters")))),
        finish_reason=finish,
        logged_prompt_tokens=logged_in if isinstance(logged_in, int) else None,
        logged_output_tokens=logged_out if isinstance(logged_out, int) else None,
        notes=notes,
    )


def _lenient(value: Any) -> dict[str, Any] | None:
    """Settings are worth having and not worth losing a row: what is no JSON is left out."""
    try:
        value = structured(value, "")
    except RowRefused:
        return None
    return value if isinstance(value, dict) else None


def _messages(value: Any, column: str) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list) and any(isinstance(m, dict) and m.get("type") == "function_call" for m in value):
        return responses_api.items(value, column)
    out, called = [], set()
    for i, m in enumerate(value if isinstance(value, list) else [value]):
        where = f"{column}[{i}]"
        if isinstance(m, dict) and "role" not in m and m.get("type") in _LANGCHAIN:
            m = {**m, "role": _LANGCHAIN[m["type"]]}
        elif isinstance(m, dict) and m.get("role") in called:
            m = {**m, "role": "tool", "name": m["role"]}  # LangChain.js names a result's role after the tool
        out.append(message(m, where))
        called |= {c["function"]["name"] for c in out[-1].get("tool_calls", [])}
    return out


def _answer(said: Any) -> tuple[dict[str, Any], str | None]:
    if isinstance(said, dict) and isinstance(said.get("choices"), list) and said["choices"]:
        choice = said["choices"][0]
        return message({"role": "assistant"} | choice.get("message", {}), "output"), text_field(choice, "finish_reason")
    if isinstance(said, dict) and isinstance(said.get("messages"), list):
        said = said["messages"]
    if isinstance(said, list) and said:
        said = said[-1]
    if isinstance(said, str):
        return {"role": "assistant", "content": said}, None
    if isinstance(said, dict) and ("content" in said or "tool_calls" in said):
        said = said if "role" in said else {**said, "role": "assistant"}
        return messages([said], "output")[0], text_field(said, "finish_reason")
    raise RowRefused("output", "no message: nothing was generated")
