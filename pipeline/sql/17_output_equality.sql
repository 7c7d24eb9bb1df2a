-- One row per run, proposer and concurrency of a live run, but for `none`: are its greedy outputs those of `none`? No row
-- where nothing can be compared: recorded replay, or a run that samples, whose outputs agree in distribution only.
--
-- compared                  requests that both sampled greedily
-- equal                     of them, those with the same output, token for token
-- equal_outputs             equal / compared
-- first_position            earliest token at which two outputs part, from 1; NULL when none do
-- median_gap, largest_gap   of the log-probability gap (output_differences) without its sign, where outputs part
CREATE VIEW output_equality AS
WITH compared AS (
    SELECT
        run,
        proposer,
        concurrency,
        count(equal_output)::bigint AS compared,
        count(*) FILTER (equal_output)::bigint AS equal
    FROM request_summary
    WHERE proposer_key NOT IN (SELECT proposer_key FROM files.baseline_keys)
    GROUP BY run, proposer, concurrency
    HAVING count(equal_output) > 0
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
