"""The tables, declared as data: one Arrow schema each, with what a column means as its metadata.

Words are those of the metrics: D `drafted`, C `accepted`, R `rounds`, S `steps`, E `emitted`, T `output_tokens`.
Token ids decode to text: whoever may not read the prompts may not read a trace either.
"""

import pyarrow as pa

SCHEMA_VERSION = 1

# Code 0 stands for "something was proposed" (NULL in the table); the order is part of the in-memory format only.
MISS_REASONS = (
    None,
    "no_match",  # the proposer looked and found nothing to propose
    "too_short",  # the history is shorter than the shortest window
    "length_limit",  # max_model_len leaves no room for a candidate
    "grammar",  # every candidate was cut by the structured-output grammar
    "skipped",  # the engine did not ask the proposer, or scheduled only placeholder candidates
)

NO_GROUP = "(none)"
"""Tenant or workload of rows that name none: they form one group of their own."""


def _table(**columns: tuple[pa.DataType, str, bool]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, type_, nullable=nullable, metadata={"doc": doc})
            for name, (type_, doc, nullable) in columns.items()
        ]
    )


def _must(type_: pa.DataType, doc: str) -> tuple[pa.DataType, str, bool]:
    return type_, doc, False


def _may(type_: pa.DataType, doc: str) -> tuple[pa.DataType, str, bool]:
    return type_, doc, True


_name = pa.string()
_ids = pa.list_(pa.int32())

TRACE = _table(
    request_id=_must(_name, "unique within the trace"),
    session_id=_may(_name, "conversation or agent run the request belongs to"),
    turn=_may(pa.int32(), "position of the generation within its session, from 0"),
    sample=_must(pa.int32(), "which of n samples of one prompt, from 0"),
    tenant=_may(_name, "who sent it"),
    workload=_may(_name, "what kind of request it is"),
    model=_may(_name, "model that produced the output"),
    arrival=_may(pa.timestamp("us", tz="UTC"), "when it arrived"),
    arrival_offset_us=_may(pa.int64(), "microseconds since the first request, where only that is known"),
    prompt_token_ids=_may(_ids, "prompt as the target saw it; NULL in a trace of lengths"),
    output_token_ids=_may(_ids, "what the target put out, the end token included; NULL if prompt only"),
    tail_token_ids=_may(_ids, "what the target would have said past the end; only from `capture`"),
    prompt_tokens=_must(pa.int32(), "length of the prompt"),
    output_tokens=_may(pa.int32(), "T, length of the output; NULL if prompt only"),
    sampling=_may(_name, "JSON with SamplingParams names"),
    finish_reason=_may(_name, "stop, length, tool_calls, … as recorded"),
    tokenizer=_may(_name, "fingerprint of the tokenizer that made the ids"),
    source_file=_may(_name, "file it was read from (name only)"),
    source_row=_may(pa.int64(), "row or line in that file, from 1"),
    extra=_may(_name, "JSON of what the source held besides"),
)

TEXT = _table(
    prompt_text=_may(_name, "the prompt as it was tokenised; only with --keep-text"),
    output_text=_may(_name, "the output as it was tokenised; only with --keep-text"),
)

TRACE_WITH_TEXT = pa.schema([*TRACE, *TEXT])

REJECTS = _table(
    file=_must(_name, "file the row stands in (name only)"),
    row=_may(pa.int64(), "row or line in that file, from 1; NULL = the whole file"),
    column=_must(_name, "column at fault"),
    reason=_must(_name, "why it was refused; never content"),
)

_UNIT = dict(
    proposer=_must(_name, "free name of the proposer in the config"),
    concurrency=_must(pa.int32(), "sequences run at once; 1 for recorded replay and imported counts, which know none"),
)

