-- One row per run, proposer, workload, drafted, accepted and miss_reason: how many verified decode steps had them.
-- Gives S, R, D, C and every position rate pooled over any group. Steps never verified are left out.
--
-- drafted, accepted    of one step, real candidates only: drafted - filler, and min(accepted, drafted - filler)
-- miss_reason          why nothing but filler was proposed; NULL where something was
-- steps                decode steps like that
CREATE VIEW step_histogram AS
SELECT
    steps.run,
    steps.proposer,
    requests.workload,
    steps.drafted - steps.filler AS drafted,
    least(steps.accepted, steps.drafted - steps.filler) AS accepted,
    steps.miss_reason,
    count(*)::bigint AS steps
FROM files.decode_steps AS steps
LEFT JOIN files.requests AS requests USING (run, proposer, concurrency, request)
WHERE steps.accepted IS NOT NULL
GROUP BY ALL;
