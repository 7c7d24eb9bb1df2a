"""N-gram lookup by the V2 runner's rule: the longest window, then its last match, and always k candidates.

The rule of vLLM 0.32.0 on a GPU (vllm/v1/worker/gpu/spec_decode/ngram/speculator.py), for "ngram" and "ngram_gpu"
alike: the last m tokens of the history, m as large as possible within [prompt_lookup_min, prompt_lookup_max], are
looked for earlier in the history, one token behind the match at least; the candidates are the up to k tokens behind the
last match, cut at the history's end. What is missing to k is filled with the last sampled token, all k if nothing
matches, and verified like any candidate: here it is `filler`, and it may be accepted. So an engine's own coverage is
always 100 % under this rule; coverage here counts the steps with a real candidate.

Near max_model_len the scheduler cuts the k candidates (filler first); no placeholder zeros as on V1. "ngram_gpu" is
scheduled asynchronously, before the step before has settled: see `ngram_grid._walk_padded`. Under V1 "ngram_gpu" takes
the first match and has no filler.
"""

from collections.abc import Sequence

import numpy as np

from replay.recorded.ngram_grid import replay_grid
from replay.recorded.ngram_index import distance, index, window
from replay.recorded.walk import Limits, Progress
from replay.requests import Requests
from replay.steps import StepLog


def replay_v2(requests: Requests, config: dict, limits: Limits, progress: Progress | None) -> StepLog:
    """Replay "ngram" or "ngram_gpu" as the V2 runner proposes; arguments as `ngram.replay_ngram`."""
    return _alone(requests, config, "v2", limits, progress)


def replay_v1(requests: Requests, config: dict, limits: Limits, progress: Progress | None) -> StepLog:
    """Replay "ngram_gpu" as the V1 runner proposes; arguments as `ngram.replay_ngram`.

    Raises:
        InputError: a request comes too near to max_model_len.
    """
    return _alone(requests, config, "v1", limits, progress)


def propose(history: Sequence[int], config: dict) -> tuple[np.ndarray, int]:
    """What the V2 runner verifies at a history: `(k ids, int32; how many of them are filler)`.

    >>> from schemas.speculative import effective
    >>> config = effective({"method": "ngram", "prompt_lookup_max": 2, "num_speculative_tokens": 4})
    >>> ids, filler = propose([7, 8, 1, 7, 8, 2, 7, 8], config)
    >>> ids.tolist(), filler
    ([2, 7, 8, 8], 1)

    Args:
        history: prompt and outputs so far, in tokens; one at least.
        config: effective `speculative_config` of method "ngram" or "ngram_gpu".
    """
    ids = np.ascontiguousarray(history, np.int32)
    k, low, top = (config[key] for key in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"))
    # as if the last token were the first output: the history that ends there is looked up
    requests = Requests.from_lists([ids[:-1].tolist()], [[*ids[-1:].tolist(), 0]])
    entry = index(requests, [top], base=1 if low == 1 else 2, last=True, depth=0)[0, 1]
    real = ids[len(ids) - distance(entry) :][:k] if window(entry) >= low else ids[:0]
    return np.concatenate([real, np.repeat(ids[-1:], k - len(real))]), k - len(real)


def _alone(requests: Requests, config: dict, runner: str, limits: Limits, progress: Progress | None) -> StepLog:
    (log,) = replay_grid(requests, [config], runner, limits)
    if progress is not None:
        progress(len(requests))
    return log