DECODE_STEPS = _table(
    **_UNIT,
    request=_must(pa.int32(), "position of the request in the run, from 0; joins requests"),
    step=_must(pa.int32(), "decode step of the request, from 1"),
    drafted=_must(pa.int16(), "candidates scheduled for verification, filler included"),
    filler=_must(pa.int16(), "placeholder candidates among them, always behind the real ones"),
    accepted=_may(pa.int16(), "candidates verification accepted, filler included; NULL = never verified"),
    overrun=_must(pa.int16(), "accepted, correction or bonus tokens cut off by end, stop or length limit"),
    miss_reason=_may(_name, "why nothing but filler was proposed; NULL when something was"),
    engine_step=_may(pa.int32(), "engine iteration that verified it; joins engine_steps; NULL for recorded replay"),
)

# A replay knows every count; what an imported run's source does not say is NULL.
REQUESTS = _table(
    **_UNIT,
    proposer_key=_must(_name, "hash of the proposer's effective settings"),
    request=_must(pa.int32(), "position of the request in the run, from 0"),
    request_id=_must(_name, "as in the trace"),
    session_id=_may(_name, "as in the trace"),
    turn=_may(pa.int32(), "as in the trace"),
    tenant=_must(_name, "as in the trace; (none) where it names none"),
    workload=_must(_name, "as in the trace; (none) where it names none"),
    arrival=_may(pa.timestamp("us", tz="UTC"), "as in the trace"),
    prompt_tokens=_may(pa.int32(), "length of the prompt"),
    output_tokens=_may(pa.int32(), "T, tokens put out"),
    steps=_may(pa.int32(), "S, decode steps (verified)"),
    rounds=_may(pa.int32(), "R, decode steps that proposed at least one real candidate"),
    drafted=_may(pa.int32(), "D, real candidates"),
    accepted=_may(pa.int32(), "C, accepted real candidates"),
    engine_rounds=_may(pa.int32(), "steps with candidates as the engine counts them, filler included"),
    engine_drafted=_may(pa.int32(), "candidates as the engine counts them, filler included"),
    engine_accepted=_may(pa.int32(), "accepted as the engine counts them, filler included"),
    overrun=_may(pa.int32(), "tokens cut off at the end"),
    unverified=_may(pa.int32(), "steps scheduled but never verified; outside S, R, D, C"),
    prefill_filler=_may(pa.int32(), "placeholder candidates on the very first iteration"),
    finish_reason=_may(_name, "why it ended"),
    prefix_cache_hit_tokens=_may(pa.int32(), "prompt tokens whose KV was reused; live only, outside S, R, D, C"),
    first_token_us=_may(pa.int64(), "first token, in µs since the request was due: see dispatches; live only"),
    finished_us=_may(pa.int64(), "last token, in µs since the request was due: see dispatches; live only"),
    output_digest=_may(_name, "keyed digest of the output ids, to compare outputs across proposers; live only"),
)

ENGINE_STEPS = _table(
    **_UNIT,
    engine_step=_must(pa.int32(), "engine iteration, from 0"),
    sequences=_must(pa.int32(), "batch size: sequences scheduled"),
    prefill_tokens=_must(pa.int32(), "prompt tokens computed"),
    decode_tokens=_must(pa.int32(), "tokens scheduled for decode steps, candidates included"),
    draft_tokens=_must(pa.int32(), "candidates among them, filler included"),
    emitted=_must(pa.int32(), "tokens that decode steps put out"),
    started_us=_must(pa.int64(), "start since the first iteration of the unit, in µs"),
    step_us=_must(pa.int32(), "whole iteration: schedule, forward, sample, propose, update"),
    verify_us=_must(pa.int32(), "target forward and sampling"),
    draft_us=_must(pa.int32(), "proposing the next candidates"),
)

OUTPUTS = _table(
    **_UNIT,
    request=_must(pa.int32(), "position of the request in the run, from 0; joins requests"),
    output_token_ids=_must(_ids, "what the engine put out; live only, for recorded replay the trace has them"),
    cut_token_ids=_must(_ids, "what its last step put out past the cut, thrown away (overrun)"),
)

