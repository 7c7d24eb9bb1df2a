"""What an engine would hold in memory, asked of vLLM itself without loading a weight.

Target and draft are built on torch's meta device, which allocates nothing; their layers then say what KV cache they
need, and vLLM's own planner turns a budget into blocks. Runs in a child process that starts no engine afterwards.
Activations and graphs are outside: vLLM measures those when it starts. Knows configs, not requests.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from replay.live.settings import size_kv_cache
from replay.preflight.folder import header, model
from replay.preflight.ledger import size


def ledger(
    config, bounds: Sequence[int], typical: Mapping[str, int], *, device_memory: int | None, devices: int
) -> dict[str, Any]:
    """What the engine of `config` holds, in bytes and tokens; of one device where several share the model.

    Args:
        config: vllm.config.VllmConfig of the whole model on one device; changed in place.
        bounds: tokens each request may reach, prompt included.
        typical: name → tokens of a request (prompt + output), for `fits`.
        device_memory: bytes of the device to plan for; None = this machine's.
        devices: devices that share the model by tensor parallelism.

    Returns:
        weights: {"target": bytes, "draft": bytes}, what the draft shares with the target counted once; tables: bytes
        of tables that are no weights (RoPE); kv_bytes_per_token: {"target": …, "draft": …}, of the layers that keep
        every token or a window of them; kv_bytes_per_request: state of a fixed size; block_size: tokens;
        bytes_per_block; budget_from: "device", "config", "specreplay" or None (unknown); and, where a budget is known,
        device_memory, blocks, kv_cache_bytes, kv_cache_tokens (as vLLM counts them), fits: name → requests at once.
        refused: what vLLM would say at the start, None if nothing.
    """
    from vllm.platforms import current_platform

    target, draft, shared = _build(config, devices)
    specs = _kv_specs(config, devices)
    _resolve_layout(config, specs)
    mine = {name: spec for name, spec in specs.items() if name not in draft["layers"]}
    theirs = {name: spec for name, spec in specs.items() if name in draft["layers"]}
    out: dict[str, Any] = {
        "weights": {"target": target["weights"], "draft": draft["weights"] - shared},
        "tables": target["tables"] + draft["tables"],
        "kv_bytes_per_token": {"target": _per_token(mine), "draft": _per_token(theirs)},
        "kv_bytes_per_request": sum(s.page_size_bytes for s in specs.values() if not _grows(s)),
        "block_size": config.cache_config.block_size,
        "devices": devices,
        "budget_from": None,
        "refused": _layers_apart(config, specs, theirs),
    }
    if not specs or out["refused"]:
        return out
    cache = config.cache_config
    total = device_memory
    if total is None and not current_platform.is_cpu():
        total = int(current_platform.get_device_total_memory())
    if total is None and size_kv_cache(config, bounds, config.scheduler_config.max_num_seqs) == "specreplay":
        out["budget_from"] = "specreplay"
    elif cache.num_gpu_blocks_override or cache.kv_cache_memory_bytes:
        out["budget_from"] = "config"
    elif total is not None:
        out["budget_from"] = "device"
    budget = cache.kv_cache_memory_bytes or 0
    if out["budget_from"] == "device" and total is not None:
        held = out["weights"]["target"] + out["weights"]["draft"] + out["tables"]
        budget = math.ceil(total * cache.gpu_memory_utilization) - held
    if total is not None:
        out |= {"device_memory": total, "gpu_memory_utilization": cache.gpu_memory_utilization}
    if out["budget_from"] is not None:
        out |= _planned(config, specs, budget, typical)
    return out


def _build(config, devices: int) -> tuple[dict, dict, int]:
    """Target and draft as modules without storage: their sizes, and what the draft takes from the target."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import destroy_model_parallel, init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():  # layers ask for their group: one of this process alone
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            init_distributed_environment(1, 0, backend="gloo")
        destroy_model_parallel()  # which groups there are depends on the config
        initialize_model_parallel(1, 1)

    def build(whole, model_config, prefix: str = ""):
        with set_default_torch_dtype(model_config.dtype), torch.device("meta"), set_current_vllm_config(whole):
            return initialize_model(vllm_config=whole, model_config=model_config, prefix=prefix)

    target = build(config, config.model_config)
    before = set(config.compilation_config.static_forward_context)
    spec = config.speculative_config
    draft, shared = None, 0
    without = ("ngram", "ngram_gpu", "suffix", "custom_class")
    if spec is not None and spec.draft_model_config is not None and spec.method not in without:
        draft = build(*_draft_config(config))
        shared = _shared(draft, target, spec)
    layers = set(config.compilation_config.static_forward_context) - before
    none = {"weights": 0, "tables": 0}
    return _sizes(target, devices), (_sizes(draft, devices) if draft else none) | {"layers": layers}, shared // devices


