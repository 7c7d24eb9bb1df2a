"""What vLLM says of a whole config before the first engine starts: settings, requests, lengths, memory.

Runs in a child process (vLLM is imported once, no engine is started) and leaves `replay.preflight.findings.Finding`s.
Knows ids and settings; knows no trace files.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from replay.live.memory import ledger
from replay.live.platform_rules import Platform, refusals
from replay.live.settings import engine_config, last_words, sampling_params
from replay.preflight.findings import ENVIRONMENT, Finding
from replay.preflight.folder import model
from replay.preflight.ledger import memory
from replay.preflight.lengths import Lengths, draft_fits, target_fits
from replay.preflight.pair import pair
from replay.requests import Tokens
from schemas.config import Proposer
from schemas.errors import InputError

_PLANNED = {"dtype": "auto", "block_size": 16}
"""EngineArgs that vLLM sets otherwise on the CPU build, for a plan of a GPU made there."""

_REMEDIES = {
    "min_p and logit_bias": "set [engine] sampling = { min_p = 0, logit_bias = {} }, or leave those requests out",
    "stop strings": "or set [engine] sampling = { stop = [] }",
    "one request is one output": "write one row per output sequence",
    "leaves no room": "leave those requests out, or raise max_model_len",
    "outside the model's": "the trace was tokenised for another model: ingest it with this model's tokenizer",
}


def ask(
    specs: Sequence[dict],
    proposers: Sequence[Proposer],
    ids: list[str],
    prompts: Tokens,
    rows: list[dict],
    lengths: Lengths,
    outputs: np.ndarray,
    runner: str,
    device_memory: int | None,
) -> list[Finding]:
    """Every check of a live replay that needs vLLM or the model's files.

    Args:
        specs: one per proposer, see `replay.live.launch`.
        proposers: the same, as the config has them.
        ids: request ids, for examples.
        prompts: prompts of the selection.
        rows: per request `sampling` and `output_tokens`.
        lengths: prompt and the most it may put out, per request.
        outputs: recorded output ids, flat int32; may be empty.
        runner: "v1" or "v2".
        device_memory: bytes of the device to plan for; None = this machine's.
    """
    out: list[Finding] = []
    seen: set[str] = set()
    taken = 0
    base: dict[str, Any] | None = None
    target = model(specs[0]["model"])
    for spec, proposer in zip(specs, proposers, strict=True):
        name = None if proposer.method == "none" else proposer.name
        draft = model(spec["speculative"]["model"]) if _has_model(proposer) else None
        files = pair(proposer, target, draft, outputs) if draft is not None else []
        if cannot := _cannot(proposer, spec, runner):
            out += cannot + files
            continue
        try:
            config = engine_config(spec)
        except InputError as error:
            said = str(error).removeprefix(f"proposer {proposer.name!r}: ")
            engine = said.startswith("[engine]")
            if said not in seen and not any(f.level == "refusal" and f.check == "vocabulary" for f in files):
                out.append(Finding("settings", None if engine else name, "refusal", said))
            seen |= {said} if engine else set()
            out += files
            continue
        if spec["speculative"] is not None and config.model_config.logits_processors:
            said = "[engine]: logits_processors: vLLM starts none of one's own with speculation"
            out.append(Finding("settings", proposer.name, "refusal", said, "leave them out"))
        taken += 1
        refused = _refused(spec, ids, prompts, rows, config)
        if not refused:
            out += _sampled(name, rows, spec)
        for said, count, example in refused:
            if said in seen:
                continue
            seen |= {said} if name is None else set()
            remedy = next((remedy for part, remedy in _REMEDIES.items() if part in said), "")
            some = f"{count:,} of {len(ids):,} requests (such as {example!r}): {said}"
            figures = {"requests": count, "example": example}
            out.append(Finding("requests", name, "refusal", some, remedy, figures))
        limit = config.model_config.max_model_len
        if name is None:
            out += target_fits(lengths, limit, live=True) + _grammars(rows, spec)
        out += files
        if (speculation := config.speculative_config) is not None:
            own = getattr(speculation.draft_model_config, "max_model_len", None) or limit
            out += draft_fits(proposer.name, lengths, speculation.num_speculative_tokens, own, limit, draft)
        figures = _memory(spec, config, lengths, device_memory)
        base = figures if name is None else base
        out += memory(name, figures, base, lengths, spec["concurrency"])
    if not any(f.check in ("settings", "requests") and f.level == "refusal" for f in out):
        said = f"vLLM takes the settings of {taken} proposers and all {len(ids):,} requests"
        out.insert(0, Finding("settings", None, "ok", said))
    return out


def _has_model(proposer: Proposer) -> bool:
    return isinstance(proposer.config.get("model"), str) and proposer.method != "custom_class"


def _refused(spec: dict, ids: list[str], prompts: Tokens, rows: list[dict], config) -> list[tuple[str, int, str]]:
    """(reason, requests, one of them) for what vLLM or the step log refuses; equal settings are asked about once."""
    lengths, limit = prompts.lengths, config.model_config.max_model_len
    highest = np.zeros(len(prompts), np.int64)
    if len(prompts.flat):
        filled = np.flatnonzero(lengths)
        highest[filled] = np.maximum.reduceat(prompts.flat, prompts.offsets[filled])
    room = (lengths > 0) & (lengths < limit)
    vocabulary = config.model_config.get_vocab_size()
    out = []
    for wrong in (lengths == 0, lengths >= limit, room & (highest >= vocabulary)):
        at = np.flatnonzero(wrong)
        if len(at):
            i = int(at[0])
            said = _asked(rows[i], ids[i], Tokens.of([prompts[i]]), spec, config)
            out.append((said or "refused", len(at), ids[i]))
    groups: dict[str | None, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row["sampling"], []).append(i)
    reasons: dict[str, tuple[int, str]] = {}
    for members in groups.values():
        first = members[0]
        if (said := _asked(rows[first], ids[first], Tokens.of([[0]]), spec, config)) is not None:
            count, example = reasons.get(said, (0, ids[first]))
            reasons[said] = count + len(members), example
    return out + [(said, count, example) for said, (count, example) in reasons.items()]


def _asked(row: dict, name: str, prompt: Tokens, spec: dict, config) -> str | None:
    try:
        sampling_params([row], [name], prompt, spec, config)
    except InputError as error:
        return str(error).removeprefix(f"request {name!r}: ")
    return None


def _cannot(proposer: Proposer, spec: dict, runner: str) -> list[Finding]:
    """What the machine (ENVIRONMENT) or the runner cannot do with a proposer."""
    from vllm.platforms import current_platform

    refused = refusals(spec["speculative"], Platform(current_platform.device_type, runner))
    anywhere = refusals(spec["speculative"], Platform("cuda", runner))
    return [
        Finding(
            "settings" if one in anywhere else ENVIRONMENT,
            proposer.name,
            "refusal",
            f"{one.what}: {one.why}",
            one.remedy,
        )
        for one in refused
    ]


def _sampled(name: str | None, rows: list[dict], spec: dict) -> list[Finding]:
    """Sampling above temperature 0 on the CPU build, whose own verification is wrong there."""
    from vllm.platforms import current_platform

    if name is None or not current_platform.is_cpu():
        return []
    hot = {text: _temperature(text, spec["sampling"]) > 0 for text in {row["sampling"] for row in rows}}
    count = sum(hot[row["sampling"]] for row in rows)
    if not count:
        return []
    said = f"{count:,} of {len(rows):,} requests sample above temperature 0, which vLLM's CPU build verifies wrongly"
    remedy = "the faulty function is replaced by ours, which the run's engine facts name"
    return [Finding("requests", name, "warning", said, remedy, {"requests": count})]


def _temperature(text: str | None, override: dict) -> float:
    return float(((json.loads(text) if text else {}) | override).get("temperature") or 0)


def _grammars(rows: list[dict], spec: dict) -> list[Finding]:
    under = len(rows) if "structured_outputs" in spec["sampling"] else 0
    under = under or sum('"structured_outputs"' in (row["sampling"] or "") for row in rows)
    if not under:
        return []
    said = f"{under:,} of {len(rows):,} requests are under a grammar: vLLM cuts candidates that it does not allow"
    return [Finding("requests", None, "warning", said, "compare them apart from the others", {"requests": under})]


def _memory(spec: dict, config, lengths: Lengths, device_memory: int | None) -> dict[str, Any]:
    """`memory.ledger`, or {"unknown": why}: a ledger that cannot be made ends nothing."""
    from vllm.platforms import current_platform

    args = spec["engine_args"]
    devices = config.parallel_config.tensor_parallel_size
    planned = dict(_PLANNED) | args if device_memory is not None and current_platform.is_cpu() else dict(args)
    alone = dict(spec["speculative"] or {})
    if devices > 1:
        planned["tensor_parallel_size"] = 1
        alone.pop("draft_tensor_parallel_size", None)
    try:
        if planned != args:
            config = engine_config(spec | {"engine_args": planned, "speculative": alone or None})
        bounds = np.minimum(lengths.total, config.model_config.max_model_len).tolist()
        return ledger(config, bounds, lengths.typical(), device_memory=device_memory, devices=devices)
    except Exception as error:  # building a model without storage may fail in any way; the replay itself need not
        return {"unknown": last_words(error)}
