-- One row per verified decode step, with what a rollup keeps of it. As rollup_steps, made once with each shard and read
-- instead of its decode steps, equal rows are one row with their number; rows of shards without a rollup stay single,
-- so that a query reads only the columns that it needs.
--
-- day        of the request's arrival, UTC; NULL where only its order is known
-- bucket     first 8 hex digits of md5(session id, else request id), modulo 200: whole sessions, to resample
-- steps      decode steps like that: 1 each
WITH request AS (
    SELECT
        run,
        proposer,
        concurrency,
        request,
        (arrival AT TIME ZONE 'UTC')::date AS day,
        workload,
        tenant,
        (('0x' || left(md5(coalesce(session_id, request_id)), 8))::bigint % 200)::smallint AS bucket
    FROM raw.requests
)
SELECT
    steps.run,
    steps.proposer,
    steps.concurrency,
    request.day,
    request.workload,
    request.tenant,
    request.bucket,
    steps.drafted,
    steps.filler,
    steps.accepted,
    steps.miss_reason,
    1::bigint AS steps
FROM raw.decode_steps AS steps
LEFT JOIN request USING (run, proposer, concurrency, request)
WHERE steps.accepted IS NOT NULL
