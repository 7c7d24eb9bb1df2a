-- One row per run, proposer, concurrency and workload. Columns and formulas: group_summary.
CREATE VIEW workload_summary AS
SELECT * EXCLUDE (scope, tenant)
FROM group_summary
WHERE scope = 'workload';
