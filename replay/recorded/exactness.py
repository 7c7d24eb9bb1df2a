"""Is a recorded replay the exact counts a live engine would give, or a proxy? As far as the trace's columns tell.

Knows only what the trace says of itself: no text, no engine. Numerics are outside: another batch shape or dtype can
flip a near-tie, in the target as in a draft model.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from replay.preflight.folder import model as files_of
from replay.recorded.walk import drafts_on_v2, scheduled_ahead
from replay.requests import Requests
from schemas.speculative import HYPOTHETICAL, methods

REFUSED_WITH_SPECULATION = ("min_p", "logit_bias")
"""Sampling settings with which vLLM does not speculate at all."""

GRAMMARS = ("structured_outputs", "guided_decoding", "response_format")
"""Sampling settings that put a grammar on the output; the engine then cuts candidates that a lookup would count."""

NO_SAMPLING_EFFECT = frozenset(
    "max_tokens min_tokens stop stop_token_ids ignore_eos seed n logprobs prompt_logprobs detokenize "
    "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output".split()
)
"""Sampling settings that do not change the distribution the target samples from."""

_LOOKUPS = {
    ("ngram", "v1"): "longest window, its first match",
    (
        "ngram_gpu",
        "v1",
    ): "longest window, its first match (read in vLLM's source, never run; on several GPUs it counts k)",
    ("ngram", "v2"): "longest window, its last match, filled up to k candidates with the last token",
    ("ngram_gpu", "v2"): "longest window, its last match, filled up to k candidates with the last token",
}
"""The n-gram rule by (method, runner)."""


def label(
    requests: Requests,
    config: Mapping,
    *,
    target: str | None,
    sampling: Mapping | None = None,
    max_model_len: int | None = None,
    concurrency: int = 1,
    runner: str = "v1",
) -> tuple[str, str]:
    """`("exact", reason)` or `("proxy", reasons joined by "; ")`; for a combination no engine offers "hypothetical".

    For an n-gram lookup, and for anything under the V2 runner, the reason ends with the rule it followed.

    Args:
        requests: with recorded outputs.
        config: effective `speculative_config`.
        target: folder or name of the model the numbers are meant for; None = whichever model wrote the outputs.
        sampling: SamplingParams the numbers are meant for; None = as recorded.
        max_model_len: limit of prompt + output in tokens, as the replay was given it.
        concurrency: sequences at once in the engine the numbers are meant for.
        runner: "v1" or "v2", whose rules the replay followed.
    """
    kind, reason = _label(requests, config, target, sampling, max_model_len, concurrency, runner)
    rule = _rule(config, runner)
    return kind, f"{reason}; {config['method']} on {runner}: {rule}" if rule else reason


def _rule(config: Mapping, runner: str) -> str | None:
    if runner == "v2" and config["method"] in ("draft_model", "suffix"):
        if not drafts_on_v2(config, runner):
            return "the V2 runner does not have it, and vLLM runs it on V1"
        return "asked in every step up to max_model_len" + (
            ", scheduled asynchronously" if scheduled_ahead(config, runner) else ""
        )
    return _LOOKUPS.get((config["method"], runner))


def _label(requests, config, target, sampling, max_model_len, concurrency, runner) -> tuple[str, str]:
    checks = (
        _other_model(requests, target),
        not_as_sampled(requests),
        _sampled_otherwise(requests, sampling),
        _sampling_that_stops_speculation(requests),
        _end_unknown(requests),
        _interleaved(requests, config, max_model_len, concurrency, runner),
        _drafted_near_a_limit(requests, config, max_model_len, runner),
        _near_own_limit(requests, config, max_model_len, target),
    )
    reasons = [reason for reason in checks if reason]
    if config["method"] == HYPOTHETICAL:
        return HYPOTHETICAL, "; ".join(["no engine offers this combination of proposers", *reasons])
    if reasons and config["method"] != "none":
        return "proxy", "; ".join(reasons)
    near_ties = "; a near-tie of the draft model may fall otherwise in another engine"
    return "exact", "the trace holds the ids this target sampled, and what it would have said past the end" + (
        near_ties if config["method"] == "draft_model" else ""
    )


def _other_model(requests: Requests, target: str | None) -> str:
    if target is None:
        return ""
    name = Path(target).name
    others = [m for m in requests.meta.column("model").to_pylist() if m is None or Path(m).name != name]
    known = sorted({m for m in others if m is not None})
    if known:
        return f"{len(others)} outputs come from another model ({known[0]}), not from {name}"
    return f"{len(others)} rows do not say which model wrote them" if others else ""


def not_as_sampled(requests: Requests) -> str:
    """Why the ids may not be those that the target sampled, as ingest found (column extra); "" if it found nothing."""
    return "; ".join(in_words(found_by_ingest(requests.meta.column("extra").to_pylist())))


_FOUND = {
    ("token_ids", "tokenised"): "the ids of {n} requests were made from text again, hidden tokens not among them",
    ("reasoning", "left out"): "{n} outputs lack the reasoning that was logged beside them",
    ("text", "disagrees"): "the logged text of {n} requests is not what their ids say",
}
"""What ingest may leave in column extra (key, value) about ids that are not as the target sampled them."""


def found_by_ingest(extras: Iterable[str | None]) -> Counter[tuple[str, str]]:
    """How many rows carry each of ingest's findings, given their column extra (JSON texts)."""
    rows = [_json(text) for text in extras]
    return Counter(found for found in _FOUND for row in rows if row.get(found[0]) == found[1])


