-- One row per run, proposer, concurrency, day, workload, tenant, bucket, drafted, filler, accepted and miss_reason: how
-- many verified decode steps had them. Made once with each shard; read instead of its decode steps.
--
-- day        of the request's arrival, UTC; NULL where only its order is known
-- bucket     first 8 hex digits of md5(session id, else request id), modulo 200: whole sessions, to resample
-- steps      decode steps like that
SELECT
    steps.run,
    steps.proposer,
    steps.concurrency,
    (requests.arrival AT TIME ZONE 'UTC')::date AS day,
    requests.workload,
    requests.tenant,
    (('0x' || left(md5(coalesce(requests.session_id, requests.request_id)), 8))::bigint % 200)::smallint AS bucket,
    steps.drafted,
    steps.filler,
    steps.accepted,
    steps.miss_reason,
    count(*)::bigint AS steps
FROM raw.decode_steps AS steps
LEFT JOIN raw.requests AS requests USING (run, proposer, concurrency, request)
WHERE steps.accepted IS NOT NULL
GROUP BY ALL
