-- One row per run, proposer and concurrency of a live run: what a token cost. Recorded replay has no rows.
--
-- All sums run over the engine iterations that computed no prompt tokens: prefill costs every proposer the same, but
-- a proposer with fewer iterations spreads it over fewer, so iterations with prefill would blur the comparison.
--
-- iterations              engine iterations without prompt tokens; prefill_iterations = those left out
-- draft_s, verify_s       time spent proposing; target forward and sampling; in seconds
-- step_s                  whole iterations: schedule, forward, sample, propose, update; in seconds
-- emitted                 tokens that decode steps put out in these iterations
-- us_per_emitted_token    (draft + verify time) / emitted, in microseconds; NULL when nothing was emitted
-- speedup_over_none       none's us_per_emitted_token / this one's; NULL without `none` in that run and concurrency
-- kv_cache_tokens         KV cache the engine could hold beside this proposer, in tokens
-- max_concurrency         requests of full length that fit in it at once, as the engine says
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
        (sum(draft_us + verify_us) FILTER (prefill_tokens = 0))::double
            / nullif(sum(emitted) FILTER (prefill_tokens = 0), 0) AS us_per_emitted_token
    FROM files.engine_steps
    GROUP BY run, proposer, concurrency
),
baseline AS (
    SELECT run, min(proposer) AS proposer
    FROM files.requests
    WHERE proposer_key IN (SELECT proposer_key FROM files.baseline_keys)
    GROUP BY run
),
engines AS (
    SELECT runs.run, entry.key AS proposer, entry.value AS facts
    FROM files.runs AS runs, json_each(runs.done, '$.proposers') AS entry
)
SELECT
    sums.*,
    none.us_per_emitted_token / nullif(sums.us_per_emitted_token, 0) AS speedup_over_none,
    (engines.facts ->> 'kv_cache_tokens')::bigint AS kv_cache_tokens,
    (engines.facts ->> 'max_concurrency')::double AS max_concurrency
FROM sums
LEFT JOIN baseline ON baseline.run = sums.run
LEFT JOIN sums AS none
    ON none.run = sums.run AND none.proposer = baseline.proposer AND none.concurrency = sums.concurrency
LEFT JOIN engines ON engines.run = sums.run AND engines.proposer = sums.proposer;