def _draft_config(config) -> tuple[Any, Any, str]:
    """(config, model config, prefix) with which vLLM builds the draft."""
    from vllm.v1.spec_decode.draft_model import DraftModelProposer
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    spec = config.speculative_config
    if spec.method == "medusa":
        return config, spec.draft_model_config, ""
    kind = DraftModelProposer if spec.method == "draft_model" else SpecDecodeBaseProposer
    proposer = kind.__new__(kind)  # its constructor wants a device; this method reads the two configs only
    proposer.speculative_config, proposer.vllm_config = spec, config
    return (
        proposer._create_draft_vllm_config(),
        spec.draft_model_config,
        "draft_model" if spec.method == "draft_model" else "",
    )


def _shared(draft, target, spec) -> int:
    """Bytes of the draft's modules that vLLM replaces by the target's (llm_base_proposer.py, _maybe_share_…)."""
    if spec.method in ("draft_model", "medusa"):
        return 0
    stored = _stored(str(spec.draft_model_config.model))
    original = _stored(str(spec.target_model_config.model))
    out = 0
    for name, flag, module in (
        ("embed_tokens", "has_own_embed_tokens", getattr(getattr(draft, "model", None), "embed_tokens", None)),
        ("lm_head", "has_own_lm_head", getattr(draft, "lm_head", None)),
    ):
        if module is None:
            continue
        theirs = getattr(target, "lm_head", None)
        if name == "embed_tokens":
            theirs = getattr(getattr(target, "model", None), "embed_tokens", None)
        if theirs is None:
            continue
        eagle = hasattr(draft, flag)
        own = eagle and any(name in key for key in stored) and not _equal(name, stored, original)
        if name == "embed_tokens" and eagle and module.weight.shape[-1] != theirs.weight.shape[-1]:
            own = True
        if not own:
            out += sum(p.numel() * p.element_size() for p in module.parameters())
    return out


def _stored(name: str) -> dict[str, tuple[Path, dict]]:
    """{tensor name: (file, header entry)} of a checkpoint."""
    folder = model(name).folder
    files = [] if folder is None else sorted(folder.glob("*.safetensors"))
    return {key: (file, entry) for file in files for key, entry in header(file).items()}


def _equal(name: str, draft: Mapping, target: Mapping) -> bool:
    """Whether both checkpoints hold the same `name`, byte for byte."""
    import numpy as np

    ours, theirs = (next((v for key, v in of.items() if name in key), None) for of in (draft, target))
    if theirs is None and name == "lm_head":  # tied to the embedding
        theirs = next((value for key, value in target.items() if "embed_tokens" in key), None)
    if ours is None or theirs is None or any(ours[1][key] != theirs[1][key] for key in ("shape", "dtype")):
        return False
    views = []
    for file, entry in (ours, theirs):
        with file.open("rb") as source:
            start = 8 + int.from_bytes(source.read(8), "little")
        begin, end = entry["data_offsets"]
        views.append(np.memmap(file, np.uint8, "r", start + begin, (end - begin,)))
    step = 1 << 24
    return all(np.array_equal(views[0][i : i + step], views[1][i : i + step]) for i in range(0, len(views[0]), step))


