"""Run as a script: vLLM serves some prompts with n-gram speculation and writes what it says of them, in its own words.

Into the folder given: `chat.jsonl` (responses of the server's own classes, as chat_completion_full_generator makes
them), `batch.jsonl` (rows of `vllm run-batch`), `stream.sse` (last chunks with usage), `outputs.jsonl` (RequestOutput),
and `counters.json` (the engine's Prometheus counters over all of them).
"""

import dataclasses
import json
import sys
from pathlib import Path


def main(model: str, out: Path) -> None:
    from vllm import LLM, SamplingParams
    from vllm.entrypoints.generate.base.serving import build_per_request_timing_metrics, build_spec_decoding_metrics
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionResponse,
        ChatCompletionStreamResponse,
    )
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        num_gpu_blocks_override=64,
        kv_cache_memory_bytes=1 << 26,  # no sizing by what memory others use
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1},
        per_request_spec_decode_metrics="detailed",
    )
    prompts = [{"prompt_token_ids": [100 + (7 * i + 3 * j) % 400 for j in range(9 + i)] * 2} for i in range(8)]
    settings = [SamplingParams(temperature=0, max_tokens=1 + 6 * i, ignore_eos=True) for i in range(8)]
    results = llm.generate(prompts, settings, use_tqdm=False)
    chat, batch, chunks, outputs = [], [], [], []
    for result in results:
        (output,) = result.outputs
        metrics = build_per_request_timing_metrics(result.metrics, len(output.token_ids))
        metrics.speculative_decoding = build_spec_decoding_metrics(result)
        usage = UsageInfo(
            prompt_tokens=len(result.prompt_token_ids),
            completion_tokens=len(output.token_ids),
            total_tokens=len(result.prompt_token_ids) + len(output.token_ids),
        )
        message = {"role": "assistant", "content": output.text}
        choice = {"index": 0, "message": message, "finish_reason": output.finish_reason}
        shared = {"id": f"chatcmpl-{result.request_id}", "model": "served", "usage": usage, "metrics": metrics}
        response = ChatCompletionResponse(**shared, choices=[choice])
        chat.append(response.model_dump_json())
        # BatchRequestOutput of vllm/entrypoints/launchers/run_batch.py, which imports what the tests need not have
        there = {"status_code": 200, "request_id": result.request_id, "body": response.model_dump(mode="json")}
        batch.append(
            json.dumps({"id": f"vllm-{result.request_id}", "custom_id": "c", "response": there, "error": None})
        )
        delta = [{"index": 0, "delta": {"content": output.text}}]
        kind = {"object": "chat.completion.chunk"}
        first = ChatCompletionStreamResponse(id=shared["id"], model="served", choices=delta, **kind)
        last = ChatCompletionStreamResponse(**shared, choices=[], **kind)
        chunks += [f"data: {chunk.model_dump_json(exclude_unset=True, exclude_none=True)}\n" for chunk in (first, last)]
        held = {"request_id": result.request_id, "prompt_token_ids": list(result.prompt_token_ids)}
        held["outputs"] = [{**vars(output), "token_ids": list(output.token_ids)}]
        held["outputs"][0]["spec_decode_metrics"] = dataclasses.asdict(output.spec_decode_metrics)
        outputs.append(json.dumps(held, default=str))
    for name, rows in {"chat.jsonl": chat, "batch.jsonl": batch, "outputs.jsonl": outputs}.items():
        (out / name).write_text("".join(f"{row}\n" for row in rows))
    (out / "stream.sse").write_text("\n".join([*chunks, "data: [DONE]\n"]))
    counters = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    counters["outputs"] = [len(result.outputs[0].token_ids) for result in results]
    (out / "counters.json").write_text(json.dumps(counters))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
