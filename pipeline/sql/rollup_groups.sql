-- One row per run, proposer, concurrency and group of requests (scope, workload, tenant as in group_summary): sums that
-- add up over shards, because a session is never split between two. Made once with each shard.
--
-- requests … prefill_filler    sums over the requests; empty_outputs = requests with T = 0
-- X_sum, X_n                   sum of the requests' own X over the X_n requests where it is defined
-- sessions                     sessions; a request without one is its own
-- S2 … S5, R2 …, D2 …          sums over the sessions of steps^2 … steps^5; of rounds; of drafted (real candidates)
-- CC, EE                       sums over the sessions of accepted^2; of emitted^2
-- RS, CD, CR, ES               sums over the sessions of rounds * steps, accepted * drafted, accepted * rounds,
--                              emitted * steps
--
-- A count that an imported run's source does not say is NULL for all requests of the proposer, and so are its sums.
-- fsum: the order of the sessions must not show in the last digit.
WITH request AS (
    SELECT
        *,
        CASE WHEN output_tokens IS NOT NULL THEN greatest(output_tokens - 1, 0) END AS emitted,
        coalesce('s' || session_id, 'r' || request) AS session
    FROM raw.requests
),
session AS (
    SELECT
        run,
        proposer,
        concurrency,
        any_value(proposer_key) AS proposer_key,
        CASE
            WHEN grouping(workload) = 1 AND grouping(tenant) = 1 THEN 'all'
            WHEN grouping(tenant) = 1 THEN 'workload'
            WHEN grouping(workload) = 1 THEN 'tenant'
            ELSE 'workload and tenant'
        END AS scope,
        workload,
        tenant,
        count(*) AS requests,
        CASE WHEN count(output_tokens) > 0 THEN count(*) FILTER (output_tokens = 0) END AS empty_outputs,
        sum(prompt_tokens) AS prompt_tokens,
        sum(output_tokens) AS output_tokens,
        sum(steps) AS steps,
        sum(rounds) AS rounds,
        sum(drafted) AS drafted,
        sum(accepted) AS accepted,
        sum(emitted) AS emitted,
        sum(overrun) AS overrun,
        sum(engine_rounds) AS engine_rounds,
        sum(engine_drafted) AS engine_drafted,
        sum(engine_accepted) AS engine_accepted,
        sum(unverified) AS unverified,
        sum(prefill_filler) AS prefill_filler,
        fsum(rounds::double / nullif(steps, 0)) AS coverage_sum,
        count(rounds::double / nullif(steps, 0)) AS coverage_n,
        fsum(accepted::double / nullif(drafted, 0)) AS acceptance_rate_sum,
        count(accepted::double / nullif(drafted, 0)) AS acceptance_rate_n,
        fsum(1 + accepted::double / nullif(rounds, 0)) AS mean_acceptance_length_sum,
        count(accepted::double / nullif(rounds, 0)) AS mean_acceptance_length_n,
        fsum(emitted::double / nullif(steps, 0)) AS tokens_per_step_sum,
        count(emitted::double / nullif(steps, 0)) AS tokens_per_step_n,
        sum(steps)::double AS S,
        sum(rounds)::double AS R,
        sum(drafted)::double AS D,
        sum(accepted)::double AS C,
        sum(emitted)::double AS E
    FROM request
    GROUP BY GROUPING SETS (
        (run, proposer, concurrency, session),
        (run, proposer, concurrency, workload, session),
        (run, proposer, concurrency, tenant, session),
        (run, proposer, concurrency, workload, tenant, session)
    )
)
SELECT
    run,
    proposer,
    concurrency,
    any_value(proposer_key) AS proposer_key,
    scope,
    workload,
    tenant,
    sum(requests)::bigint AS requests,
    sum(empty_outputs)::bigint AS empty_outputs,
    sum(prompt_tokens)::bigint AS prompt_tokens,
    sum(output_tokens)::bigint AS output_tokens,
    sum(steps)::bigint AS steps,
    sum(rounds)::bigint AS rounds,
    sum(drafted)::bigint AS drafted,
    sum(accepted)::bigint AS accepted,
    sum(emitted)::bigint AS emitted,
    sum(overrun)::bigint AS overrun,
    sum(engine_rounds)::bigint AS engine_rounds,
    sum(engine_drafted)::bigint AS engine_drafted,
    sum(engine_accepted)::bigint AS engine_accepted,
    sum(unverified)::bigint AS unverified,
    sum(prefill_filler)::bigint AS prefill_filler,
    fsum(coverage_sum) AS coverage_sum,
    sum(coverage_n)::bigint AS coverage_n,
    fsum(acceptance_rate_sum) AS acceptance_rate_sum,
    sum(acceptance_rate_n)::bigint AS acceptance_rate_n,
    fsum(mean_acceptance_length_sum) AS mean_acceptance_length_sum,
    sum(mean_acceptance_length_n)::bigint AS mean_acceptance_length_n,
    fsum(tokens_per_step_sum) AS tokens_per_step_sum,
    sum(tokens_per_step_n)::bigint AS tokens_per_step_n,
    count(*)::bigint AS sessions,
    fsum(S ** 2) AS S2,
    fsum(S ** 3) AS S3,
    fsum(S ** 4) AS S4,
    fsum(S ** 5) AS S5,
    fsum(R ** 2) AS R2,
    fsum(R ** 3) AS R3,
    fsum(R ** 4) AS R4,
    fsum(R ** 5) AS R5,
    fsum(D ** 2) AS D2,
    fsum(D ** 3) AS D3,
    fsum(D ** 4) AS D4,
    fsum(D ** 5) AS D5,
    fsum(C * C) AS CC,
    fsum(E * E) AS EE,
    fsum(R * S) AS RS,
    fsum(C * D) AS CD,
    fsum(C * R) AS CR,
    fsum(E * S) AS ES
FROM session
GROUP BY run, proposer, concurrency, scope, workload, tenant
