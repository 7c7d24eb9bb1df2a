"""From a team's log to a canonical trace: one file per log format, found by content and not by name.

A format module has `matches(record) -> bool` and `generations(record, fallback_id) -> Iterator[Generation |
RowRefused]` (a refusal that is yielded costs that generation only, one that is raised ends the row). Adding a format
is one file and one line in `FORMATS`.
"""

from pipeline.ingest import (
    conversations,
    langfuse,
    lengths,
    openai_pairs,
    otel_spans,
    question_answers,
    text_pairs,
    token_ids,
    trajectories,
    vcr_cassettes,
    vllm_benchmark,
    vllm_tap,
)

FORMATS = {
    "token-ids": token_ids,
    "openai": openai_pairs,
    "otel": otel_spans,
    "langfuse": langfuse,
    "vcr": vcr_cassettes,
    "trajectories": trajectories,
    "conversations": conversations,
    "questions": question_answers,
    "vllm-tap": vllm_tap,
    "vllm-benchmark": vllm_benchmark,
    "lengths": lengths,
    "text": text_pairs,
}
"""Tried in this order; recorded ids win over text, and a format that says more wins over one that says less."""
