"""The memory ledger in words, and a plain estimate of it from a model's files where no vLLM is at hand.

Figures are those of `replay.live.memory.ledger`, which asks vLLM. Bytes and tokens are integers; people see KiB, MiB
and GiB of 1,024. Knows no engine.
"""

import re
from collections.abc import Mapping
from typing import Any

from replay.preflight.findings import Finding
from replay.preflight.folder import Model
from replay.preflight.lengths import Lengths
from schemas.errors import InputError

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UTILISATION = 0.92
"""vLLM 0.32.0's default gpu_memory_utilization."""
_HALF = 2
_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}


def size(count: int | float) -> str:
    """Bytes for people.

    >>> size(512), size(6144), size(85_899_345_920)
    ('512 B', '6.0 KiB', '80.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def parse_size(text: str) -> int:
    """Bytes of "80GiB", "24 GB" or "1000000".

    Raises:
        InputError: not a size above 0.
    """
    found = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]+)?)\s*([KMGT]?i?B)?\s*", text)
    unit = (found[2] or "B") if found else ""
    if not found or unit not in _UNITS or float(found[1]) * _UNITS[unit] < 1:
        raise InputError(f"--device-memory {text!r} is no size; write it as 80GiB or 24GB")
    return int(float(found[1]) * _UNITS[unit])


def memory(
    name: str | None, figures: dict[str, Any], base: Mapping[str, Any] | None, lengths: Lengths, concurrency: int | None
) -> list[Finding]:
    """One proposer's part of the ledger, or the target's alone.

    Args:
        name: the proposer; None = the target without a draft.
        figures: see `replay.live.memory.ledger`, or {"unknown": why}.
        base: the same for the target alone, where that is known.
        lengths: of the selection, for what a request is.
        concurrency: sequences in flight at once; None = no engine.
    """
    if "unknown" in figures:
        said = f"what it takes cannot be told before the start: {figures['unknown']}"
        return [Finding("memory", name, "warning", said, "see the engine's own words when it starts")]
    figures = figures | {"lengths": lengths.typical()}
    if figures.get("refused"):
        remedy = "lower max_model_len, or give the cache more memory"
        if "layers" in figures["refused"]:
            remedy = "take a draft whose layers all see the whole text"
        return [Finding("memory", name, "refusal", figures["refused"], remedy, figures)]
    said = _target(figures) if name is None else _draft(figures, base)
    fits, usual = figures.get("fits"), lengths.typical()
    ours = figures["budget_from"] == "specreplay"  # then the longest that may be in flight fit, by construction
    if fits and concurrency is not None and not ours and fits["p95"] < concurrency:
        before = base["fits"]["p95"] if base is not None and base.get("fits") else None
        if name is None or before is None or before >= concurrency:
            remedy = f"set concurrency to {fits['p95']:,} or less, or expect pre-emptions" if fits["p95"] else ""
            said += f"; {fits['p95']:,} requests of {usual['p95']:,} tokens fit at once, {concurrency:,} are asked for"
            return [Finding("memory", name, "warning", said, remedy or "give the cache more memory", figures)]
    return [Finding("memory", name, "ok", said, figures=figures)]


def _target(figures: Mapping[str, Any]) -> str:
    said = f"weights {size(figures['weights']['target'])}, KV cache {_token(figures, 'target')}"
    if figures.get("kv_bytes_per_request"):
        said += f" and {size(figures['kv_bytes_per_request'])} a request"
    if (tokens := figures.get("kv_cache_tokens")) is None:
        return said + "; the device's memory is unknown (--device-memory)"
    said += f"; the cache holds {tokens:,} tokens in {size(figures['kv_cache_bytes'])}"
    return said + _whence(figures)


def _draft(figures: Mapping[str, Any], base: Mapping[str, Any] | None) -> str:
    own, cache = figures["weights"]["draft"], figures["kv_bytes_per_token"]["draft"]
    if not own and not cache:
        said = "no weights and no KV cache of its own"
    else:
        said = f"weights +{size(own)}, KV cache +{_token(figures, 'draft')}"
    tokens = figures.get("kv_cache_tokens")
    before = base.get("kv_cache_tokens") if base is not None else None
    if tokens is None or not before or (not own and not cache):
        return said
    if figures["budget_from"] == "device":
        return f"{said}; the cache holds {tokens:,} tokens instead of {before:,} ({tokens / before - 1:+.1%})"
    if base is not None and figures["kv_cache_bytes"] != base["kv_cache_bytes"]:
        taken, without = size(figures["kv_cache_bytes"]), size(base["kv_cache_bytes"])
        return f"{said}; {tokens:,} tokens take {taken} instead of {without}"
    return f"{said}; the cache holds {tokens:,} tokens instead of {before:,} ({tokens / before - 1:+.1%})"


def _token(figures: Mapping[str, Any], who: str) -> str:
    return f"{size(figures['kv_bytes_per_token'][who])} a token"


def _whence(figures: Mapping[str, Any]) -> str:
    if figures["budget_from"] == "device":
        share = f"{figures['gpu_memory_utilization']:.0%} of {size(figures['device_memory'])}"
        return f": {share} less the weights, before activations and graphs"
    return {"specreplay": ", sized for the requests in flight", "config": ", as configured"}[figures["budget_from"]]


def estimate(
    target: Model | None, draft: Model | None, typical: Mapping[str, int], *, dtype: str | None, candidates: int,
    device_memory: int | None,
) -> dict[str, Any]:  # fmt: skip
    """The ledger by arithmetic on config.json and the headers of the weights.

    Attention layers keep two vectors per KV head and token (GQA) or one latent vector (MLA); layers of other kinds are
    left out. What a draft head shares with the target cannot be seen here, so its weights are an upper bound.

    Args:
        target, draft: by their files; None = there is none.
        typical: name → tokens of a request.
        dtype: the engine's, "auto" or None = the model's own.
        candidates: k, slots that a request needs past its end.
        device_memory: bytes; None = unknown.
    """
    unknown = [why for m in (target, draft) if m is not None and (why := _untold(m, dtype)) is not None]
    if unknown:
        return {"unknown": unknown[0]}
    weights = {
        who: 0 if m is None else m.weight_bytes(_dtype_bytes(m, dtype)) or 0
        for who, m in (("target", target), ("draft", draft))
    }
    tokens = {who: 0 if m is None else per_token(m, dtype) or 0 for who, m in (("target", target), ("draft", draft))}
    out: dict[str, Any] = {"weights": weights, "kv_bytes_per_token": tokens, "budget_from": None, "refused": None}
    if device_memory is None or target is None or not sum(tokens.values()):
        return out
    room = int(device_memory * _UTILISATION) - sum(weights.values())
    out |= {
        "budget_from": "device",
        "device_memory": device_memory,
        "gpu_memory_utilization": _UTILISATION,
        "kv_cache_bytes": room,
        "kv_cache_tokens": max(0, room) // sum(tokens.values()),
    }
    if room <= 0:
        most = f"{_UTILISATION:.0%} of the device's {size(device_memory)}"
        out["refused"] = f"the weights take {size(sum(weights.values()))}, more than {most}"
    out["fits"] = {name: out["kv_cache_tokens"] // (length + candidates) for name, length in typical.items()}
    return out


def _untold(model: Model, dtype: str | None) -> str | None:
    """Why a model's files do not tell what it takes; None if they do."""
    if model.folder is None:
        return f"{model.name!r} is not on this machine"
    if not model.config:
        return f"{model.name!r} has no config.json that can be read"
    if per_token(model, dtype) is None:
        return f"config.json of {model.name!r} does not tell layers, heads and sizes as whole numbers"
    return None if model.weights else f"{model.name!r} has no safetensors files that can be read"


def per_token(model: Model, dtype: str | None) -> int | None:
    """KV bytes per token of a model by its config; None when the config does not say.

    Sliding-window layers count as long as the text is shorter than the window.
    """
    text = model.text
    layers = model.count("num_hidden_layers")
    if layers is None:
        return None
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        layers = sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds[:layers])
    each = _dtype_bytes(model, dtype)
    if (rank := model.count("kv_lora_rank")) is not None:
        return layers * (rank + (model.count("qk_rope_head_dim") or 0)) * each
    heads, width = model.count("num_attention_heads"), model.count("hidden_size")
    if heads is None or width is None:
        return None
    for key in ("num_key_value_heads", "head_dim"):
        if text.get(key) is not None and model.count(key) is None:
            return None  # said, and no number
    return (
        2 * layers * (model.count("num_key_value_heads") or heads) * (model.count("head_dim") or width // heads) * each
    )


def _dtype_bytes(model: Model, dtype: str | None) -> int:
    if dtype in (None, "auto"):
        own = str(model.text.get("dtype") or model.text.get("torch_dtype") or "")
        return _HALF if own == "float32" else _BYTES.get(own, _HALF)  # vLLM's "auto" takes float32 models to 16 bits
    return _BYTES.get(str(dtype), _HALF)
