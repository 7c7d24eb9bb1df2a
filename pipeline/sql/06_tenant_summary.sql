-- One row per run, proposer, concurrency and tenant; requests that name no tenant form the tenant (none).
-- Columns and formulas: group_summary.
CREATE VIEW tenant_summary AS
SELECT * EXCLUDE (scope, workload)
FROM group_summary
WHERE scope = 'tenant';