def in_words(found: Mapping[tuple[str, str], int]) -> list[str]:
    """A sentence for each finding of `found_by_ingest`."""
    return [words.format(n=found[key]) for key, words in _FOUND.items() if found.get(key)]


def _sampled_otherwise(requests: Requests, sampling: Mapping | None) -> str:
    if sampling is None:
        return ""
    wanted = {key: value for key, value in sampling.items() if key not in NO_SAMPLING_EFFECT}
    rows = [_json(text) for text in requests.meta.column("sampling").to_pylist()]
    n = sum(any(row.get(key) != value for key, value in wanted.items()) for row in rows)
    return f"{n} outputs were sampled with other settings" if n else ""


def _sampling_that_stops_speculation(requests: Requests) -> str:
    rows = [_json(text) for text in requests.meta.column("sampling").to_pylist()]
    refused = sum(any(row.get(key) for key in REFUSED_WITH_SPECULATION) for row in rows)
    grammar = sum(any(row.get(key) for key in GRAMMARS) for row in rows)
    reasons = []
    if refused:
        reasons.append(f"vLLM does not speculate on {refused} requests ({' or '.join(REFUSED_WITH_SPECULATION)})")
    if grammar:
        reasons.append(f"{grammar} requests have a grammar: drafted, rounds and coverage are upper bounds")
    return "; ".join(reasons)


def _end_unknown(requests: Requests) -> str:
    walked = requests.outputs.lengths > 1
    n = int(np.sum(walked & (requests.tails.lengths == 0)))
    if not n:
        return ""
    unsaid = int(np.sum(walked & requests.meta.column("finish_reason").is_null().to_numpy()))
    cut = f", and {unsaid} do not say why they ended" if unsaid else ""
    return f"{n} requests have no tail_token_ids: what their last round accepts past the end is unknown{cut}"


def _interleaved(requests: Requests, config: Mapping, max_model_len: int | None, concurrency: int, runner: str) -> str:
    # V2 has no such placeholders
    if concurrency == 1 or (runner == "v2" and (config["method"], runner) in _LOOKUPS) or drafts_on_v2(config, runner):
        return ""
    if "suffix" in methods(config):
        return "suffix with several sequences at once: the shared tree depends on how they interleave"
    longest = int((requests.prompts.lengths + requests.outputs.lengths).max(initial=0))
    limits = [limit for limit in (max_model_len, _draft_limit(config)) if limit is not None]
    if limits and longest + 2 * config.get("num_speculative_tokens", 0) > min(limits):
        return f"near {_named(min(limits), max_model_len)} one sequence fills the whole batch with placeholders"
    return ""


def _drafted_near_a_limit(requests: Requests, config: Mapping, max_model_len: int | None, runner: str) -> str:
    """A draft model where recorded replay cannot tell what the engine verifies."""
    if config["method"] != "draft_model":
        return ""
    total, k = requests.prompts.lengths + requests.outputs.lengths, config["num_speculative_tokens"]
    own = _draft_limit(config)
    if drafts_on_v2(config, runner):
        own = _positions(config.get("model"))
        if own is None or not (n := int(np.sum(total + k > own))):
            return ""
        return f"the V2 runner lets the draft read past its own {own} positions, in {n} requests"
    limits = [limit for limit in (max_model_len, own) if limit is not None]
    if config.get("disable_padded_drafter_batch") or not limits:
        return ""
    n = int(np.sum(total + 3 * k + 1 > min(limits)))
    if not n:
        return ""
    return (
        f"near {_named(min(limits), max_model_len)}, where {n} requests come, an engine that schedules asynchronously "
        "(the default for draft models on a GPU) verifies fewer candidates"
    )


def _named(limit: int, max_model_len: int | None) -> str:
    return "max_model_len" if limit == max_model_len else f"the draft's own limit of {limit} tokens"


def _draft_limit(config: Mapping) -> int | None:
    """How long a sequence a draft model may read on V1, in tokens; None = no draft model, or not known here."""
    if config["method"] != "draft_model":
        return None
    return config.get("max_model_len") or _positions(config.get("model"))


def _positions(folder: str | None) -> int | None:
    """A model's own limit in tokens, as its config.json says; None = it does not, or is not here."""
    return None if folder is None else files_of(folder).count("max_position_embeddings")


def _near_own_limit(requests: Requests, config: Mapping, max_model_len: int | None, target: str | None) -> str:
    """A replay without a limit knows nothing of the placeholders that the engine verifies near the model's own."""
    own = _positions(target) if max_model_len is None else None
    total, k = requests.prompts.lengths + requests.outputs.lengths, config.get("num_speculative_tokens", 0)
    if own is None or not (n := int(np.sum(total + 2 * k > own))):
        return ""
    return f"{n} requests come near the target's own limit of {own} tokens, which [trace] max_model_len does not name"


def _json(text: str | None) -> dict:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}
