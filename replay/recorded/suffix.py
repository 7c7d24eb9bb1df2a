"""Suffix decoding as vLLM 0.32.0 drives arctic-inference 0.3.0, one sequence at a time, by our own compiled engine.

What `speculative_config` says becomes a tree and its settings here; the walk is in `suffix_walk`. The tree of earlier
responses is state: requests are replayed in the order given. Knows nothing of concurrency: with several sequences at
once the tree depends on how they interleave.
"""

from collections.abc import Mapping, Sequence

from replay.recorded.suffix_walk import Setting, SuffixCache, SuffixMemory, shares_trees, walk_suffix
from replay.recorded.walk import NO_LIMIT, Limits, Progress
from replay.requests import Requests
from replay.steps import StepLog


def new_cache(config: Mapping) -> SuffixCache:
    """The empty global tree that a serving replica starts with.

    Args:
        config: effective `speculative_config` (`schemas.speculative.effective`).
    """
    return SuffixCache(config["suffix_decoding_max_tree_depth"], config["suffix_decoding_max_cached_requests"])


def replay_suffix(
    requests: Requests, config: Mapping, limits: Limits, progress: Progress | None, cache: SuffixCache | None = None
) -> StepLog:
    """Replay with suffix decoding.

    Args:
        requests: with recorded outputs, in serving order.
        config: effective `speculative_config`.
        limits: see `walk.Limits`; there is no drafter with a limit of its own.
        progress: told of each request done.
        cache: what earlier requests left behind, from `new_cache` of the same settings; these requests are added to
            it. None = nothing.
    """
    (log,) = walk_suffix(
        requests, [setting(config)], cache or new_cache(config), max_model_len=_length(limits), progress=progress
    )
    return log


def replay_grid(
    requests: Requests, configs: Sequence[Mapping], warm: Requests | None, limits: Limits, progress: Progress | None
) -> list[tuple[StepLog, SuffixMemory]]:
    """Step log and final tree of each setting, in one pass where they feed their trees alike, else in one pass each.

    Args:
        requests: with recorded outputs, in serving order.
        configs: effective settings of one tree depth and cache size.
        warm: served before, not logged; None = nothing.
        limits: see `walk.Limits`.
        progress: told of each request done, once for each setting.
    """
    settings, limit = [setting(config) for config in configs], _length(limits)
    served = [requests] if warm is None else [warm, requests]
    share = all(shares_trees(some, settings, limit) for some in served)
    results = []
    for group in [settings] if share else [[one] for one in settings]:
        cache = new_cache(configs[0])
        if warm is not None:
            walk_suffix(warm, group, cache, max_model_len=limit)

        def told(count: int, times: int = len(group)) -> None:
            if progress is not None:
                progress(count * times)

        logs = walk_suffix(requests, group, cache, max_model_len=limit, progress=told)
        results += [(log, cache.memory()) for log in logs]
    return results


def setting(config: Mapping) -> Setting:
    """What of effective `speculative_config` the walk needs beside its trees."""
    return Setting(
        config["num_speculative_tokens"],
        config["suffix_decoding_max_spec_factor"],
        config["suffix_decoding_min_token_prob"],
    )


def _length(limits: Limits) -> int | None:
    return None if limits.model == NO_LIMIT else limits.model
