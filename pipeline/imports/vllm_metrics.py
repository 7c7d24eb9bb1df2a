"""vLLM's own counts per request: `--per-request-spec-decode-metrics summary` or `detailed`, as of vLLM 0.32.0.

They come in responses of the OpenAI-compatible server (`metrics.speculative_decoding`, beside `usage`: chat and text
completions, the last chunk of a stream with usage, rows of `vllm run-batch`) and in `outputs[i].spec_decode_metrics` of
a `RequestOutput` written as JSON. Shapes: `SpeculativeDecodingMetrics` in vllm/entrypoints/generate/base/protocol.py,
`RequestSpecDecodeMetrics` in vllm/v1/metrics/stats.py.

Both count steps with candidates only (R, D, C; `acceptance_histogram[j]` = rounds that accepted j): how many steps
proposed nothing, and so S and coverage, they do not say. What is filler among the candidates they do not say either.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.imports.counted import Counted, microseconds, whole, wholes
from pipeline.ingest.generation import RowRefused

_HERE = "metrics.speculative_decoding"
_RAW = "spec_decode_metrics"


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is a response of vLLM's server (maybe inside a row of a batch or log), or a `RequestOutput`."""
    return _is_request_output(record) or _response(record) is not None


def counted(record: dict[str, Any], row: int) -> Iterator[Counted]:
    """The outputs of one row (its number is not needed); none for the earlier chunks of a stream.

    Raises:
        RowRefused: it holds no such metrics, or they contradict each other.
    """
    if _is_request_output(record):
        yield from _request_output(record)
        return
    response = _response(record)
    if response is None:
        raise RowRefused("(row)", "is no response of vLLM's server")
    usage, metrics = response.get("usage"), _object(response.get("metrics"))
    spec, choices = metrics.get("speculative_decoding"), response["choices"]
    first = _object(choices[0]) if choices else {}
    if not isinstance(spec, dict):
        if "delta" in first or (usage is None and "message" not in first):
            return  # a chunk before the last
        raise RowRefused(
            _HERE, "is missing: vLLM leaves it out for n > 1 and without --per-request-spec-decode-metrics"
        )
    usage = _object(usage)
    tokens = usage.get("completion_tokens")
    tokens = None if tokens is None else whole(tokens, "usage.completion_tokens")
    prompt = usage.get("prompt_tokens")
    numbers = _numbers(spec, _HERE, "acceptance_histogram", tokens)
    for key, value in (("num_spec_steps", numbers.rounds), ("num_accepted_draft_tokens", numbers.accepted)):
        if whole(spec.get(key), f"{_HERE}.{key}") != value:
            raise RowRefused(f"{_HERE}.{key}", f"is {spec[key]}, but acceptance_histogram says {value}")
    # vLLM's time to the first token starts when the request leaves the queue
    times = [
        microseconds(metrics.get(key), 1e3) for key in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
    ]
    yield Counted(
        request_id=_name(response, "id"),
        output_tokens=tokens,
        prompt_tokens=None if prompt is None else whole(prompt, "usage.prompt_tokens"),
        finish_reason=_text(first.get("finish_reason")),
        first_token_us=_sum(times[:2]),
        finished_us=_sum(times),
        **asdict(numbers),
    )


def _request_output(record: dict[str, Any]) -> Iterator[Counted]:
    outputs, prompt = record["outputs"], record.get("prompt_token_ids")
    for place, output in enumerate(outputs):
        where = f"outputs[{place}]"
        ids, spec = output.get("token_ids"), output.get(_RAW)
        if not isinstance(spec, dict):
            raise RowRefused(f"{where}.{_RAW}", "is missing: run vLLM with per_request_spec_decode_metrics")
        tokens = len(ids) if isinstance(ids, list) else None
        name = _name(record, "request_id")
        yield Counted(
            request_id=name if len(outputs) == 1 else f"{name}/{place}",
            output_tokens=tokens,
            prompt_tokens=len(prompt) if isinstance(prompt, list) else None,
            finish_reason=_text(output.get("finish_reason")),
            **asdict(_numbers(spec, f"{where}.{_RAW}", "histogram", tokens)),
        )


@dataclass(frozen=True)
class _Numbers:
    rounds: int
    drafted: int
    accepted: int
    longest: int


def _numbers(spec: dict[str, Any], where: str, histogram: str, tokens: int | None) -> _Numbers:
    """R, D and C, from the histogram; what the steps say one by one must add up to the same."""
    rows = wholes(spec.get(histogram), f"{where}.{histogram}")
    drafted = whole(spec.get("num_draft_tokens"), f"{where}.num_draft_tokens")
    longest = whole(spec.get("num_spec_tokens"), f"{where}.num_spec_tokens")
    rounds, accepted = sum(rows), sum(j * count for j, count in enumerate(rows))
    most = max((j for j, count in enumerate(rows) if count), default=0)
    if most > longest:
        raise RowRefused(
            f"{where}.{histogram}", f"says that {most} were accepted at once, of num_spec_tokens {longest}"
        )
    if not accepted <= drafted <= longest * rounds:  # a grammar may leave a round without candidates: not R <= D
        raise RowRefused(
            f"{where}.num_draft_tokens",
            f"is {drafted}, but {accepted} were accepted in {rounds} rounds of at most {longest}",
        )
    if steps := wholes(spec.get("per_step_accepted") or [], f"{where}.per_step_accepted"):
        if Counter(steps) != Counter({j: count for j, count in enumerate(rows) if count}):
            raise RowRefused(f"{where}.per_step_accepted", f"does not add up to {histogram}")
        each = wholes(spec.get("per_step_drafted"), f"{where}.per_step_drafted")
        if len(each) != len(steps) or sum(each) != drafted:
            raise RowRefused(f"{where}.per_step_drafted", "does not add up to num_draft_tokens")
        for step, (d, c) in enumerate(zip(each, steps, strict=True)):
            if not c <= d <= longest:
                raise RowRefused(
                    f"{where}.per_step_drafted[{step}]", f"is {d}, but {c} were accepted, of {longest} at most"
                )
    # E = T - 1 = S + C - overrun with S >= R and overrun <= the most one round accepted; one round may be prefill's
    if tokens is not None and max(tokens - 1, 0) < rounds - 1 + accepted - most:
        raise RowRefused(
            f"{where}.{histogram}", f"says {rounds} rounds that accepted {accepted}: too many for {tokens} tokens"
        )
    return _Numbers(rounds, drafted, accepted, longest)


def _is_request_output(record: dict[str, Any]) -> bool:
    outputs = record.get("outputs")
    return (
        "request_id" in record
        and isinstance(outputs, list)
        and bool(outputs)
        and all(isinstance(output, dict) and "token_ids" in output for output in outputs)
    )


def _response(record: dict[str, Any]) -> dict[str, Any] | None:
    """The server's response: the row itself, or its `response`, or that one's `body` (a batch)."""
    there = record
    for key in (None, "response", "body"):
        there = there if key is None else there.get(key)
        if not isinstance(there, dict):
            return None
        if isinstance(there.get("choices"), list):
            return there
    return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _sum(times: Sequence[int | None]) -> int | None:
    there = [time for time in times if time is not None]
    return sum(there) if len(there) == len(times) else None


def _name(record: dict[str, Any], key: str) -> str:
    name = record.get(key)
    if not isinstance(name, str) or not name:
        raise RowRefused(key, "must be a text")
    return name
