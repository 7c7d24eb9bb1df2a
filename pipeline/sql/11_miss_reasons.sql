-- One row per run, proposer, workload and miss_reason: the decode steps that proposed nothing. `none` has no rows.
--
-- steps    decode steps with no real candidate, by reason; over all reasons they add up to S - R
-- share    steps / S of that run, proposer and workload; over all reasons 1 - coverage
CREATE VIEW miss_reasons AS
WITH counted AS (
    SELECT run, proposer, workload, drafted = 0 AS missed, miss_reason, sum(steps) AS steps
    FROM step_histogram
    GROUP BY ALL
),
shared AS (
    SELECT *, sum(steps) OVER (PARTITION BY run, proposer, workload) AS total
    FROM counted
)
SELECT run, proposer, workload, miss_reason, steps::bigint AS steps, steps::double / total AS share
FROM shared
WHERE missed;
