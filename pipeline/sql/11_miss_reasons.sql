-- One row per run, proposer, concurrency, workload and miss_reason: the decode steps that proposed nothing. `none` has no
-- rows.
--
-- steps    decode steps with no real candidate, by reason; over all reasons they add up to S - R
-- share    steps / S of that run, proposer, concurrency and workload; over all reasons 1 - coverage
-- (lists and no window: a window would read every run to answer for one)
CREATE VIEW miss_reasons AS
WITH counted AS (
    SELECT run, proposer, concurrency, workload, drafted = 0 AS missed, miss_reason, sum(steps)::bigint AS steps
    FROM step_histogram
    GROUP BY ALL
),
grouped AS (
    SELECT
        run,
        proposer,
        concurrency,
        workload,
        sum(steps) AS total,
        unnest(list({'miss_reason': miss_reason, 'steps': steps}) FILTER (missed)) AS miss
    FROM counted
    GROUP BY run, proposer, concurrency, workload
)
SELECT run, proposer, concurrency, workload, miss.miss_reason, miss.steps, miss.steps::double / total AS share
FROM grouped;
