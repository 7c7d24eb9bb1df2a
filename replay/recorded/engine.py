"""Recorded replay: walk a proposer along recorded token ids, without a target model.

Knows which proposers there are and which input they cannot take; knows no file, warehouse or command. A proposer is
added by one file and one line in `METHODS`.

>>> from replay.requests import Requests
>>> requests = Requests.from_lists(prompts=[[5, 6, 7, 8, 5]], outputs=[[6, 7, 8, 9, 5]])
>>> log = replay_recorded(requests, {"method": "ngram", "prompt_lookup_max": 2, "num_speculative_tokens": 2})
>>> {name: int(log.counts()[name][0]) for name in ("steps", "rounds", "drafted", "accepted")}
{'steps': 2, 'rounds': 1, 'drafted': 2, 'accepted': 2}
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from replay.recorded.walk import NO_LIMIT, Limits
from replay.requests import Requests
from replay.steps import StepLog
from schemas.errors import InputError
from schemas.speculative import HYPOTHETICAL, effective, methods

if TYPE_CHECKING:
    from replay.recorded.suffix_walk import SuffixCache, SuffixMemory  # compiles: only when used

METHODS = {
    "none": "replay.recorded.walk:replay_none",
    "ngram": "replay.recorded.ngram:replay_ngram",
    "suffix": "replay.recorded.suffix:replay_suffix",
    "draft_model": "replay.recorded.draft_model:replay_draft_model",
    HYPOTHETICAL: "replay.recorded.hypothetical:replay_hypothetical",
}
"""vLLM's method: where its replay lives, imported when used, so that n-gram needs no torch and live runs no numba."""

OWN_ON = {
    ("ngram", "v2"): "replay.recorded.ngram_padded:replay_v2",
    ("ngram_gpu", "v2"): "replay.recorded.ngram_padded:replay_v2",
    ("ngram_gpu", "v1"): "replay.recorded.ngram_padded:replay_v1",
    ("draft_model", "v2"): "replay.recorded.draft_model:replay_v2",
}
"""(method, runner) with a rule of its own: lookups filled up to k candidates, drafts asked up to max_model_len."""

NGRAM = ("ngram", "ngram_gpu")
"""The methods that share an index over one list of requests, see `replay_ngram_grid`."""

MAX_CANDIDATES = 2**15 - 1
"""A step's counts are int16."""

_REFUSED = {
    ("draft_sample_method", "probabilistic"): "accepts by the draft's and the target's probabilities",
    ("rejection_sample_method", "synthetic"): "accepts by chance, not by the record",
    ("num_speculative_tokens_per_batch_size", any): "depends on how requests are batched",
    ("quantization", any): "changes what the draft says, while recorded replay runs it unquantized",
}
"""(key, value; `any` = every value): why a walk along recorded ids cannot follow it."""


def replay_recorded(
    requests: Requests,
    config: Mapping,
    *,
    runner: str = "v1",
    max_model_len: int | None = None,
    progress: Callable[[int], None] | None = None,
    dtype: str = "float32",
    target: str | None = None,
    cache: "SuffixCache | None" = None,
) -> StepLog:
    """Every decode step of every request, as vLLM's runner would take them one sequence at a time.

    Args:
        requests: with recorded outputs, in serving order (it matters for suffix). A recorded output of no tokens
            has no steps.
        config: vLLM's `speculative_config`; `{}` or method "none" proposes nothing.
        runner: "v1" or "v2": whose rule holds (`OWN_ON`); the others are the same.
        max_model_len: limit of prompt + output, in tokens; None = the target has none.
        progress: called with how many more requests are done.
        dtype: what a draft model computes in, "float32" or "bfloat16"; vLLM takes the target's.
        target: folder of the target model; only a draft with a vocabulary of its own needs it, for the tokenizer.
        cache: suffix only: what earlier requests left behind (`replay.recorded.suffix.new_cache`, filled by earlier
            calls); these requests are added to it. None = nothing.

    Raises:
        InputError: a setting or a request that recorded replay cannot take, named, before anything is computed.
        EnvironmentProblem: a package that the method needs is not installed.
    """
    config = effective(config)
    method = config["method"]
    check(config, runner, target)
    _check_requests(requests, max_model_len)
    limit = NO_LIMIT if max_model_len is None else max_model_len
    module, function = (OWN_ON.get((method, runner)) or METHODS[method]).split(":")
    more = {"dtype": dtype, "target": target} if method in ("draft_model", HYPOTHETICAL) else {}
    if cache is not None:
        if method != "suffix":
            raise InputError(f"method {method!r} keeps no cache from one request to the next; only suffix does")
        more = {"cache": cache}
    return getattr(import_module(module), function)(requests, config, Limits(limit, limit), progress, **more)


