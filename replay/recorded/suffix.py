"""Suffix decoding over arctic-inference's own cache, driven as vLLM 0.32.0 drives it with one sequence at a time.

Follows vllm/v1/spec_decode/suffix_decoding.py. The tree of earlier responses is state: requests are replayed in the
order given, and a replay starts with an empty tree. Knows nothing of concurrency: with several sequences at once the
tree depends on how they interleave.
"""

import numpy as np

from replay.recorded.walk import NO_MATCH, PROPOSED, Limits, Progress, Sequence, walk
from replay.requests import Requests
from replay.steps import StepLog
from schemas.errors import EnvironmentProblem


def replay_suffix(requests: Requests, config: dict, limits: Limits, progress: Progress | None) -> StepLog:
    """Replay with suffix decoding.

    Args:
        requests: with recorded outputs, in serving order.
        config: effective `speculative_config` (`schemas.speculative.effective`).
        limits: see `walk.Limits`.
        progress: told of each request done.

    Raises:
        EnvironmentProblem: arctic-inference is not installed.
    """
    k = config["num_speculative_tokens"]
    depth = config["suffix_decoding_max_tree_depth"]
    cache = _cache(depth, config["suffix_decoding_max_cached_requests"])

    def ingest(sequence: Sequence, old: int, new: int) -> None:
        # vLLM stops a finished request only when the next one has speculated; its local tree serves itself alone,
        # so stopping it here, before the next one starts, changes no candidate but frees memory sooner.
        if sequence.index not in cache.active_requests:
            for finished in list(cache.active_requests):
                cache.stop_request(finished)
            cache.start_request(sequence.index, sequence.ids[: sequence.start])
        cache.add_active_response(sequence.index, sequence.ids[old:new])

    def look(sequence: Sequence, history: int) -> tuple[int, int, int]:
        most = min(k, limits.model - history - 1)
        if most <= 0:
            return 0, 0, NO_MATCH
        draft = cache.speculate(
            sequence.index,
            sequence.ids[max(0, history - depth) : history],
            max_spec_tokens=most,
            max_spec_factor=config["suffix_decoding_max_spec_factor"],
            min_token_prob=config["suffix_decoding_min_token_prob"],
        ).token_ids
        if not draft:
            return 0, 0, NO_MATCH
        record = sequence.ids[history : history + len(draft)]
        differ = np.flatnonzero(np.asarray(draft[: len(record)]) != record)
        return len(draft), int(differ[0]) if len(differ) else len(record), PROPOSED

    return walk(requests, k, limits, look, ingest, progress)


def _cache(depth: int, cached: int):
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    except ImportError as error:
        raise EnvironmentProblem(
            f"recorded suffix replay needs arctic-inference==0.3.0 ({error}); `make setup` installs it"
        ) from None
    return SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=cached)
