-- One row per run, proposer and concurrency of a live run: what a token cost. Recorded replay has no rows.
--
-- All sums run over the engine iterations that computed no prompt tokens, but for wall_s and tokens_per_s: prefill costs
-- every proposer the same, but a proposer with fewer iterations spreads it over fewer, so iterations with prefill would
-- blur the comparison.
--
-- iterations                 engine iterations without prompt tokens; prefill_iterations = those left out
-- draft_s, verify_s          time spent proposing; target forward and sampling; in seconds
-- step_s                     whole iterations: schedule, forward, sample, propose, update; in seconds
-- draft_share, verify_share  draft_s / step_s, verify_s / step_s; what is left is the engine's own overhead
-- emitted                    tokens that decode steps put out in these iterations
-- us_per_emitted_token       (draft + verify time) / emitted, in microseconds; NULL when nothing was emitted
-- step_us_per_emitted_token  step_s / emitted, in microseconds: the same with the engine's overhead
-- speedup_over_none          none's us_per_emitted_token / this one's; NULL without `none` in that run and concurrency
-- wall_s                     from the start of the first iteration to the end of the last, prefill included, in seconds
-- tokens_per_s               tokens put out, first tokens included, / wall_s: capacity where requests wait for a place,
--                            the traffic's own rate where the run follows recorded arrivals and keeps up
-- kv_cache_tokens            KV cache the engine could hold beside this proposer, in tokens
-- max_concurrency            requests of full length that fit in it at once, as the engine says
-- prefix_cache_hit_tokens    prompt tokens whose KV was reused, summed over the requests: prefill saved, which is no part of
--                            any sum above and has nothing to do with candidates copied from history
-- engines_at_once            engines that ran side by side at the time, each on devices of its own; NULL = not told
CREATE VIEW cost_summary AS
WITH sums AS (
    SELECT
        run,
        proposer,
        concurrency,
        count(*) FILTER (prefill_tokens = 0)::bigint AS iterations,
        count(*) FILTER (prefill_tokens > 0)::bigint AS prefill_iterations,
        coalesce(sum(draft_us) FILTER (prefill_tokens = 0), 0) / 1e6 AS draft_s,
        coalesce(sum(verify_us) FILTER (prefill_tokens = 0), 0) / 1e6 AS verify_s,
        coalesce(sum(step_us) FILTER (prefill_tokens = 0), 0) / 1e6 AS step_s,
        coalesce(sum(emitted) FILTER (prefill_tokens = 0), 0)::bigint AS emitted,
        (max(started_us + step_us) - min(started_us)) / 1e6 AS wall_s
    FROM files.engine_steps
    GROUP BY run, proposer, concurrency
),
put_out AS (
    SELECT
        run,
        proposer,
        concurrency,
        sum(output_tokens) AS output_tokens,
        any_value(proposer_key) IN (SELECT proposer_key FROM files.baseline_keys) AS is_baseline
    FROM files.rollup_groups
    WHERE scope = 'all'
    GROUP BY run, proposer, concurrency
),
hits AS (
    SELECT run, proposer, concurrency, sum(prefix_cache_hit_tokens)::bigint AS prefix_cache_hit_tokens
    FROM files.requests
    WHERE prefix_cache_hit_tokens IS NOT NULL
    GROUP BY run, proposer, concurrency
),
engines AS (
    SELECT runs.run, entry.key AS proposer, entry.value AS facts
    FROM files.runs AS runs, json_each(runs.done, '$.proposers') AS entry
),
costs AS (
    SELECT
        run,
        proposer,
        concurrency,
        iterations,
        prefill_iterations,
        draft_s,
        verify_s,
        step_s,
        draft_s / nullif(step_s, 0) AS draft_share,
        verify_s / nullif(step_s, 0) AS verify_share,
        emitted,
        1e6 * (draft_s + verify_s) / nullif(emitted, 0) AS us_per_emitted_token,
        1e6 * step_s / nullif(emitted, 0) AS step_us_per_emitted_token,
        wall_s,
        output_tokens / nullif(wall_s, 0) AS tokens_per_s,
        is_baseline,
        prefix_cache_hit_tokens,
        coalesce(facts -> 'concurrencies' -> concurrency::varchar, facts) AS facts
    FROM sums
    LEFT JOIN put_out USING (run, proposer, concurrency)
    LEFT JOIN hits USING (run, proposer, concurrency)
    LEFT JOIN engines USING (run, proposer)
)
SELECT
    * EXCLUDE (is_baseline, prefix_cache_hit_tokens, facts),
    -- a window and no join with itself: a condition on the run then reaches the files
    arg_min(us_per_emitted_token, proposer) FILTER (WHERE is_baseline) OVER (PARTITION BY run, concurrency)
        / nullif(us_per_emitted_token, 0) AS speedup_over_none,
    try_cast(facts ->> 'kv_cache_tokens' AS bigint) AS kv_cache_tokens,
    try_cast(facts ->> 'max_concurrency' AS double) AS max_concurrency,
    prefix_cache_hit_tokens,
    try_cast(facts ->> 'engines_at_once' AS bigint) AS engines_at_once
FROM costs;
