-- One row per run, proposer, concurrency, workload and position i (from 1) within a draft, up to the longest draft there,
-- so that counts may be added up over workloads. Rounds and real candidates only.
--
-- rounds           R, verification rounds (the same at every position)
-- drafted_at       rounds that proposed at least i candidates
-- reached          rounds that proposed at least i candidates and accepted at least i - 1
-- accepted_at      rounds that accepted at least i candidates
-- unconditional    accepted_at / rounds: how often do all of the first i go through? NULL when R = 0
-- attempted        accepted_at / drafted_at: the same over rounds that proposed that far; NULL when none did
-- conditional      accepted_at / reached: if the ones before passed, does i pass? NULL when none came that far
-- (lists and no join of the histogram with itself: that would read every run to answer for one)
CREATE VIEW position_summary AS
WITH grouped AS (
    SELECT
        run,
        proposer,
        concurrency,
        range(1, max(drafted) + 1) AS positions,
        list({'workload': workload, 'drafted': drafted, 'accepted': accepted, 'rounds': steps}) AS cells
    FROM step_histogram
    WHERE drafted > 0
    GROUP BY run, proposer, concurrency
),
cells AS (
    SELECT run, proposer, concurrency, positions, unnest(cells, recursive := true)
    FROM grouped
),
histogram AS (
    SELECT run, proposer, concurrency, workload, drafted, accepted, rounds, unnest(positions)::integer AS position
    FROM cells
),
counts AS (
    SELECT
        run,
        proposer,
        concurrency,
        workload,
        position,
        sum(rounds)::bigint AS rounds,
        coalesce(sum(rounds) FILTER (drafted >= position), 0)::bigint AS drafted_at,
        coalesce(sum(rounds) FILTER (drafted >= position AND accepted >= position - 1), 0)::bigint AS reached,
        coalesce(sum(rounds) FILTER (accepted >= position), 0)::bigint AS accepted_at
    FROM histogram
    GROUP BY run, proposer, concurrency, workload, position
)
SELECT
    *,
    accepted_at::double / nullif(rounds, 0) AS unconditional,
    accepted_at::double / nullif(drafted_at, 0) AS attempted,
    accepted_at::double / nullif(reached, 0) AS conditional
FROM counts;
