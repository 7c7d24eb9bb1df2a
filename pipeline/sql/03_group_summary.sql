-- One row per run, proposer, concurrency and group of requests. `scope` says how the requests were grouped: 'all' (one
-- group), 'workload', 'tenant', or 'workload and tenant'; a column that a scope does not group by is NULL.
-- Never add up rows of different scopes. proposer_summary, workload_summary and tenant_summary are its slices.
--
-- requests                  request outputs replayed; empty_outputs = those among them with T = 0
-- sessions                  sessions they belong to; a request without one is its own
-- steps, rounds             S = sum of steps; R = sum of rounds
-- drafted, accepted         D, C: sums over real candidates, filler left out
-- emitted, overrun          E = sum of emitted; tokens cut off at the end
-- engine_*                  rounds, drafted and accepted as the engine counts them, filler included
-- unverified                steps scheduled but never verified, outside S, R, D and C
-- coverage                  pooled R / S; NULL when S = 0
-- acceptance_rate           pooled C / D; NULL when D = 0
-- mean_acceptance_length    pooled 1 + C / R; NULL when R = 0
-- tokens_per_step           pooled E / S; NULL when S = 0
-- X_low, X_high             95 % interval of the pooled X over sessions like these (00_intervals.sql). NULL where X is,
--                           or where fewer than 2 sessions define it
-- effective_sessions        sessions of one length that would say as much about the spread; far fewer than `sessions`
--                           where a few long ones rule. Below some 30 take the intervals as rough. NULL with them;
--                           where steps are not logged, of the rounds
-- X_mean, X_n               per request: mean of the requests' own X over the X_n requests where it is defined
-- equal_outputs             share of requests whose output equals that of `none`, over equal_outputs_n compared
CREATE VIEW group_summary AS
WITH sums AS (
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
        sum(sessions)::bigint AS sessions,
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
        fsum(S2) AS S2,
        fsum(S3) AS S3,
        fsum(S4) AS S4,
        fsum(S5) AS S5,
        fsum(R2) AS R2,
        fsum(R3) AS R3,
        fsum(R4) AS R4,
        fsum(R5) AS R5,
        fsum(D2) AS D2,
        fsum(D3) AS D3,
        fsum(D4) AS D4,
        fsum(D5) AS D5,
        fsum(CC) AS CC,
        fsum(EE) AS EE,
        fsum(RS) AS RS,
        fsum(CD) AS CD,
        fsum(CR) AS CR,
        fsum(ES) AS ES
    FROM files.rollup_groups
    GROUP BY run, proposer, concurrency, scope, workload, tenant
),
shares AS (
    SELECT
        *,
        S2 / nullif(steps, 0) ** 2 AS Sh2,
        S3 / nullif(steps, 0) ** 3 AS Sh3,
        S4 / nullif(steps, 0) ** 4 AS Sh4,
        S5 / nullif(steps, 0) ** 5 AS Sh5,
        R2 / nullif(rounds, 0) ** 2 AS Rh2,
        R3 / nullif(rounds, 0) ** 3 AS Rh3,
        R4 / nullif(rounds, 0) ** 4 AS Rh4,
        R5 / nullif(rounds, 0) ** 5 AS Rh5,
        D2 / nullif(drafted, 0) ** 2 AS Dh2,
        D3 / nullif(drafted, 0) ** 3 AS Dh3,
        D4 / nullif(drafted, 0) ** 4 AS Dh4,
        D5 / nullif(drafted, 0) ** 5 AS Dh5
    FROM sums
),
spreads AS (
    SELECT
        *,
        spread(Sh2, Sh3) AS S_spread,
        spread(Rh2, Rh3) AS R_spread,
        spread(Dh2, Dh3) AS D_spread
    FROM shares
),
freedoms AS (
    SELECT
        *,
        freedom(S_spread, Sh2, Sh3, Sh4, Sh5) AS S_freedom,
        freedom(R_spread, Rh2, Rh3, Rh4, Rh5) AS R_freedom,
        freedom(D_spread, Dh2, Dh3, Dh4, Dh5) AS D_freedom
    FROM spreads
),
scales AS (
    SELECT
        *,
        t_quantile(S_freedom) * sqrt(Sh2 / S_spread) / steps AS S_scale,
        t_quantile(R_freedom) * sqrt(Rh2 / R_spread) / rounds AS R_scale,
        t_quantile(D_freedom) * sqrt(Dh2 / D_spread) / drafted AS D_scale
    FROM freedoms
),
widths AS (
    SELECT
        *,
        rounds::double / nullif(steps, 0) AS coverage,
        accepted::double / nullif(drafted, 0) AS acceptance_rate,
        1 + accepted::double / nullif(rounds, 0) AS mean_acceptance_length,
        emitted::double / nullif(steps, 0) AS tokens_per_step,
        S_scale * sqrt(squares(rounds, steps, R2, RS, S2)) AS coverage_half,
        D_scale * sqrt(squares(accepted, drafted, CC, CD, D2)) AS acceptance_rate_half,
        R_scale * sqrt(squares(accepted, rounds, CC, CR, R2)) AS mean_acceptance_length_half,
        S_scale * sqrt(squares(emitted, steps, EE, ES, S2)) AS tokens_per_step_half
    FROM scales
),
equal AS (
    SELECT
        run,
        proposer,
        concurrency,
        CASE
            WHEN grouping(workload) = 1 AND grouping(tenant) = 1 THEN 'all'
            WHEN grouping(tenant) = 1 THEN 'workload'
            WHEN grouping(workload) = 1 THEN 'tenant'
            ELSE 'workload and tenant'
        END AS scope,
        workload,
        tenant,
        avg(equal_output::integer) AS equal_outputs,
        count(*)::bigint AS equal_outputs_n
    FROM request_summary
    WHERE equal_output IS NOT NULL
    GROUP BY GROUPING SETS (
        (run, proposer, concurrency),
        (run, proposer, concurrency, workload),
        (run, proposer, concurrency, tenant),
        (run, proposer, concurrency, workload, tenant)
    )
)
SELECT
    widths.run,
    widths.proposer,
    widths.concurrency,
    widths.proposer_key,
    widths.scope,
    widths.workload,
    widths.tenant,
    widths.requests,
    widths.empty_outputs,
    widths.sessions,
    CASE WHEN steps IS NULL THEN R_freedom ELSE S_freedom END + 1 AS effective_sessions,
    widths.prompt_tokens,
    widths.output_tokens,
    widths.steps,
    widths.rounds,
    widths.drafted,
    widths.accepted,
    widths.emitted,
    widths.overrun,
    widths.engine_rounds,
    widths.engine_drafted,
    widths.engine_accepted,
    widths.unverified,
    widths.prefill_filler,
    coverage,
    share_end(coverage, -coverage_half) AS coverage_low,
    share_end(coverage, coverage_half) AS coverage_high,
    coverage_sum / nullif(coverage_n, 0) AS coverage_mean,
    coverage_n,
    acceptance_rate,
    share_end(acceptance_rate, -acceptance_rate_half) AS acceptance_rate_low,
    share_end(acceptance_rate, acceptance_rate_half) AS acceptance_rate_high,
    acceptance_rate_sum / nullif(acceptance_rate_n, 0) AS acceptance_rate_mean,
    acceptance_rate_n,
    mean_acceptance_length,
    length_end(mean_acceptance_length, -mean_acceptance_length_half) AS mean_acceptance_length_low,
    length_end(mean_acceptance_length, mean_acceptance_length_half) AS mean_acceptance_length_high,
    mean_acceptance_length_sum / nullif(mean_acceptance_length_n, 0) AS mean_acceptance_length_mean,
    mean_acceptance_length_n,
    tokens_per_step,
    length_end(tokens_per_step, -tokens_per_step_half) AS tokens_per_step_low,
    length_end(tokens_per_step, tokens_per_step_half) AS tokens_per_step_high,
    tokens_per_step_sum / nullif(tokens_per_step_n, 0) AS tokens_per_step_mean,
    tokens_per_step_n,
    equal.equal_outputs,
    coalesce(equal.equal_outputs_n, 0) AS equal_outputs_n
FROM widths
LEFT JOIN equal
    ON equal.run = widths.run
    AND equal.proposer = widths.proposer
    AND equal.concurrency = widths.concurrency
    AND equal.scope = widths.scope
    AND equal.workload IS NOT DISTINCT FROM widths.workload
    AND equal.tenant IS NOT DISTINCT FROM widths.tenant;