def _sizes(module, devices: int) -> dict[str, int]:
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    tables = sum(b.numel() * b.element_size() for b in module.buffers())
    return {"weights": weights // devices, "tables": tables}


def _kv_specs(config, devices: int) -> dict[str, Any]:
    from vllm.v1.kv_cache_interface import AttentionSpec
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    specs = get_kv_cache_spec(config)
    if devices == 1:
        return specs
    return {  # as vLLM spreads heads: at least one on each device; MLA has one, which each device keeps
        name: dataclasses.replace(spec, num_kv_heads=max(1, spec.num_kv_heads // devices))
        if isinstance(spec, AttentionSpec)
        else spec
        for name, spec in specs.items()
    }


def _resolve_layout(config, specs: Mapping[str, Any]) -> None:
    """As vLLM's engine core does it before it plans."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout

    if specs:
        layouts = get_supported_kv_cache_layouts(get_current_attn_backends(config))
        resolve_kv_cache_layout(config, [[layout.name for layout in layouts]], list(specs.values()))


def _grows(spec) -> bool:
    """Whether a layer's cache grows with the text (attention) or has one size (state of a recurrent layer)."""
    from vllm.v1.kv_cache_interface import AttentionSpec

    return isinstance(spec, AttentionSpec)


def _per_token(specs: Mapping[str, Any]) -> int:
    return sum(spec.page_size_bytes // spec.block_size for spec in specs.values() if _grows(spec))


def _layers_apart(config, specs: Mapping[str, Any], draft: Mapping[str, Any]) -> str | None:
    """vLLM drafts with the layers of one KV cache group only."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    spec = config.speculative_config
    if len(draft) < 2 or spec.method != "draft_model":
        return None
    groups = get_kv_cache_groups(config, dict(specs))
    if sum(any(name in group.layer_names for name in draft) for group in groups) == 1:
        return None
    return "the draft mixes kinds of attention layers (sliding and full), and vLLM wants all in one KV cache group"


def _planned(config, specs: Mapping[str, Any], budget: int, typical: Mapping[str, int]) -> dict[str, Any]:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs

    try:
        (plan,) = get_kv_cache_configs(config, [dict(specs)], [max(0, budget)])
    except ValueError:
        limit, room = config.model_config.max_model_len, max(0, budget)
        said = f"{size(room)} are left for the KV cache: too little for one request of max_model_len = {limit:,}"
        return {"refused": said, "kv_cache_bytes": room}
    tokens, _ = get_kv_cache_capacity(config, plan)
    held = max(tensor.size for tensor in plan.kv_cache_tensors)
    limit, ahead = config.model_config.max_model_len, _candidates(config)
    fits = {}
    for name, length in typical.items():
        config.model_config.max_model_len = min(limit, length + ahead)  # what a layer keeps is asked for this length
        fits[name] = (plan.num_blocks - 1) // _blocks(config, plan)  # one block is vLLM's null block
    config.model_config.max_model_len = limit
    return {
        "bytes_per_block": held // plan.num_blocks,
        "blocks": plan.num_blocks,
        "kv_cache_bytes": held,
        "kv_cache_tokens": tokens,
        "fits": fits,
    }


def _candidates(config) -> int:
    """Slots past a request's end that vLLM reserves or that candidates fill."""
    spec = config.speculative_config
    return 0 if spec is None else max(config.num_lookahead_tokens, spec.num_speculative_tokens)


def _blocks(config, plan) -> int:
    """Blocks that one request of max_model_len takes, over all groups, as vLLM counts them."""
    return sum(
        -(-group.kv_cache_spec.max_memory_usage_bytes(config) // group.kv_cache_spec.page_size_bytes)
        for group in plan.kv_cache_groups
    )
