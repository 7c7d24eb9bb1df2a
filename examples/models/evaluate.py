"""Run the demo pair live in vLLM on held-out prompts and print the README's table as JSON.

    python examples/models/evaluate.py [--draft parallel_draft] [--prompts 10] [--show 1]

Greedy, float32, one request at a time, draft_model with 4 draft tokens. Per workload:
acceptance   accepted draft tokens / proposed draft tokens
distinct_4   distinct 4-grams / 4-grams of an output, mean (and lowest) over outputs of 32 tokens or more
ended        outputs that stopped at an end token before the token limit
exact        outputs equal to the reference, where the prompt decides the answer
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from corpus import Tasks, split_library  # after the environment: the engine reads it on import

HERE = Path(__file__).parent
DECIDED = {"edit", "config", "extract", "triage", "tool"}


def prompts(tokenizer, per_workload, seed=20):
    """Yield (workload, prompt token ids, reference text) from held-out library files only."""
    files = split_library()[1]
    tasks = Tasks(files, seed)
    for kind in Tasks.WEIGHTS:
        made = 0
        while made < per_workload:
            _, messages, tools = tasks.sample(kind)
            text = tokenizer.apply_chat_template(messages[:-1], tools=tools, tokenize=False, add_generation_prompt=True)
            ids = tokenizer.encode(text, add_special_tokens=False)
            if len(ids) <= 700:
                made += 1
                yield kind, ids, messages[-1]["content"]
    sources = [text for rel, text in files if rel.endswith(".py")]
    for _ in range(per_workload):  # plain source, cut anywhere
        text = tasks.r.choice(sources)
        at = tasks.r.randrange(500, len(text) - 400)
        yield "source", tokenizer.encode(text[max(0, at - 900) : at], add_special_tokens=False), text[at:]


def distinct_4(ids):
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return len(set(grams)) / len(grams)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=HERE, help="folder that holds target/ and draft/")
    parser.add_argument("--draft", choices=["draft", "parallel_draft"], default="draft")
    parser.add_argument("--prompts", type=int, default=10, help="prompts per workload")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--show", type=int, default=0, help="outputs to print per workload, on stderr")
    args = parser.parse_args()

    from vllm import LLM, SamplingParams

    llm = LLM(
        str(args.models / "target"),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=1,
        gpu_memory_utilization=0.3,
        num_gpu_blocks_override=64,
        enable_prefix_caching=False,
        per_request_spec_decode_metrics="summary",
        speculative_config={
            "method": "draft_model",
            "model": str(args.models / args.draft),
            "num_speculative_tokens": 4,
            "parallel_drafting": args.draft == "parallel_draft",
        },
    )
    tokenizer = llm.get_tokenizer()
    items = list(prompts(tokenizer, args.prompts))
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
    outputs = llm.generate([{"prompt_token_ids": ids} for _, ids, _ in items], params, use_tqdm=False)

    rows = {}
    for (kind, ids, reference), output in zip(items, outputs, strict=True):
        done = output.outputs[0]
        spec = done.spec_decode_metrics
        row = {
            "tokens": len(done.token_ids),
            "ended": done.finish_reason == "stop",
            "exact": done.text.strip() == reference.strip(),
            "drafted": spec.num_draft_tokens if spec else 0,
            "accepted": sum(j * n for j, n in enumerate(spec.histogram)) if spec else 0,
            "distinct": distinct_4(list(done.token_ids)) if len(done.token_ids) >= 32 else None,
        }
        rows.setdefault(kind, []).append(row)
        if len(rows[kind]) <= args.show:
            print(
                f"===== {kind}\n{tokenizer.decode(ids)[-600:]}\n----- output {row}\n{done.text}\n"
                f"----- reference\n{reference[:600]}",
                file=sys.stderr,
            )

    def table(group, kind):
        long = [r["distinct"] for r in group if r["distinct"] is not None]
        return {
            "workload": kind,
            "prompts": len(group),
            "tokens": sum(r["tokens"] for r in group),
            "acceptance": round(sum(r["accepted"] for r in group) / max(1, sum(r["drafted"] for r in group)), 3),
            "distinct_4": round(sum(long) / len(long), 3) if long else None,
            "distinct_4_lowest": round(min(long), 3) if long else None,
            "long_outputs": len(long),
            "ended": sum(r["ended"] for r in group),
            "exact": sum(r["exact"] for r in group) if kind in DECIDED else None,
        }

    for kind, group in rows.items():
        print(json.dumps(table(group, kind)))
    print(json.dumps(table([r for group in rows.values() for r in group], "all")))


if __name__ == "__main__":
    main()
