-- One row per run and proposer: the settings it ran with, as effective (defaults filled in), from the run's plan.json.
--
-- proposer_key              hash of these settings
-- method                    vLLM's method, or 'none'
-- num_speculative_tokens    k, how many candidates a round may propose; NULL where the method has none
-- prompt_lookup_min, _max   shortest and longest window of an n-gram lookup; NULL for other methods
-- config                    all settings (JSON)
CREATE VIEW proposer_settings AS
SELECT
    runs.run,
    entry.value ->> 'name' AS proposer,
    entry.value ->> 'key' AS proposer_key,
    entry.value -> 'config' ->> 'method' AS method,
    (entry.value -> 'config' ->> 'num_speculative_tokens')::bigint AS num_speculative_tokens,
    (entry.value -> 'config' ->> 'prompt_lookup_min')::bigint AS prompt_lookup_min,
    (entry.value -> 'config' ->> 'prompt_lookup_max')::bigint AS prompt_lookup_max,
    entry.value -> 'config' AS config
FROM files.runs AS runs, json_each(runs.plan, '$.proposers') AS entry;
