-- One row per run, proposer, concurrency and position: position_summary pooled over workloads (sums first, then the ratios).
-- Columns and formulas: position_summary.
CREATE VIEW proposer_positions AS
SELECT
    run,
    proposer,
    concurrency,
    position,
    sum(rounds)::bigint AS rounds,
    sum(drafted_at)::bigint AS drafted_at,
    sum(reached)::bigint AS reached,
    sum(accepted_at)::bigint AS accepted_at,
    sum(accepted_at)::double / nullif(sum(rounds), 0) AS unconditional,
    sum(accepted_at)::double / nullif(sum(drafted_at), 0) AS attempted,
    sum(accepted_at)::double / nullif(sum(reached), 0) AS conditional
FROM position_summary
GROUP BY run, proposer, concurrency, position;
