"""How long the requests get, and whether that fits into the target, the draft and their positions.

Knows lengths and sampling settings, no ids. All lengths are tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from replay.preflight.findings import Finding
from replay.preflight.folder import Model
from replay.requests import Requests


@dataclass(frozen=True)
class Lengths:
    """Per request, int64: prompt, and the most it may put out."""

    prompt: np.ndarray
    output: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Prompt and output together, int64."""
        return self.prompt + self.output

    def typical(self) -> dict[str, int]:
        """{mean, p50, p95, max} of prompt + output, rounded up to whole tokens; {} without requests."""
        total = self.total
        if not len(total):
            return {}
        found = {"mean": total.mean(), "p50": np.quantile(total, 0.5), "p95": np.quantile(total, 0.95)}
        return {name: int(np.ceil(value)) for name, value in found.items()} | {"max": int(total.max())}


def lengths(requests: Requests, sampling: Mapping[str, Any] | None, otherwise: int) -> Lengths:
    """Prompt lengths, and the most each request may put out.

    Args:
        requests: the selection.
        sampling: settings that override the trace's; None = outputs are walked as recorded (no engine).
        otherwise: output bound of a request that names none and has no recorded output.
    """
    recorded = requests.meta.column("output_tokens").to_pylist()
    if sampling is None:
        bound = [n or 0 for n in recorded]
    elif "max_tokens" in sampling:
        bound = [_number(sampling["max_tokens"], otherwise)] * len(recorded)
    else:
        known: dict[str | None, int | None] = {}
        bound = []
        for text, n in zip(requests.meta.column("sampling").to_pylist(), recorded, strict=True):
            if text not in known:
                known[text] = _max_tokens(text)
            own = known[text]
            bound.append(own if own is not None else otherwise if n is None else max(1, n))
    return Lengths(requests.prompts.lengths, np.array(bound, np.int64))


def target_fits(found: Lengths, limit: int | None, live: bool) -> list[Finding]:
    """Whether the selection fits into the target's `max_model_len`.

    Args:
        found: per request.
        limit: prompt + output; None = unknown.
        live: whether an engine generates: it cuts what gets too long.
    """
    if not len(found.total):
        return []
    at = int(np.argmax(found.total))
    said = f"longest request: {found.prompt[at]:,} prompt + {found.output[at]:,} output = {found.total[at]:,} tokens"
    figures = {"longest": int(found.total[at]), "max_model_len": limit}
    if limit is None:
        return [Finding("context", None, "ok", f"{said}; the target's limit is unknown", figures=figures)]
    over = int((found.total > limit).sum())
    figures["over"] = over
    if not over:
        return [Finding("context", None, "ok", f"{said}, of {limit:,} positions", figures=figures)]
    what = "are cut there" if live else "could not be served so by this model"
    said = f"{over:,} of {len(found.total):,} requests may get longer than max_model_len = {limit:,} and {what}; {said}"
    remedy = "lower max_tokens, or raise max_model_len if the model has more positions"
    return [Finding("context", None, "warning", said, remedy, figures)]


def draft_fits(
    proposer: str, found: Lengths, candidates: int, limit: int | None, target_limit: int | None, draft: Model | None
) -> list[Finding]:
    """Whether the histories that a proposer reads, and its candidates, fit into the positions it may use.

    vLLM 0.32.0 takes candidates, of any method, only while the longest running sequence, with the k that are being
    verified and the k to come, fits; from there on the *whole batch* verifies placeholders
    (gpu_model_runner.py, _input_fits_in_drafter).

    Args:
        proposer: its name.
        found: per request.
        candidates: k.
        limit: the proposer's own length limit; None = unknown.
        target_limit: the target's; no request gets longer.
        draft: for its RoPE settings and windows; None = it has no model, and only what is wrong is said.
    """
    if not len(found.total):
        return []
    total = found.total if target_limit is None else np.minimum(found.total, target_limit)
    longest = int(total.max())
    said = f"longest request {longest:,} and twice {candidates} candidates"
    figures: dict[str, Any] = {"longest": longest, "candidates": candidates, "max_model_len": limit}
    ropes = "; " + rope(draft) if draft is not None and draft.text else ""
    if limit is None:
        return [Finding("context", proposer, "ok", f"{said}; the draft's limit is unknown{ropes}", figures=figures)]
    # The last step that drafts for another one knows at most total - 2 tokens.
    over = int((total - 2 + 2 * candidates > limit).sum())
    figures["over"] = over
    if over:
        some = f"{over:,} of {len(total):,} requests come near the limit of {limit:,} positions: {said}{ropes}"
        remedy = "there vLLM verifies placeholders, for the whole batch (counted as filler); cap the lengths"
        remedy += "" if draft is None else " or take a longer draft"
        return [Finding("context", proposer, "warning", some, remedy, figures)]
    if draft is None:
        return []
    window = _window(draft)
    if window is not None and longest > window:
        said = f"{said}, of {limit:,} positions; the draft attends to the last {window:,} tokens only{ropes}"
        return [Finding("context", proposer, "warning", said, "it may miss what longer histories say", figures)]
    return [Finding("context", proposer, "ok", f"{said}, of {limit:,} positions{ropes}", figures=figures)]


def rope(model: Model) -> str:
    """A model's rotary settings in words: `RoPE default, θ 1,000,000`."""
    settings = model.text.get("rope_parameters") or model.text.get("rope_scaling")
    settings = settings if isinstance(settings, dict) else {}
    if settings and all(isinstance(part, dict) for part in settings.values()):  # one per kind of layer
        settings = next(iter(settings.values()))
    kind = settings.get("rope_type") or settings.get("type") or "default"
    theta = settings.get("rope_theta") or model.text.get("rope_theta")
    said = f"RoPE {kind}" + (f", θ {theta:,.0f}" if isinstance(theta, int | float) else "")
    for key, word in (("factor", "×"), ("original_max_position_embeddings", "from ")):
        if isinstance(value := settings.get(key), int | float) and kind != "default":
            said += f", {word}{value:g}" if key == "factor" else f", {word}{value:,.0f}"
    return said


def positions(model: Model) -> int | None:
    """Positions by config.json, as far as no engine is here to say it."""
    return model.count("max_position_embeddings")


def _window(model: Model) -> int | None:
    """Tokens that every attention layer is limited to; None if any sees all."""
    text = model.text
    window = model.count("sliding_window")
    if window is None or text.get("use_sliding_window") is False:
        return None
    kinds = text.get("layer_types")
    return None if isinstance(kinds, list) and any(kind != "sliding_attention" for kind in kinds) else window


def _max_tokens(text: str | None) -> int | None:
    try:
        settings = json.loads(text) if text else {}
    except ValueError:
        return None  # refused elsewhere, with its row
    value = settings.get("max_tokens") if isinstance(settings, dict) else None
    return None if value is None else _number(value, 0)


def _number(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise
