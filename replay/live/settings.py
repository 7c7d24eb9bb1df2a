"""A config's engine, proposer and sampling settings as vLLM's own objects, checked before an engine starts.

Runs in the engine's process. vLLM's names pass through unchanged; what vLLM refuses becomes one line that names the
key. Knows nothing of steps or logs.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import traceback
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from replay.live.platform_rules import Platform, refusals
from replay.requests import Tokens
from schemas.errors import InputError, SpecreplayError
from schemas.sections import EngineSection
from schemas.speculative import unknown_key

OURS = {
    "speculative_config": "write it as a [[proposer]]",
    "max_num_seqs": "set concurrency instead",
    "worker_extension_cls": "the step log needs it",
    "per_request_spec_decode_metrics": "reconciliation needs it",
    "disable_log_stats": "reconciliation needs vLLM's counters",
    "stream_interval": "every token is taken in, and timed, as it comes",
}
"""EngineArgs that a config may not set, and why."""

ALONE = {
    "data_parallel_size": "a unit is one engine; several at once: name devices in [run]",
    "pipeline_parallel_size": "the step log is kept where all layers are; over several devices: tensor_parallel_size",
    "nnodes": "an engine runs on this machine alone",
}
"""Settings of vLLM's ParallelConfig that must be 1, and why. Of two data-parallel ranks the first waits for the other
for good; of two stages the first one, which samples nothing, would be asked for the log."""

RUN_ON_BLIND = ("min_tokens", "repetition_detection")
"""Sampling settings whose effect depends on where the output may end, so that running on past the end changes it."""

DEFAULT_MAX_TOKENS = 256


def engine_config(spec: dict):
    """vLLM's config for this unit.

    Args:
        spec: `model`, `engine_args`, `speculative` (None = no speculation), `concurrency`, `max_model_len`.

    Returns:
        vllm.config.VllmConfig, KV cache not sized yet.

    Raises:
        InputError: an unknown key, or a setting vLLM refuses; names it.
    """
    from vllm import envs
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    here = Platform(current_platform.device_type, "v2" if envs.VLLM_USE_V2_MODEL_RUNNER else "v1")
    for refusal in refusals(spec["speculative"], here):
        raise InputError(f"proposer {spec['proposer']!r}: {refusal}")
    known = {f.name for f in dataclasses.fields(EngineArgs)}
    for key in spec["engine_args"]:
        if key not in known:
            raise unknown_key("[engine]", key, known | set(EngineSection.model_fields))
        if key in OURS:
            raise InputError(f"[engine]: {key} cannot be set here: {OURS[key]}")
    args: dict[str, Any] = {"enable_prefix_caching": False, "seed": 0}
    if current_platform.is_cpu():
        args |= {"dtype": "float32", "enforce_eager": True}
    args |= spec["engine_args"] | {
        "model": spec["model"],
        "max_num_seqs": spec["concurrency"],
        "worker_extension_cls": "replay.live.worker.StepRecorder",
    }
    if spec["max_model_len"] is not None:
        args["max_model_len"] = spec["max_model_len"]
    if spec["speculative"] is not None:
        args |= {"speculative_config": spec["speculative"], "per_request_spec_decode_metrics": "detailed"}
    try:
        config = EngineArgs(**args).create_engine_config()
    except Exception as error:
        if isinstance(error, SpecreplayError):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        in_proposer = any(f.name == "create_speculative_config" or "speculative.py" in f.filename for f in frames)
        where = f"proposer {spec['proposer']!r}" if in_proposer else "[engine]"
        said = f"vLLM refuses the settings: {last_words(error)}"
        if not in_proposer and not Path(spec["model"]).exists():
            said = f"model = {spec['model']!r} is no folder here, and vLLM cannot make one of it: {last_words(error)}"
        raise InputError(f"{where}: {said}") from error
    for key, why in ALONE.items():
        if (value := getattr(config.parallel_config, key)) != 1:
            raise InputError(f"[engine]: {key} = {value} cannot be set here: {why}")
    if spec["speculative"] is not None and spec["speculative"]["method"] == "custom_class":
        _check_class(spec["speculative"]["model"], f"proposer {spec['proposer']!r}", current_platform.is_cpu())
    return config


def _check_class(path: str, where: str, on_cpu: bool) -> None:
    """A class of the user's own is there and has what vLLM calls; the engine would say so only once it has loaded."""
    module, name = path.rsplit(".", 1)
    try:
        made = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise InputError(
            f"{where}: model = {path!r} cannot be imported: {last_words(error)}; its module must lie on PYTHONPATH"
        ) from error
    called = {"propose": "vLLM"} | ({"load_model": "vLLM's CPU build"} if on_cpu else {})
    for method, who in called.items():
        if not callable(getattr(made, method, None)):
            raise InputError(f"{where}: model = {path!r} has no method {method!r}, which {who} calls")


def size_kv_cache(config, lengths: Sequence[int], concurrency: int) -> str:
    """On the CPU build, give the KV cache what the longest requests in flight at once can fill, and no more.

    vLLM's default there takes most of the memory and touches all of it. A size the user set is kept.

    Args:
        config: from `engine_config`; changed in place.
        lengths: tokens each request may reach, prompt included.
        concurrency: sequences in flight at once.

    Returns:
        Who sized it: "specreplay" or "vllm".
    """
    from vllm.platforms import current_platform

    cache = config.cache_config
    if not current_platform.is_cpu() or cache.kv_cache_memory_bytes:
        return "vllm"
    cache.kv_cache_memory_bytes = 1 << 26  # skips vLLM's own sizing; the number of blocks is what is allocated
    if cache.num_gpu_blocks_override:
        return "vllm"
    # One block of slack per sequence for candidates past its end, one for vLLM's null block.
    blocks = [-(-n // cache.block_size) + 1 for n in sorted(lengths, reverse=True)[:concurrency]]
    whole = -(-config.model_config.max_model_len // cache.block_size) + 1
    cache.num_gpu_blocks_override = max(sum(blocks), whole) + 1
    return "specreplay"


def sampling_params(rows: list[dict], ids: list[str], prompts: Tokens, spec: dict, config) -> list:
    """SamplingParams per request: greedy unless the trace row or the config says otherwise.

    Args:
        rows: per request, `sampling` (JSON text or None) and `output_tokens` (int or None).
        ids: request ids, for errors.
        prompts: prompts, to check ids and lengths.
        spec: `sampling` (overrides), `tail_tokens`.
        config: from `engine_config`.

    Raises:
        InputError: names the request and the key or length.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    limit, vocabulary = config.model_config.max_model_len, config.model_config.get_vocab_size()
    out = []
    for i, (row, name) in enumerate(zip(rows, ids, strict=True)):
        where = f"request {name!r}"
        prompt = prompts[i]
        if not 0 < len(prompt) < limit:
            reason = "is empty" if len(prompt) == 0 else f"leaves no room within max_model_len = {limit}"
            raise InputError(f"{where}: its prompt of {len(prompt)} tokens {reason}")
        if prompt.max() >= vocabulary:
            at = int(np.argmax(prompt >= vocabulary))
            raise InputError(
                f"{where}: prompt position {at}: token id {prompt[at]} is outside the model's {vocabulary}"
            )
        settings = {"temperature": 0.0} | _row_sampling(row["sampling"], where) | spec["sampling"]
        tokens = row["output_tokens"]
        settings.setdefault("max_tokens", DEFAULT_MAX_TOKENS if tokens is None else max(1, tokens))
        _bias_by_id(settings, where)
        _refuse(settings, where, spec["tail_tokens"])
        try:
            settings = _typed(settings, where)
            params = SamplingParams(**settings, detokenize=False, output_kind=RequestOutputKind.DELTA)
            if params.structured_outputs is None:  # those need the tokenizer; the engine checks them on arrival
                params.clone().verify(
                    config.model_config, config.speculative_config, config.structured_outputs_config, None
                )
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{where}: vLLM refuses its sampling settings: {last_words(error)}") from error
        out.append(params)
    return out


def _row_sampling(text: str | None, where: str) -> dict:
    try:
        settings = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: its sampling column is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise InputError(f"{where}: its sampling column must be a JSON object")
    return {k: v for k, v in settings.items() if v is not None}


def fill_seeds(params: list, ids: Sequence[str], seed: int) -> dict[str, int]:
    """Give every request above temperature 0 a seed: its own, or one that depends on `seed` and its id alone.

    Args:
        params: SamplingParams per request, changed in place; one with a seed keeps it.
        ids: request ids.
        seed: of the trace section.

    Returns:
        {recorded, derived}: how many requests above temperature 0 had a seed, and how many were given one.
    """
    from vllm.sampling_params import SamplingType

    counts = {"recorded": 0, "derived": 0}
    for settings, name in zip(params, ids, strict=True):
        if settings.sampling_type == SamplingType.GREEDY:
            continue
        counts["derived" if settings.seed is None else "recorded"] += 1
        if settings.seed is None:
            settings.seed = derived_seed(seed, name)
    return counts


def derived_seed(seed: int, request_id: str) -> int:
    """A sampling seed (32 bits) that depends on both and nothing else, on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{request_id}".encode(), digest_size=4).digest())


def _bias_by_id(settings: dict, where: str) -> None:
    """JSON has no numbers as keys: `{"5": 1.0}` is the bias of token 5, as vLLM's own server reads it."""
    if isinstance(bias := settings.get("logit_bias"), dict):
        try:
            settings["logit_bias"] = {int(token): value for token, value in bias.items()}
        except ValueError:
            raise InputError(f"{where}: logit_bias: its keys must be token ids") from None


def _refuse(settings: dict, where: str, tail_tokens: int) -> None:
    from vllm.sampling_params import SamplingParams

    for key in settings:
        if key.startswith("_") or key not in SamplingParams.__struct_fields__ or key in ("detokenize", "output_kind"):
            raise unknown_key(f"{where}: sampling", key, [f for f in SamplingParams.__struct_fields__ if f[0] != "_"])
    if settings.get("stream_interval", 1) != 1:
        raise InputError(f"{where}: stream_interval cannot be set here: {OURS['stream_interval']}")
    if settings.get("stop"):
        raise InputError(f"{where}: stop strings lose vLLM's per-request metrics; give stop_token_ids instead")
    if settings.get("n", 1) != 1:
        raise InputError(f"{where}: n = {settings['n']!r}: one request is one output sequence here")
    if tail_tokens:
        for key in RUN_ON_BLIND:
            if settings.get(key):
                raise InputError(f"{where}: {key} cannot be captured with a tail: it changes what lies past the end")


_SEEDS = range(-(2**63), 2**64)
"""What torch takes as a seed."""


def _typed(settings: dict, where: str) -> dict:
    """The settings as the types that SamplingParams declares: vLLM looks at few of them, and dies of others at work."""
    import msgspec

    out = {}
    for key, value in settings.items():
        type_ = _sampling_types()[key]
        fields = {
            f.name
            for kind in typing.get_args(type_)
            if dataclasses.is_dataclass(kind)
            for f in dataclasses.fields(kind)
        }
        for inner in value if fields and isinstance(value, dict) else ():
            if inner.startswith("_") or inner not in fields:
                raise unknown_key(f"{where}: sampling: {key}", inner, [f for f in fields if f[0] != "_"])
        try:
            out[key] = msgspec.convert(value, type_)
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: sampling: {key}: {_one_line(str(error))}") from None
        except TypeError:  # a type that is none of JSON's
            out[key] = value
    if out.get("seed") is not None and out["seed"] not in _SEEDS:
        raise InputError(f"{where}: sampling: seed = {out['seed']} is no number of 64 bits")
    return out


@functools.cache
def _sampling_types() -> dict[str, Any]:
    from vllm.sampling_params import SamplingParams

    return typing.get_type_hints(SamplingParams)


def last_words(error: BaseException) -> str:
    """The one line that says what went wrong: the cause at the root, without traceback or pydantic's framing."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        key = f"{first['loc'][0]} = {first['input']!r}: " if first["loc"] else ""
        return _one_line(key + first["msg"].removeprefix("Value error, "))
    return _one_line(f"{type(error).__name__}: {error}")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 400 else line[:397] + "..."
