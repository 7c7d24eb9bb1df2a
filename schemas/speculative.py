"""A proposer's settings: vLLM's `speculative_config` keys, checked without vLLM, defaults as vLLM 0.32.0 fills them.

Source of names, defaults and limits: vllm/config/speculative.py of 0.32.0; methods are in `schemas.methods`. Knows no
engine.
"""

import difflib
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping

from schemas.errors import InputError
from schemas.methods import check_schedule, check_verification, fill_method, fill_model
from schemas.models import fingerprint

KEYS = frozenset(
    """
    method model num_speculative_tokens enforce_eager draft_tensor_parallel_size tensor_parallel_size quantization
    moe_backend attention_backend kv_cache_dtype max_model_len revision code_revision index_share_for_mtp_iteration
    disable_padded_drafter_batch disable_eagle_block_drop use_local_argmax_reduction use_heterogeneous_vocab
    prompt_lookup_max prompt_lookup_min parallel_drafting num_speculative_tokens_per_batch_size
    suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
    suffix_decoding_min_token_prob draft_load_config rejection_sample_method synthetic_acceptance_rates
    synthetic_acceptance_length enable_adaptive_verification draft_sample_method dspark_draft_topk
    """.split()
)

LIST_KEYS = frozenset({"num_speculative_tokens_per_batch_size", "synthetic_acceptance_rates"})
"""Keys whose value is a list in vLLM itself; for all others a list means a grid."""

# key: (type, smallest, largest); None = no limit.
_LIMITS: dict[str, tuple[type, float | None, float | None]] = {
    "num_speculative_tokens": (int, 1, None),
    "prompt_lookup_min": (int, 1, None),
    "prompt_lookup_max": (int, 1, None),
    "suffix_decoding_max_tree_depth": (int, 1, None),
    "suffix_decoding_max_cached_requests": (int, 0, None),
    "suffix_decoding_max_spec_factor": (float, 0, None),
    "suffix_decoding_min_token_prob": (float, 0, 1),
}


HYPOTHETICAL = "hypothetical"
"""The method of a combination that no engine offers, see `_hypothetical`."""

_COMBINATION: dict[str, tuple[type, float, str]] = {
    "min_match_length": (int, 0, "a whole number of tokens, 0 = no floor"),
    "min_score": (float, 0, "a number, 0 = no floor"),
    "cool_down": (int, 0, "a whole number of decode steps, 0 = none"),
    "adaptive": (bool, False, "true or false"),
}
"""Key of a combination: (type, default, what it must be)."""


_KINDS = {
    ("parallel_drafting", True): "parallel",
    ("use_heterogeneous_vocab", True): "foreign",
    ("draft_sample_method", "probabilistic"): "sampled",
    ("rejection_sample_method", "block"): "block",
    ("rejection_sample_method", "synthetic"): "synthetic",
}
"""Ways to draft and to verify, as names tell them apart."""


def unknown_key(where: str, key: str, known: Iterable[str]) -> InputError:
    """The error for a key nobody knows, with the nearest known one; where none is near, with a short list of all."""
    names = sorted(known)
    short = len(names) <= _LISTED
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6 if short else 0.0)
    if near:
        return InputError(f"{where}: unknown key {key!r}; did you mean {near[0]!r}?")
    return InputError(f"{where}: unknown key {key!r}" + (f"; there are: {', '.join(names)}" if short else ""))


_LISTED = 16
"""So many keys are named in an error; more would bury it."""


def effective(config: Mapping, where: str = "proposer") -> dict:
    """The settings as vLLM will use them: defaults of the method filled in, everything checked.

    >>> effective({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4})["prompt_lookup_min"]
    4

    Args:
        config: `speculative_config` keys; empty = no speculation.
        where: what to call it in errors (file and proposer).

    Raises:
        InputError: unknown key, wrong type, value out of range, or min above max; names the key and the value.
    """
    if config.get("method") == HYPOTHETICAL:
        return _hypothetical(config, where)
    for key in config:
        if key not in KEYS:
            raise unknown_key(where, key, KEYS)
    if not config:
        return {"method": "none"}
    for key, (type_, low, high) in _LIMITS.items():
        value = config.get(key)
        if value is None:
            continue
        kinds = (int,) if type_ is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InputError(f"{where}: {key} = {value!r} must be {'a whole number' if type_ is int else 'a number'}")
        most = high if high is not None else 2**31 - 1
        if not (low is None or low <= value) or not value <= most:  # written so that NaN fails too
            bounds = f"at least {low}" if high is None and not value > most else f"from {low} to {most}"
            raise InputError(f"{where}: {key} = {value!r} must be {bounds}")
    out = dict(config)
    fill_method(out, where)
    method = out["method"]
    if method == "none" and len(out) > 1:
        more = min(key for key in out if key != "method")
        raise InputError(f'{where}: {more} = {out[more]!r} with method = "none", which takes no other setting')
    if method in ("ngram", "ngram_gpu"):
        _fill_ngram(out, where)
    elif method == "suffix":
        _fill_suffix(out)
    fill_model(out, where)
    check_verification(out, where)
    check_schedule(out, where)
    return out


def _fill_ngram(out: dict, where: str) -> None:
    # vLLM 0.32.0: both unset means 5; one unset means equal to the other.
    given = [out[key] for key in ("prompt_lookup_min", "prompt_lookup_max") if out.get(key) is not None] or [5]
    low, high = given[0], given[-1]
    out |= {"prompt_lookup_min": low, "prompt_lookup_max": high}
    if low > high:
        raise InputError(f"{where}: prompt_lookup_min = {low} is above prompt_lookup_max = {high}")


