"""What vLLM really holds, as JSON lines: `python engine_memory.py ask|start SPECS.json`.

`ask` prints the ledger of every spec, without an engine. `start` starts the engine of the first one and counts its
parameters as they were loaded (the CPU build packs them anew afterwards) and the storage of its KV cache.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1"}

from replay.live.memory import ledger
from replay.live.settings import engine_config


def ask(spec: dict) -> dict:
    given = spec.get("ledger", {})
    lengths = given.get("lengths", {})
    devices, memory = given.get("devices", 1), given.get("device_memory")
    return ledger(engine_config(spec), list(lengths.values()), lengths, device_memory=memory, devices=devices)


def start(spec: dict) -> dict:
    import torch
    import vllm.model_executor.model_loader.base_loader as loader
    from vllm.v1.engine.llm_engine import LLMEngine

    loader.process_weights_after_loading = lambda *_, **__: None
    config = engine_config(spec)
    config.cache_config.kv_cache_memory_bytes = 1 << 26  # as size_kv_cache does; the number of blocks is given
    engine = LLMEngine.from_vllm_config(config)
    runner = engine.model_executor.driver_worker.worker.model_runner

    def parameters(model) -> dict[int, int]:
        return {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}

    def tensors(found):
        for one in found if isinstance(found, list | tuple) else [found]:
            if torch.is_tensor(one):
                yield one.untyped_storage()
            else:
                yield from tensors(one)

    target, draft = parameters(runner.model), parameters(runner.drafter.model)
    out = {
        "target": sum(target.values()),
        "draft": sum(size for at, size in draft.items() if at not in target),
        "kv_cache_bytes": sum({s.data_ptr(): s.nbytes() for s in tensors(runner.kv_caches)}.values()),
        "blocks": config.cache_config.num_gpu_blocks,
        "kv_cache_tokens": config.cache_config.kv_cache_size_tokens,
    }
    engine.engine_core.shutdown()
    return out


if __name__ == "__main__":
    specs = json.loads(Path(sys.argv[2]).read_text())
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM logs to stdout
    for spec in specs[: 1 if sys.argv[1] == "start" else None]:
        print(json.dumps((start if sys.argv[1] == "start" else ask)(spec)), file=lines)
