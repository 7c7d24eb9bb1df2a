-- One row per run, proposer and draft length: the rounds that proposed exactly that many real candidates.
--
-- drafted           candidates per round, filler left out; at least 1
-- rounds            rounds of that length
-- accepted          candidates accepted in them
-- fully_accepted    rounds among them in which every candidate was accepted
CREATE VIEW length_summary AS
SELECT
    run,
    proposer,
    drafted,
    sum(steps)::bigint AS rounds,
    sum(steps * accepted)::bigint AS accepted,
    coalesce(sum(steps) FILTER (accepted = drafted), 0)::bigint AS fully_accepted
FROM step_histogram
WHERE drafted > 0
GROUP BY run, proposer, drafted;
