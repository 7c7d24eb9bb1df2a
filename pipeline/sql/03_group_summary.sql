-- One row per run, proposer and group of requests. `scope` says how the requests were grouped: 'all' (one group),
-- 'workload', 'tenant', or 'workload and tenant'; a column that a scope does not group by is NULL.
-- Never add up rows of different scopes. proposer_summary, workload_summary and tenant_summary are its slices.
--
-- requests                  request outputs replayed; empty_outputs = those among them with T = 0
-- steps, rounds             S = sum of steps; R = sum of rounds
-- drafted, accepted         D, C: sums over real candidates, filler left out
-- emitted, overrun          E = sum of emitted; tokens cut off at the end
-- engine_*                  rounds, drafted and accepted as the engine counts them, filler included
-- unverified                steps scheduled but never verified, outside S, R, D and C
-- coverage                  pooled R / S; NULL when S = 0
-- acceptance_rate           pooled C / D; NULL when D = 0
-- mean_acceptance_length    pooled 1 + C / R; NULL when R = 0
-- tokens_per_step           pooled E / S; NULL when S = 0
-- X_mean, X_n               per request: mean of the requests' own X over the X_n requests where it is defined
--                           (favg: the order in which files are read must not show in the last digit)
-- equal_outputs             share of requests whose output equals that of `none`, over equal_outputs_n compared
CREATE VIEW group_summary AS
SELECT
    run,
    proposer,
    any_value(request.proposer_key) AS proposer_key,
    CASE
        WHEN grouping(workload) = 1 AND grouping(tenant) = 1 THEN 'all'
        WHEN grouping(tenant) = 1 THEN 'workload'
        WHEN grouping(workload) = 1 THEN 'tenant'
        ELSE 'workload and tenant'
    END AS scope,
    workload,
    tenant,
    count(*)::bigint AS requests,
    count(*) FILTER (request.output_tokens = 0)::bigint AS empty_outputs,
    sum(request.prompt_tokens)::bigint AS prompt_tokens,
    sum(request.output_tokens)::bigint AS output_tokens,
    sum(request.steps)::bigint AS steps,
    sum(request.rounds)::bigint AS rounds,
    sum(request.drafted)::bigint AS drafted,
    sum(request.accepted)::bigint AS accepted,
    sum(request.emitted)::bigint AS emitted,
    sum(request.overrun)::bigint AS overrun,
    sum(request.engine_rounds)::bigint AS engine_rounds,
    sum(request.engine_drafted)::bigint AS engine_drafted,
    sum(request.engine_accepted)::bigint AS engine_accepted,
    sum(request.unverified)::bigint AS unverified,
    sum(request.prefill_filler)::bigint AS prefill_filler,
    sum(request.rounds)::double / nullif(sum(request.steps), 0) AS coverage,
    favg(request.coverage) AS coverage_mean,
    count(request.coverage)::bigint AS coverage_n,
    sum(request.accepted)::double / nullif(sum(request.drafted), 0) AS acceptance_rate,
    favg(request.acceptance_rate) AS acceptance_rate_mean,
    count(request.acceptance_rate)::bigint AS acceptance_rate_n,
    1 + sum(request.accepted)::double / nullif(sum(request.rounds), 0) AS mean_acceptance_length,
    favg(request.mean_acceptance_length) AS mean_acceptance_length_mean,
    count(request.mean_acceptance_length)::bigint AS mean_acceptance_length_n,
    sum(request.emitted)::double / nullif(sum(request.steps), 0) AS tokens_per_step,
    favg(request.tokens_per_step) AS tokens_per_step_mean,
    count(request.tokens_per_step)::bigint AS tokens_per_step_n,
    avg(request.equal_output::integer) AS equal_outputs,
    count(request.equal_output)::bigint AS equal_outputs_n
FROM request_summary AS request
GROUP BY GROUPING SETS (
    (run, proposer),
    (run, proposer, workload),
    (run, proposer, tenant),
    (run, proposer, workload, tenant)
);
