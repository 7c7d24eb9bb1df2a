-- One row per run and proposer: the settings it ran with, as effective (defaults filled in), from the run's plan.json,
-- and from its done.json what its numbers are and what its suffix trees came to.
--
-- proposer_key              hash of these settings
-- method                    vLLM's method, or 'none'
-- num_speculative_tokens    k, how many candidates a round may propose; NULL where the method has none
-- prompt_lookup_min, _max   shortest and longest window of an n-gram lookup; NULL for other methods
-- config                    all settings (JSON)
-- history                   whose earlier requests it copies from (JSON); NULL = all of them, or none for its method
-- label, reason             'live', 'exact', 'proxy', 'hypothetical' or 'imported', and why; NULL while the run is not done
-- trees                     suffix trees of earlier outputs, one for each shard; this and the rest: NULL without any
-- warm_requests             requests served before the replay, not counted
-- cached_requests, cached_tokens, tree_nodes, tree_bytes, evictions      at the end, over all trees
-- bytes_per_cached_token    tree_bytes / cached_tokens
CREATE VIEW proposer_settings AS
SELECT
    entry.run,
    entry.value ->> 'name' AS proposer,
    entry.value ->> 'key' AS proposer_key,
    entry.value -> 'config' ->> 'method' AS method,
    try_cast(entry.value -> 'config' ->> 'num_speculative_tokens' AS bigint) AS num_speculative_tokens,
    try_cast(entry.value -> 'config' ->> 'prompt_lookup_min' AS bigint) AS prompt_lookup_min,
    try_cast(entry.value -> 'config' ->> 'prompt_lookup_max' AS bigint) AS prompt_lookup_max,
    entry.value -> 'config' AS config,
    entry.value -> 'history' AS history,
    came.value ->> 'label' AS label,
    came.value ->> 'reason' AS reason,
    try_cast(came.value -> 'tree' ->> 'trees' AS bigint) AS trees,
    try_cast(came.value -> 'tree' ->> 'warm_requests' AS bigint) AS warm_requests,
    try_cast(came.value -> 'tree' ->> 'cached_requests' AS bigint) AS cached_requests,
    try_cast(came.value -> 'tree' ->> 'cached_tokens' AS bigint) AS cached_tokens,
    try_cast(came.value -> 'tree' ->> 'nodes' AS bigint) AS tree_nodes,
    try_cast(came.value -> 'tree' ->> 'used_bytes' AS bigint) AS tree_bytes,
    try_cast(came.value -> 'tree' ->> 'evictions' AS bigint) AS evictions,
    try_cast(came.value -> 'tree' ->> 'bytes_per_cached_token' AS double) AS bytes_per_cached_token
FROM (SELECT runs.run, planned.value FROM files.runs AS runs, json_each(runs.plan, '$.proposers') AS planned) AS entry
LEFT JOIN (
    SELECT runs.run, done.key AS proposer, done.value
    FROM files.runs AS runs, json_each(runs.done, '$.proposers') AS done
) AS came ON came.run = entry.run AND came.proposer = entry.value ->> 'name';
