-- One row per run, committed or under way: what ran and what came of it, from its plan.json and done.json.
--
-- trace, trace_fingerprint    what was replayed; NULL for an imported run
-- engine, runner              'recorded', 'vllm' or 'imported'; which model runner's rules (NULL for an imported run)
-- status                      'complete' or 'failed' as done.json says; 'unfinished' while there is none
-- reconciled                  the step log adds up to the engine's own counters; NULL where nothing was compared
-- label                       'live' (generated afresh), 'imported' (counts another tool logged) or 'recorded' (walked
--                             along recorded ids), and once it is done in brackets what its proposers' counts are: exact, proxy or hypothetical (reasons:
--                             proposer_settings)
-- versions                    of the engine and of the packages that decide a number (JSON)
-- requests                    requests selected from the trace
-- hardware                    machine the run was started on (JSON)
-- started, ended              first and last moment of the run, by its writer's clock
-- plan, done                  both files whole (JSON)
CREATE VIEW run_info AS
WITH kinds AS (
    SELECT runs.run, string_agg(DISTINCT entry.value ->> 'label', ', ' ORDER BY entry.value ->> 'label') AS kinds
    FROM files.runs AS runs, json_each(runs.done, '$.proposers') AS entry
    WHERE (entry.value ->> 'key') NOT IN (SELECT proposer_key FROM files.baseline_keys)
    GROUP BY runs.run
)
SELECT
    run,
    plan -> 'trace' ->> 'name' AS trace,
    plan -> 'trace' ->> 'fingerprint' AS trace_fingerprint,
    plan -> 'engine' ->> 'kind' AS engine,
    plan -> 'engine' ->> 'runner' AS runner,
    coalesce(done ->> 'status', 'unfinished') AS status,
    try_cast(done ->> 'reconciled' AS boolean) AS reconciled,
    CASE
        WHEN plan ->> 'label' = 'recorded' AND kinds IS NOT NULL THEN 'recorded (' || kinds || ')'
        ELSE plan ->> 'label'
    END AS label,
    try_cast(plan ->> 'requests' AS bigint) AS requests,
    plan -> 'versions' AS versions,
    plan -> 'hardware' AS hardware,
    try_cast(plan ->> 'started' AS timestamptz) AS started,
    try_cast(done ->> 'ended' AS timestamptz) AS ended,
    plan,
    done
FROM files.runs
LEFT JOIN kinds USING (run);
