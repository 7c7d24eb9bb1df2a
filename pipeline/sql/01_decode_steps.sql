-- One row per decode step of one request under one proposer. `none` has no rows here (it never proposes).
--
-- request, request_id     position of the request in the run; its id in the trace (text, digits kept)
-- step                    decode step of the request, from 1
-- drafted                 candidates scheduled for verification, filler included
-- filler                  placeholder candidates among them; they stand behind the real ones
-- proposed                drafted - filler: real candidates
-- accepted                candidates that verification accepted, filler included; NULL = never verified
-- accepted_proposed       min(accepted, proposed): accepted real candidates; NULL = never verified
-- emitted                 accepted + 1 - overrun: tokens the step put out; 0 where it was never verified
-- overrun                 accepted, correction or bonus tokens cut off by end, stop or length limit
-- miss_reason             why nothing but filler was proposed; NULL where something was
-- engine_step             engine iteration that verified it (live); NULL for recorded replay
--
-- Steps that were never verified (pre-empted, aborted) are here and in no other view.
CREATE VIEW decode_steps AS
SELECT
    steps.run,
    steps.proposer,
    steps.concurrency,
    steps.request,
    requests.request_id,
    requests.workload,
    requests.tenant,
    steps.step,
    steps.drafted,
    steps.filler,
    steps.drafted - steps.filler AS proposed,
    steps.accepted,
    CASE WHEN steps.accepted IS NOT NULL THEN least(steps.accepted, steps.drafted - steps.filler) END
        AS accepted_proposed,
    CASE WHEN steps.accepted IS NULL THEN 0 ELSE steps.accepted + 1 - steps.overrun END::integer AS emitted,
    steps.overrun,
    steps.miss_reason,
    steps.engine_step
FROM files.decode_steps AS steps
LEFT JOIN files.requests AS requests USING (run, proposer, concurrency, request);
