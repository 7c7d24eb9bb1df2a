"""Suffix decoding as vLLM 0.32.0 drives arctic-inference 0.3.0, one sequence at a time, by our own compiled engine.

What `speculative_config` says becomes a tree and its settings here; the walk is in `suffix_walk`. The tree of earlier
responses is state: requests are replayed in the order given. Knows nothing of concurrency: with several sequences at
once the tree depends on how they interleave.
"""

from collections.abc import Mapping

from replay.recorded.suffix_walk import Setting, SuffixCache, walk_suffix
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
    setting = Setting(
        config["num_speculative_tokens"],
        config["suffix_decoding_max_spec_factor"],
        config["suffix_decoding_min_token_prob"],
    )
    limit = None if limits.model == NO_LIMIT else limits.model
    (log,) = walk_suffix(requests, [setting], cache or new_cache(config), max_model_len=limit, progress=progress)
    return log