OUTPUT_DIFFERENCES = _table(
    **_UNIT,
    request=_must(pa.int32(), "position of the request in the run, from 0; a greedy one whose output is not none's"),
    position=_must(pa.int32(), "first token of the output that differs, from 1"),
    baseline_token=_may(pa.int32(), "what none put out there; NULL = its output had ended"),
    token=_may(pa.int32(), "what this proposer put out there; NULL = its output had ended"),
    baseline_logprob=_may(pa.float64(), "log-probability of baseline_token by one plain forward; NULL without a token"),
    logprob=_may(pa.float64(), "log-probability of token by the same forward; NULL without a token"),
)

DISPATCHES = _table(
    **_UNIT,
    request=_must(pa.int32(), "position of the request in the run, from 0; joins requests"),
    scheduled_us=_must(pa.int64(), "when it was due, in µs since the unit's first request was: its arrival, sped up"),
    dispatched_us=_must(pa.int64(), "when the engine got it, by the same clock"),
)
"""Live with pace = "arrival" only. A request is due on its scheduled arrival here, and when it is sent elsewhere."""

_GROUP = dict(
    workload=_must(_name, "as in the trace; (none) where it names none"),
    tenant=_must(_name, "as in the trace; (none) where it names none"),
)

ROLLUP_STEPS = _table(
    **_UNIT,
    day=_may(pa.date32(), "of the request's arrival, UTC; NULL where only its order is known"),
    **_GROUP,
    bucket=_must(pa.int16(), "0 to 199, by a fixed hash of the session, else the request: whole sessions, to resample"),
    drafted=_must(pa.int16(), "candidates per step, filler included"),
    filler=_must(pa.int16(), "placeholder candidates among them"),
    accepted=_must(pa.int16(), "candidates accepted, filler included"),
    miss_reason=_may(_name, "why nothing but filler was proposed"),
    steps=_must(pa.int64(), "verified decode steps like that"),
)

ROLLUP_HISTOGRAM = pa.schema([field for field in ROLLUP_STEPS if field.name not in ("day", "bucket")])
"""`ROLLUP_STEPS` summed over days and buckets: what totals are read from."""

_RATIOS = "coverage acceptance_rate mean_acceptance_length tokens_per_step".split()
_SUMS = (
    "requests empty_outputs prompt_tokens output_tokens steps rounds drafted accepted emitted overrun "
    "engine_rounds engine_drafted engine_accepted unverified prefill_filler"
).split()
_MOMENTS = "S2 S3 S4 S5 R2 R3 R4 R5 D2 D3 D4 D5 CC EE RS CD CR ES".split()

ROLLUP_GROUPS = _table(
    **_UNIT,
    proposer_key=_must(_name, "hash of the proposer's effective settings"),
    scope=_must(_name, "how requests are grouped: all, workload, tenant, workload and tenant"),
    workload=_may(_name, "NULL where the scope does not group by it"),
    tenant=_may(_name, "NULL where the scope does not group by it"),
    **{name: _must(pa.int64(), "sum over the requests; requests themselves are counted") for name in _SUMS},
    **{
        name: made
        for ratio in _RATIOS
        for name, made in (
            (f"{ratio}_sum", _may(pa.float64(), "sum of the requests' own, where defined; NULL where it nowhere is")),
            (f"{ratio}_n", _must(pa.int64(), "requests where it is defined")),
        )
    },
    sessions=_must(pa.int64(), "sessions; a request without one is its own"),
    **{name: _must(pa.float64(), "sum over sessions of that product of steps S, R, D, C, E") for name in _MOMENTS},
)

ROLLUPS = {"rollup_steps": ROLLUP_STEPS, "rollup_histogram": ROLLUP_HISTOGRAM, "rollup_groups": ROLLUP_GROUPS}
"""What is summed up with each shard, by folder name; made of its other tables, and never needed: they say the same."""

RUN_TABLES = {
    "decode_steps": DECODE_STEPS,
    "requests": REQUESTS,
    "engine_steps": ENGINE_STEPS,
    "dispatches": DISPATCHES,
    "outputs": OUTPUTS,
    "output_differences": OUTPUT_DIFFERENCES,
    **ROLLUPS,
}
"""The tables a run's shard may hold, by folder name."""
