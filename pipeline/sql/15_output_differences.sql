-- One row per request of a live run whose greedy output is not that of `none` at the same concurrency: where they part.
--
-- position                  first token of the output that differs, from 1
-- baseline_token, token     what none and what this proposer put out there; NULL for an output that had ended
-- baseline_logprob, logprob their log-probabilities (natural, from raw logits) after the common part, by one plain
--                           forward of the target after the run; NULL without a token
-- gap                       baseline_logprob - logprob. Near 0 is a near-tie, which another shape of the batch can flip
--                           in low precision; far from 0, one of the two is no choice of the target: a fault
CREATE VIEW output_differences AS
SELECT
    differences.run,
    differences.proposer,
    differences.concurrency,
    requests.request_id,
    requests.workload,
    requests.tenant,
    differences.position,
    differences.baseline_token,
    differences.token,
    differences.baseline_logprob,
    differences.logprob,
    differences.baseline_logprob - differences.logprob AS gap
FROM files.output_differences AS differences
JOIN files.requests AS requests USING (run, proposer, concurrency, request);
