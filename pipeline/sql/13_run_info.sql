-- One row per run, committed or under way: what ran and what came of it, from its plan.json and done.json.
--
-- trace, engine, runner       what was replayed, and by which engine and rules
-- status                      as done.json says; 'unfinished' while there is none
-- reconciled                  the step log adds up to the engine's own counters; NULL where nothing was compared
-- label                       recorded or live
-- versions                    of the engine and of the packages that decide a number (JSON)
-- started, ended              first and last moment of the run, UTC
-- plan, done                  both files whole (JSON)
CREATE VIEW run_info AS
SELECT
    run,
    plan -> 'trace' ->> 'name' AS trace,
    plan -> 'engine' ->> 'kind' AS engine,
    plan -> 'engine' ->> 'runner' AS runner,
    coalesce(done ->> 'status', 'unfinished') AS status,
    (done ->> 'reconciled')::boolean AS reconciled,
    plan ->> 'label' AS label,
    plan -> 'versions' AS versions,
    (plan ->> 'started')::timestamptz AS started,
    (done ->> 'ended')::timestamptz AS ended,
    plan,
    done
FROM files.runs;
