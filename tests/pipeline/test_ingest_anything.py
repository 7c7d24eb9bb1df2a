"""Whatever an object in a log looks like, it becomes rows or refusals: never a traceback, never a broken trace."""

import json

import pytest
from byte_tokenizer import save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.ingest.mapping import Mapping
from pipeline.ingest.report import IngestReport
from pipeline.ingest.run import _Ingest
from pipeline.ingest.times import Placer
from pipeline.ingest.tokenise import Tokeniser
from schemas.tables import TRACE_WITH_TEXT

WORDS = """
messages role content tool_calls function name arguments prompt output completion response request choices message
text index delta finish_reason usage prompt_tokens completion_tokens input_tokens output_tokens token_ids
prompt_token_ids output_token_ids tail_token_ids generation_token_ids conversations from value traj history info
environment task_id trial observations trace type id input traceId startTime spans attributes span_id
gen_ai.input.messages gen_ai.output.messages gen_ai.output.text parts interactions body string status question_id
turns accept_lengths decoding_steps new_tokens input_lens output_lens generated_texts errors start_times ttft_ms
arrival_ms input_length output_length hash_ids timestamp ContextTokens TIMESTAMP arrival session_id tenant workload
model turn sample sampling extra tools system instruction object metadata resourceSpans scopeSpans usageDetails
arrival_offset_us tokenizer n echo stop_token_ids
""".split()
VALUES = [
    *(None, True, "", "user", "assistant", "gpt", "human", "GENERATION", "response", "[]", '[{"role": "user"}]', "{"),
    *("data: {}\n\n", "2026-01-01", "stop", "text", "\x00"),
    *(-1, 0, 1, 7, 2**31, 2**63, 10**400, 1.5, 1e300, 1700000000),
]

anything = st.recursive(
    st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=25,
)
ROLES = st.sampled_from(["user", "assistant", "tool"])
MESSAGE = st.fixed_dictionaries({"role": ROLES, "content": st.sampled_from(VALUES)})
LENGTHS = st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), st.sampled_from(VALUES))
SHAPES = {
    "anything": st.dictionaries(st.sampled_from(WORDS), anything, min_size=1, max_size=7),
    "pair": st.fixed_dictionaries({"request": anything, "response": st.fixed_dictionaries({
        "choices": st.lists(st.dictionaries(st.sampled_from(WORDS), anything | MESSAGE, max_size=5), max_size=3)},
        optional={"usage": LENGTHS, "id": anything, "prompt_token_ids": anything})}),
    "chat": st.fixed_dictionaries({"messages": st.lists(MESSAGE, max_size=4)}, optional={
        "turn": anything, "session_id": anything, "sampling": anything, "timestamp": anything, "tools": anything}),
    "ids": st.fixed_dictionaries({"prompt_token_ids": st.lists(st.integers(0, 299), min_size=1)}, optional={
        "output_token_ids": anything, "turn": anything, "sample": anything, "arrival": anything, "extra": anything,
        "arrival_offset_us": anything, "sampling": anything, "output_tokens": anything, "output": anything}),
    "lengths": st.fixed_dictionaries({"input_length": anything, "output_length": anything}, optional={
        "timestamp": anything, "hash_ids": anything, "model": anything}),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokeniser(tmp_path_factory):
    return Tokeniser(save(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_or_refusals(tmp_path_factory, tokeniser, shape):
    file = tmp_path_factory.mktemp("logs") / "r.jsonl"

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(SHAPES[shape], min_size=1, max_size=4))
    def run(rows):
        from pipeline.ingest.files import Source

        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        work = _Ingest(IngestReport(), Mapping([]), "auto", None, Placer(None), None, True, False, tokeniser)
        for table in work.tables(work.generations([Source(file, "r.jsonl")])):
            assert table.schema == TRACE_WITH_TEXT
            for row in table.to_pylist():
                assert row["prompt_tokens"] >= 0 and (row["output_tokens"] or 0) >= 0 and row["sample"] >= 0
                json.loads(row["extra"])
        assert work.report.rows <= len(rows)

    run()