def _fill_suffix(out: dict) -> None:
    out.setdefault("suffix_decoding_max_tree_depth", 24)
    out.setdefault("suffix_decoding_max_cached_requests", 10000)
    out.setdefault("suffix_decoding_max_spec_factor", 1.0)
    out.setdefault("suffix_decoding_min_token_prob", 0.1)
    out.setdefault("num_speculative_tokens", out["suffix_decoding_max_tree_depth"])


def _hypothetical(config: Mapping, where: str) -> dict:
    """A combination of proposers, with defaults filled in.

    Keys: `of`, a list of `speculative_config`s (ngram, suffix, draft_model, or {} for no proposer). `combine`: "first",
    the first of them that proposes anything, or "longest", the one that proposes most, the earlier one if equal.
    `min_match_length`: n-gram and suffix propose nothing on a shorter match. `min_score`: suffix proposes nothing below
    this expected number of accepted tokens. `cool_down`: so many decode steps propose nothing after a round that
    accepted nothing. `adaptive`: two more candidates after a round that accepted all, one fewer after any other.
    """
    known = ("method", "combine", "of", "num_speculative_tokens", *_COMBINATION)
    for key in config:
        if key not in known:
            raise unknown_key(where, key, known[1:3] + known[4:])
    combine, of = config.get("combine", "first"), config.get("of")
    if combine not in ("first", "longest"):
        raise InputError(f'{where}: combine = {combine!r} must be "first" or "longest"')
    if not isinstance(of, list) or not of or not all(isinstance(member, Mapping) for member in of):
        raise InputError(f'{where}: needs of = a list of proposers\' settings, for example [{{ method = "suffix" }}]')
    members = []
    for number, member in enumerate(of, 1):
        inside = f"{where}: proposer {number} in `of`"
        for key, value in member.items():
            if isinstance(value, list) and key not in LIST_KEYS:
                raise InputError(f"{inside}: {key} = {value!r}: a list is no grid inside a combination")
        kind = dict(member) or {"method": "none"}
        fill_method(kind, inside)
        if kind["method"] not in ("none", "ngram", "suffix", "draft_model"):
            raise InputError(f"{inside}: a combination takes ngram, suffix or draft_model, not {kind['method']!r}")
        members.append(effective({} if member == {"method": "none"} else member, inside))
    out = {"method": HYPOTHETICAL, "combine": combine, "of": members}
    for key, (type_, default, what) in _COMBINATION.items():
        value = out[key] = config.get(key, default)
        right = isinstance(value, (int, float) if type_ is float else type_) and 0 <= value < 2**31
        if not right or isinstance(value, bool) != (type_ is bool):
            raise InputError(f"{where}: {key} = {value!r} must be {what}")
    for key, needed in (("min_match_length", {"ngram", "suffix"}), ("min_score", {"suffix"})):
        if out[key] and not needed & methods(out):
            raise InputError(
                f"{where}: {key} = {out[key]!r} is a floor for {' or '.join(sorted(needed))}: none is in `of`"
            )
    return out | {"num_speculative_tokens": max(member.get("num_speculative_tokens", 0) for member in members)}


def methods(config: Mapping) -> set[str]:
    """The methods that effective settings use: one, or those of a combination."""
    return {member["method"] for member in config["of"]} if config["method"] == HYPOTHETICAL else {config["method"]}


def proposer_key(config: Mapping, runner: str) -> str:
    """Hash of the effective settings, 12 hex digits: trends are keyed on it, not on the free name.

    A draft model counts by its files, not by where they lie.
    """
    canonical = json.dumps({"config": _by_content(config), "runner": runner}, sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _by_content(config: Mapping) -> dict:
    settings = dict(config)
    if "model" in settings:
        settings["model"] = fingerprint(settings["model"])
    if "of" in settings:
        settings["of"] = [_by_content(member) for member in settings["of"]]
    return settings


def default_name(config: Mapping) -> str:
    """A short name from method and the settings that tell proposers apart.

    >>> default_name({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 5})
    'ngram 2-4 k5'
    """
    method = config["method"]
    k = f" k{config['num_speculative_tokens']}" if "num_speculative_tokens" in config else ""
    if method in ("ngram", "ngram_gpu"):
        return f"{method} {config['prompt_lookup_min']}-{config['prompt_lookup_max']}{_kind(config)}{k}"
    if method == "suffix":
        return f"suffix d{config['suffix_decoding_max_tree_depth']}{_kind(config)}{k}"
    if method == HYPOTHETICAL:
        changed = [f"{key} {config[key]}" for key, (_, default, _) in _COMBINATION.items() if config[key] != default]
        parts = " + ".join(default_name(member) for member in config["of"])
        return ", ".join([f"{config['combine']} of {parts}", *changed])
    return f"{method}{_kind(config)}{k}"


def _kind(config: Mapping) -> str:
    words = [word for (key, value), word in _KINDS.items() if config.get(key) == value]
    if config.get("num_speculative_tokens_per_batch_size"):
        words.append("by batch size")
    return "".join(f" {word}" for word in words)


def expand(config: Mapping) -> list[dict]:
    """A list value is a grid: every combination, in the order written.

    >>> [c["num_speculative_tokens"] for c in expand({"method": "ngram", "num_speculative_tokens": [3, 5]})]
    [3, 5]
    """
    lists = {k: v for k, v in config.items() if isinstance(v, list) and k not in LIST_KEYS and k != "of"}
    return [dict(config) | dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
