"""vLLM's speculative methods: which there are, what each needs, and what vLLM 0.32.0 infers from a model's files.

Source: vllm/config/speculative.py and vllm/v1/spec_decode/dynamic/utils.py of 0.32.0. Reads a config.json where the
model is a folder here, and nothing else; a hub name is judged by its name alone.
"""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import InputError

MTP = frozenset(
    f"{family}_mtp"
    for family in """
    deepseek dots3_note mimo mimo_v2 glm4_moe glm4_moe_lite glm_ocr ernie nemotron_h exaone_moe exaone4_5 qwen3_next
    qwen4_exp qwen3_5 longcat_flash bailing_hybrid_v3 minimax_m3 bailing_hybrid kimi_k3 pangu_ultra_moe step3p5 hy_v3
    hy_v4 gemma4 inkling glm5_next
    """.split()
)
"""Old names of method "mtp", and the model types it is inferred from."""

METHODS = frozenset(
    """
    none ngram ngram_gpu suffix draft_model eagle eagle3 mtp medusa mlp_speculator dflash dspark extract_hidden_states
    custom_class
    """.split()
)

OWN_MODEL = frozenset({"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "custom_class"})
"""Methods that need `model`; mtp and dspark find their layers in the target's checkpoint."""

SAMPLED = frozenset({"draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Methods that can draw their candidates from probabilities (draft_sample_method = "probabilistic")."""

_BY_PATH = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
_AS_WRITTEN = frozenset(_BY_PATH.values())


def fill_method(out: dict, where: str) -> None:
    """Set `method` as vLLM does: as written, or inferred from `model`.

    Args:
        out: `speculative_config` keys, changed in place.
        where: what to call it in errors.

    Raises:
        InputError: no method and no model, an unknown method, or one that vLLM would silently take for another.
    """
    method, model = out.get("method"), out.get("model")
    if method is None and model is None:
        raise InputError(f'{where}: needs a method (for example method = "ngram")')
    if method is not None and not isinstance(method, str):
        raise InputError(f'{where}: method = {method!r} must be a name, for example "ngram"')
    if method in MTP:
        method = "mtp"
    if method is None and _class_path(model):
        method = "custom_class"
    elif method is None and model in ("ngram", "[ngram]"):
        method = "ngram"
        del out["model"]
    elif method is None:
        method = _inferred(model) or "draft_model"
    elif method not in METHODS | {"hypothetical"}:
        near = difflib.get_close_matches(method, sorted(METHODS), n=1, cutoff=0.0)
        raise InputError(f"{where}: method = {method!r} is none of vLLM's; did you mean {near[0]!r}?")
    elif model is not None and method in ("draft_model", "mtp", "mlp_speculator", "medusa"):
        other = _by_path(model) or (_inferred(model) if method == "draft_model" else None)
        if other not in (None, method):
            raise InputError(
                f"{where}: method = {method!r}, but vLLM takes model = {model!r} for {other!r}, by its path or its "
                f'config.json; write method = "{other}", or move the model'
            )
    out["method"] = method


def _class_path(model: Any) -> bool:
    parts = model.split(".") if isinstance(model, str) else []
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _by_path(model: Any) -> str | None:
    return next((method for word, method in _BY_PATH.items() if word in str(model).lower()), None)


def _inferred(model: Any) -> str | None:
    if method := _by_path(model):
        return method
    config = _config(model)
    kind = config.get("model_type")
    if kind in MTP or config.get("num_nextn_predict_layers"):
        return "mtp"
    return kind if kind in ("medusa", "mlp_speculator") else None


def _config(model: Any) -> dict:
    """config.json of a model folder; {} where there is none that can be read: the engine says what is wrong with it."""
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def fill_model(out: dict, where: str) -> None:
    """Check what a method with a model needs, and fill in the number of candidates where its checkpoint says it.

    Args:
        out: settings with `method`, changed in place.
        where: what to call it in errors.

    Raises:
        InputError: no model, no num_speculative_tokens, or more candidates than a Medusa checkpoint has heads.
    """
    method, model = out["method"], out.get("model")
    if method in OWN_MODEL and model is None:
        what = "the folder of the draft model"
        if method == "custom_class":
            what = 'the path of a class, for example "my_module.MyProposer"'
        raise InputError(f'{where}: method = "{method}" needs model = {what}')
    if method == "custom_class" and not _class_path(model):
        raise InputError(f'{where}: model = {model!r} must be the path of a class, for example "my_module.MyProposer"')
    config = _config(model) if method not in ("custom_class", "ngram", "ngram_gpu", "suffix", "none") else {}
    depth = config.get("n_predict", config.get("num_nextn_predict_layers") if method == "mtp" else None)
    if out.get("num_speculative_tokens") is None and isinstance(depth, int) and depth > 0:
        out["num_speculative_tokens"] = depth
    if out.get("num_speculative_tokens") is None and method not in ("none", "dspark"):
        raise InputError(f"{where}: needs num_speculative_tokens (how many candidates a round may propose)")
    if method == "medusa":
        _check_heads(out, config, where)


def _check_heads(out: dict, config: dict, where: str) -> None:
    heads = next((v for k, v in config.items() if "num" in k and "heads" in k), None)
    if isinstance(heads, int) and heads < out["num_speculative_tokens"]:
        raise InputError(
            f"{where}: num_speculative_tokens = {out['num_speculative_tokens']}, but {out['model']} has {heads} Medusa "
            "heads; vLLM would draft with heads that were never loaded"
        )
    if out.get("num_speculative_tokens_per_batch_size"):
        raise InputError(f"{where}: num_speculative_tokens_per_batch_size: vLLM's medusa has one number of candidates")


def check_verification(out: dict, where: str) -> None:
    """Check how candidates are drawn and verified; a setting that says vLLM's default is left out.

    Args:
        out: settings with `method` and `num_speculative_tokens`, changed in place.
        where: what to call it in errors.

    Raises:
        InputError: an unknown way, a way that the method does not have, or synthetic rates that vLLM refuses.
    """
    ways = {"draft_sample_method": ("greedy", "probabilistic")}
    ways["rejection_sample_method"] = ("standard", "block", "synthetic")
    for key, known in ways.items():
        if out.get(key, known[0]) not in known:
            raise InputError(f"{where}: {key} = {out[key]!r} must be one of {', '.join(known)}")
        if out.get(key) == known[0]:
            del out[key]
    method = out["method"]
    if out.get("draft_sample_method") and method not in SAMPLED:
        raise InputError(
            f"{where}: draft_sample_method = 'probabilistic': {method} has no probabilities to draw from; leave it out"
        )
    rates, length = (out.get(f"synthetic_acceptance_{key}") for key in ("rates", "length"))
    if out.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            key = "synthetic_acceptance_" + ("length" if rates is None else "rates")
            raise InputError(f"{where}: {key} needs rejection_sample_method = 'synthetic'")
        return
    if (rates is None) == (length is None):
        raise InputError(
            f"{where}: rejection_sample_method = 'synthetic' needs synthetic_acceptance_rates or "
            "synthetic_acceptance_length, one of them"
        )
    k = out["num_speculative_tokens"]
    if rates is not None:
        right = isinstance(rates, list) and len(rates) == k and all(_number(r, 0, 1) for r in rates)
        if not right or sorted(rates, reverse=True) != rates:
            raise InputError(
                f"{where}: synthetic_acceptance_rates = {rates!r} must be {k} numbers from 0 to 1, none above the one "
                "before (rate i: all of the first i candidates are accepted)"
            )
    elif not _number(length, 1, k + 1):
        raise InputError(f"{where}: synthetic_acceptance_length = {length!r} must be a number from 1 to {k + 1}")


def _number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def check_schedule(out: Mapping, where: str) -> None:
    """Check `num_speculative_tokens_per_batch_size`: [first batch size, last, candidates] each, from batch size 1 on.

    Raises:
        InputError: names the entry.
    """
    key = "num_speculative_tokens_per_batch_size"
    if out.get(key) is None:
        return
    schedule, last = out[key], 0
    if not isinstance(schedule, list) or not schedule:
        raise InputError(f"{where}: {key} = {schedule!r} must be a list, for example [[1, 4, 5], [5, 64, 2]]")
    for entry in schedule:
        whole = isinstance(entry, list | tuple) and all(type(number) is int for number in entry)
        if not whole or len(entry) != 3 or not 0 < entry[0] <= entry[1] or entry[2] < 0:
            raise InputError(f"{where}: {key}: {entry!r} must be [first batch size, last batch size, candidates]")
    for low, high, _ in sorted(schedule):
        if low <= last or (last == 0 and low != 1):
            raise InputError(f"{where}: {key} = {schedule!r}: ranges must begin at 1 and not overlap")
        last = high