def replay_ngram_grid(
    requests: Requests, configs: Sequence[Mapping], *, runner: str = "v1", max_model_len: int | None = None
) -> Iterator[StepLog]:
    """Many n-gram settings over the same requests for little more than the time of one.

    >>> requests = Requests.from_lists(prompts=[[5, 6, 7, 8, 5]], outputs=[[6, 7, 8, 9, 5]])
    >>> window = {"method": "ngram", "prompt_lookup_max": 2}
    >>> logs = replay_ngram_grid(requests, [window | {"num_speculative_tokens": k} for k in (1, 2)])
    >>> [int(log.counts()["steps"][0]) for log in logs]
    [3, 2]

    Args:
        requests: with recorded outputs.
        configs: vLLM's `speculative_config`, method "ngram" or "ngram_gpu" each.
        runner: see `replay_recorded`.
        max_model_len: see `replay_recorded`.

    Returns:
        One step log per setting, in the order given, equal to `replay_recorded`'s; made as they are asked for.

    Raises:
        InputError: a setting or a request that recorded replay cannot take, or a setting that is no n-gram lookup.
    """
    from replay.recorded.ngram_grid import replay_grid

    full = [effective(config) for config in configs]
    for config in full:
        check(config, runner)
        if config["method"] not in NGRAM:
            raise InputError(f"a grid of n-gram lookups has no method {config['method']!r}")
    _check_requests(requests, max_model_len)
    limit = NO_LIMIT if max_model_len is None else max_model_len
    return replay_grid(requests, full, runner, Limits(limit, limit))


def replay_suffix_grid(
    requests: Requests,
    configs: Sequence[Mapping],
    *,
    warm: Requests | None = None,
    max_model_len: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> "list[tuple[StepLog, SuffixMemory]]":
    """Suffix settings over the same requests, sharing their trees where they can, and what the tree comes to.

    Args:
        requests: with recorded outputs, in serving order.
        configs: vLLM's `speculative_config`, method "suffix", all of one tree depth and cache size.
        warm: requests served before these: they fill the tree and are not logged; None = it starts empty.
        max_model_len: see `replay_recorded`.
        progress: called with how many more requests are done, each counted once for each setting.

    Returns:
        Step log and size of the global tree at the end, one of each setting, in the order given; the logs equal
        `replay_recorded`'s.

    Raises:
        InputError: a setting or a request that recorded replay cannot take, or settings that have no tree in common.
    """
    full = [effective(config) for config in configs]
    for config in full:
        check(config)
        if config["method"] != "suffix":
            raise InputError(f"a grid of suffix settings has no method {config['method']!r}")
        for key in ("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"):
            if config[key] != full[0][key]:
                raise InputError(f"a grid of suffix settings needs one {key}, not {full[0][key]} and {config[key]}")
    for some in (requests, *([] if warm is None else [warm])):
        _check_requests(some, max_model_len)
    from replay.recorded.suffix import replay_grid

    limit = NO_LIMIT if max_model_len is None else max_model_len
    return replay_grid(requests, full, warm, Limits(limit, limit), progress)


def check(config: Mapping, runner: str = "v1", target: str | None = None) -> None:
    """Refuse effective settings that a walk along recorded ids cannot follow.

    Raises:
        InputError: names the setting and why.
    """
    method = config["method"]
    if runner not in ("v1", "v2"):
        raise InputError(f"runner = {runner!r}: there are v1 and v2")
    if method not in METHODS and (method, runner) not in OWN_ON:
        raise InputError(f"recorded replay has no method {method!r}; it has {', '.join([*METHODS, 'ngram_gpu'])}")
    if method == HYPOTHETICAL:
        if runner != "v1" and "ngram" in methods(config):
            raise InputError(f'runner = {runner!r}: a combination takes n-gram lookup by the rule of "v1" only')
        for member in config["of"]:
            check(member, runner, target)
    for (key, value), why in _REFUSED.items():
        given = config.get(key)
        if given is not None and value in (given, any):
            raise InputError(f'recorded replay has no {key} = {given!r}: it {why}; use kind = "vllm"')
    if config.get("use_heterogeneous_vocab") and (method != "draft_model" or target is None):
        need = "the target's tokenizer: set [engine] model" if method == "draft_model" else 'method = "draft_model"'
        raise InputError(f"use_heterogeneous_vocab = true needs {need}")
    if config.get("num_speculative_tokens", 0) > MAX_CANDIDATES:
        raise InputError(f"num_speculative_tokens = {config['num_speculative_tokens']} is above {MAX_CANDIDATES}")


def _check_requests(requests: Requests, max_model_len: int | None) -> None:
    lengths = requests.prompts.lengths, requests.outputs.lengths
    said = [requests.meta.column(name) for name in ("prompt_tokens", "output_tokens")]

    def name(at: np.ndarray) -> str:
        first = requests.meta.column("request_id")[int(at[0])].as_py()
        return f"request {first!r}" + (f" (and {len(at) - 1} more)" if len(at) > 1 else "")

    if len(missing := np.flatnonzero(said[1].is_null().to_numpy())):
        raise InputError(
            f"{name(missing)} has no recorded output: recorded replay walks along one; "
            'record it with `specreplay capture`, or replay with kind = "vllm"'
        )
    for kind, length, column in zip(("prompt", "output"), lengths, said, strict=True):
        expected = column.cast(pa.int64()).to_numpy()
        if len(wrong := np.flatnonzero(expected != length)):
            i = wrong[0]
            raise InputError(f"{name(wrong)} says {expected[i]} {kind} tokens but holds {length[i]} token ids")
    if max_model_len is not None and len(over := np.flatnonzero(lengths[0] + lengths[1] > max_model_len)):
        total = lengths[0][over[0]] + lengths[1][over[0]]
        raise InputError(
            f"{name(over)} has {total} prompt + output tokens, more than max_model_len = {max_model_len}: "
            "raise it or leave such requests out"
        )
