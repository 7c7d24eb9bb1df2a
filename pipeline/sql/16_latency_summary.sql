-- One row per run, proposer and concurrency of a live run: how long its requests took. Recorded replay has no rows.
--
-- A request waits from the moment it was due: when it was sent, or, where the run follows recorded arrivals, its scheduled
-- arrival, so that time spent in the engine's queue counts. All times in microseconds; of T = 0 requests there are none.
--
-- requests                       requests that put out at least one token
-- first_token_us_p50, _p95       first token, since the request was due: median and 95th percentile
-- per_output_token_us_p50, _p95  (last token - first token) / (T - 1), over the requests with T > 1
-- finished_us_p50, _p95          last token, since the request was due
-- dispatch_lag_us_p50, _p95      how long after its scheduled arrival the engine got it: what the replay itself was late.
--                                It looks for arrivals between iterations, so one iteration is as good as it gets.
--                                NULL unless the run follows recorded arrivals
-- longest_iteration_us           longest engine iteration
CREATE VIEW latency_summary AS
WITH iterations AS (
    SELECT run, proposer, concurrency, max(step_us)::bigint AS longest_iteration_us
    FROM files.engine_steps
    GROUP BY run, proposer, concurrency
)
SELECT
    run,
    proposer,
    concurrency,
    count(*)::bigint AS requests,
    quantile_cont(first_token_us, 0.5) AS first_token_us_p50,
    quantile_cont(first_token_us, 0.95) AS first_token_us_p95,
    quantile_cont((finished_us - first_token_us)::double / (output_tokens - 1), 0.5) FILTER (output_tokens > 1)
        AS per_output_token_us_p50,
    quantile_cont((finished_us - first_token_us)::double / (output_tokens - 1), 0.95) FILTER (output_tokens > 1)
        AS per_output_token_us_p95,
    quantile_cont(finished_us, 0.5) AS finished_us_p50,
    quantile_cont(finished_us, 0.95) AS finished_us_p95,
    quantile_cont(dispatched_us - scheduled_us, 0.5) AS dispatch_lag_us_p50,
    quantile_cont(dispatched_us - scheduled_us, 0.95) AS dispatch_lag_us_p95,
    any_value(longest_iteration_us) AS longest_iteration_us
FROM files.requests
LEFT JOIN iterations USING (run, proposer, concurrency)
LEFT JOIN files.dispatches USING (run, proposer, concurrency, request)
WHERE output_tokens > 0 AND first_token_us IS NOT NULL
GROUP BY run, proposer, concurrency;
