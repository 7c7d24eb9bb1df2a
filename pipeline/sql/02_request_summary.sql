-- One row per run, proposer, concurrency and request: its counts and its own four numbers.
--
-- output_tokens             T, tokens put out
-- steps, rounds             S, decode steps; R, those among them with at least one real candidate
-- drafted, accepted         D and C: real candidates, filler left out
-- engine_*                  the same as the engine counts them, filler included
-- emitted                   E = T - 1 for T >= 1, else 0
-- coverage                  R / S; NULL when S = 0
-- acceptance_rate           C / D; NULL when D = 0
-- mean_acceptance_length    1 + C / R; NULL when R = 0
-- tokens_per_step           E / S; NULL when S = 0
-- first_token_us            first token, in microseconds since the request was due; finished_us = last token. Live only
-- scheduled_us              when it was due since the unit's first request was, in microseconds: by its recorded arrival
-- dispatched_us             when the engine got it, by the same clock. Both NULL unless the run follows recorded arrivals:
--                           a request is due as soon as one before it has finished
-- A count that the source of an imported run does not say is NULL, and so is what follows from it.
-- equal_output              the output ids are those `none` put out for the same request of the same run;
--                           NULL without a `none` in the run, and for recorded replay
CREATE VIEW request_summary AS
WITH baseline AS (
    SELECT run, concurrency, request, any_value(output_digest) AS output_digest
    FROM files.requests
    WHERE output_digest IS NOT NULL AND proposer_key IN (SELECT proposer_key FROM files.baseline_keys)
    GROUP BY run, concurrency, request
)
SELECT
    requests.run,
    requests.proposer,
    requests.proposer_key,
    requests.concurrency,
    requests.request,
    requests.request_id,
    requests.session_id,
    requests.turn,
    requests.tenant,
    requests.workload,
    requests.arrival,
    requests.prompt_tokens,
    requests.output_tokens,
    requests.steps,
    requests.rounds,
    requests.drafted,
    requests.accepted,
    CASE WHEN requests.output_tokens IS NOT NULL THEN greatest(requests.output_tokens - 1, 0) END AS emitted,
    requests.overrun,
    requests.engine_rounds,
    requests.engine_drafted,
    requests.engine_accepted,
    requests.unverified,
    requests.prefill_filler,
    requests.rounds::double / nullif(requests.steps, 0) AS coverage,
    requests.accepted::double / nullif(requests.drafted, 0) AS acceptance_rate,
    1 + requests.accepted::double / nullif(requests.rounds, 0) AS mean_acceptance_length,
    CASE WHEN requests.output_tokens IS NOT NULL THEN greatest(requests.output_tokens - 1, 0) END::double
        / nullif(requests.steps, 0) AS tokens_per_step,
    requests.finish_reason,
    requests.prefix_cache_hit_tokens,
    requests.first_token_us,
    requests.finished_us,
    dispatches.scheduled_us,
    dispatches.dispatched_us,
    requests.output_digest = baseline.output_digest AS equal_output
FROM files.requests AS requests
LEFT JOIN baseline USING (run, concurrency, request)
LEFT JOIN files.dispatches AS dispatches USING (run, proposer, concurrency, request);
