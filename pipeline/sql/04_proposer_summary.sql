-- One row per run, proposer and concurrency, all requests pooled. Columns and formulas: group_summary.
CREATE VIEW proposer_summary AS
SELECT * EXCLUDE (scope, workload, tenant)
FROM group_summary
WHERE scope = 'all';
