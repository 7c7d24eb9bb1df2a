-- One row per run, proposer, concurrency and draft length: the rounds that proposed exactly that many real candidates.
--
-- drafted                   candidates per round, filler left out; at least 1
-- rounds                    rounds of that length
-- accepted                  candidates accepted in them
-- fully_accepted            rounds among them in which every candidate was accepted
-- acceptance_rate           accepted / (rounds * drafted), of these rounds
-- mean_acceptance_length    1 + accepted / rounds, of these rounds
-- only_length               every round of the run, proposer and concurrency is of this length. Only then does an
--                           acceptance rate give a length, 1 + drafted * acceptance_rate; with several lengths that is wrong for the whole
-- length_from_rate          that length where only_length, else NULL: it then equals proposer_summary's
CREATE VIEW length_summary AS
WITH counted AS (
    SELECT
        run,
        proposer,
        concurrency,
        drafted,
        sum(steps)::bigint AS rounds,
        sum(steps * accepted)::bigint AS accepted,
        coalesce(sum(steps) FILTER (accepted = drafted), 0)::bigint AS fully_accepted
    FROM step_histogram
    WHERE drafted > 0
    GROUP BY run, proposer, concurrency, drafted
),
lengths AS (
    SELECT
        run,
        proposer,
        concurrency,
        count(*) = 1 AS only_length,
        unnest(list({
            'drafted': drafted, 'rounds': rounds, 'accepted': accepted, 'fully_accepted': fully_accepted
        })) AS one
    FROM counted
    GROUP BY run, proposer, concurrency
)
SELECT
    run,
    proposer,
    concurrency,
    one.drafted,
    one.rounds,
    one.accepted,
    one.fully_accepted,
    one.accepted::double / (one.rounds * one.drafted) AS acceptance_rate,
    1 + one.accepted::double / one.rounds AS mean_acceptance_length,
    only_length,
    CASE
        WHEN only_length THEN 1 + one.drafted * (one.accepted::double / (one.rounds * one.drafted))
    END AS length_from_rate
FROM lengths;
