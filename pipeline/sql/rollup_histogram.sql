-- rollup_steps without day and bucket: a hundredth of its rows, for totals. Made once with each shard, where equal rows
-- are one row with their number; for shards committed without, read from their rollup_steps.
SELECT
    run,
    proposer,
    concurrency,
    workload,
    tenant,
    drafted,
    filler,
    accepted,
    miss_reason,
    steps
FROM raw.rollup_steps
