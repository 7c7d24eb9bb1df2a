-- One row per run, proposer, concurrency, workload, drafted, accepted and miss_reason: how many verified decode steps
-- had them.
-- Gives S, R, D, C and every position rate pooled over any group. Steps never verified are left out.
--
-- drafted, accepted    of one step, real candidates only: drafted - filler, and min(accepted, drafted - filler)
-- miss_reason          why nothing but filler was proposed; NULL where something was
-- steps                decode steps like that
CREATE VIEW step_histogram AS
SELECT
    run,
    proposer,
    concurrency,
    workload,
    drafted - filler AS drafted,
    least(accepted, drafted - filler) AS accepted,
    miss_reason,
    sum(steps)::bigint AS steps
FROM files.rollup_histogram
GROUP BY ALL;
