"""What a proposer proposed at the steps of one request, found again from the ids: candidates are not stored.

Each proposer's own rule is run again at the histories that the steps started from. Knows ids and settings; knows no
log and no file. What cannot be found again says why.
"""

from collections.abc import Mapping

from replay.recorded.walk import NO_LIMIT
from replay.requests import Requests
from schemas.errors import InputError
from schemas.speculative import HYPOTHETICAL

_HIDDEN = "its candidates come from the target's hidden states, not from token ids alone"
WHY_NOT = {
    "none": "it proposes nothing",
    HYPOTHETICAL: "it is a combination; look at the proposers in it, each in a run of its own",
    "eagle": _HIDDEN,
    "eagle3": _HIDDEN,
    "medusa": _HIDDEN,
    "mtp": _HIDDEN,
    "custom_class": "its code is the user's own",
}
"""Methods whose candidates cannot be found again, and why."""


def candidates(
    request: Requests,
    histories: list[int],
    config: Mapping,
    *,
    runner: str = "v1",
    max_model_len: int | None = None,
    dtype: str = "float32",
    target: str | None = None,
    served_before: Requests | None = None,
) -> list[list[int]]:
    """The candidates at each history, as the proposer returns them: before a limit or a grammar cuts them, no filler.

    >>> request = Requests.from_lists([[5, 6, 7, 8, 5]], [[6, 7, 8, 9, 5]])
    >>> from schemas.speculative import effective
    >>> config = effective({"method": "ngram", "prompt_lookup_max": 2, "num_speculative_tokens": 2})
    >>> candidates(request, [1, 4], config)
    [[7, 8], []]

    Args:
        request: the one request: prompt, output, and as tail what its last step put out past the end.
        histories: outputs put out before each step, 1 at least, ascending.
        config: effective `speculative_config`.
        runner: "v1" or "v2": whose n-gram rule.
        max_model_len: limit of prompt + output in tokens; None = none.
        dtype: what a draft model computes in.
        target: folder of the target, for a draft with a vocabulary of its own.
        served_before: suffix only: what the same global tree served before, in order.

    Returns:
        One list of ids per history.

    Raises:
        InputError: this proposer's candidates cannot be found again; says why.
    """
    method = config["method"]
    if method in ("ngram", "ngram_gpu"):
        return _lookups(request, histories, config, runner, max_model_len)
    if method == "suffix":
        return _suffix(request, histories, config, max_model_len, served_before)
    if method == "draft_model":
        if config.get("draft_sample_method") == "probabilistic":
            raise InputError("its candidates cannot be found again: they were drawn at random")
        from replay.recorded.draft_model import draft_candidates

        limit = NO_LIMIT if max_model_len is None else max_model_len
        return draft_candidates(request, dict(config), histories, limit, dtype, target)
    raise InputError(f"its candidates cannot be found again: {WHY_NOT.get(method, f'method {method!r} is not known')}")


def _lookups(
    request: Requests, histories: list[int], config: Mapping, runner: str, max_model_len: int | None
) -> list[list[int]]:
    from replay.recorded import ngram, ngram_padded

    ids = [*request.prompts[0].tolist(), *request.outputs[0].tolist()]
    start, out = len(request.prompts[0]), []
    for history in histories:
        if runner == "v2":
            said, filler = ngram_padded.propose(ids[: start + history], dict(config))
            out.append(said[: len(said) - filler].tolist())
        else:  # "ngram_gpu" under V1 takes the first match too
            out.append(ngram.propose(ids[: start + history], dict(config), max_model_len).tolist())
    return out


def _suffix(
    request: Requests,
    histories: list[int],
    config: Mapping,
    max_model_len: int | None,
    served_before: Requests | None,
) -> list[list[int]]:
    from replay.recorded.suffix import new_cache, setting
    from replay.recorded.suffix_walk import proposals, walk_suffix

    cache, own = new_cache(config), setting(config)
    if served_before is not None and config["suffix_decoding_max_cached_requests"]:
        walk_suffix(served_before, [own], cache, max_model_len=max_model_len)
    log, said, _ = proposals(request, own, cache, max_model_len=max_model_len)
    # The walk's own histories; near max_model_len vLLM asks no more, and those steps come last.
    at = (1 + log.emitted.cumsum() - log.emitted).tolist()
    by_history = dict(zip(at, said, strict=False))
    return [by_history.get(history, []) for history in histories]
