-- One row per run, proposer and concurrency of a live run, but for `none`: are its greedy outputs those of `none`? No row
-- where nothing can be compared: recorded replay, or a run that samples, whose outputs agree in distribution only.
--
-- compared                  requests that both sampled greedily
-- equal                     of them, those with the same output, token for token
-- equal_outputs             equal / compared
-- first_position            earliest token at which two outputs part, from 1; NULL when none do
-- median_gap, largest_gap   of the log-probability gap (output_differences) without its sign, where outputs part
CREATE VIEW output_equality AS
WITH baseline AS (
    SELECT run, concurrency, request, any_value(output_digest) AS output_digest
    FROM files.requests
    WHERE output_digest IS NOT NULL AND proposer_key IN (SELECT proposer_key FROM files.baseline_keys)
    GROUP BY run, concurrency, request
),
compared AS (
    SELECT
        requests.run,
        requests.proposer,
        requests.concurrency,
        count(*)::bigint AS compared,
        count(*) FILTER (requests.output_digest = baseline.output_digest)::bigint AS equal
    FROM files.requests AS requests
    JOIN baseline USING (run, concurrency, request)
    WHERE
        requests.output_digest IS NOT NULL
        AND requests.proposer_key NOT IN (SELECT proposer_key FROM files.baseline_keys)
    GROUP BY requests.run, requests.proposer, requests.concurrency
),
parted AS (
    SELECT
        run,
        proposer,
        concurrency,
        min(position) AS first_position,
        median(abs(gap)) AS median_gap,
        max(abs(gap)) AS largest_gap
    FROM output_differences
    GROUP BY run, proposer, concurrency
)
SELECT
    compared.*,
    equal::double / compared AS equal_outputs,
    first_position,
    median_gap,
    largest_gap
FROM compared
LEFT JOIN parted USING (run, proposer, concurrency);
