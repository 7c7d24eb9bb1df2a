-- One row per run, proposer, workload and miss_reason: the decode steps that proposed nothing. `none` has no rows.
--
-- steps    decode steps with no real candidate, by reason; over all reasons they add up to S - R
-- share    steps / S of that run, proposer and workload; over all reasons 1 - coverage
CREATE VIEW miss_reasons AS
WITH totals AS (
    SELECT run, proposer, workload, sum(steps) AS steps
    FROM step_histogram
    GROUP BY run, proposer, workload
)
SELECT
    misses.run,
    misses.proposer,
    misses.workload,
    misses.miss_reason,
    sum(misses.steps)::bigint AS steps,
    sum(misses.steps)::double / any_value(totals.steps) AS share
FROM step_histogram AS misses
JOIN totals USING (run, proposer, workload)
WHERE misses.drafted = 0
GROUP BY misses.run, misses.proposer, misses.workload, misses.miss_reason;
