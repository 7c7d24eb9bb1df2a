"""Recorded equals live, in full: at least 1,000 verification rounds per proposer, compared decode step by decode step.

    python tests/benchmarks/live_parity.py

One capture without speculation and with a tail, then each proposer live and along the captured trace. Prints one JSON
object; exit code 1 if any step differs, a run does not reconcile, or a kind of step is missing. Models as in the live
tests. Near `max_model_len` the engine fills whole batches with placeholders, so runs of eight leave those requests out.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "replay" / "live")]

import live_material as material  # noqa: E402

from replay.live.launch import run_live  # noqa: E402
from replay.recorded.engine import replay_recorded  # noqa: E402
from schemas.speculative import effective  # noqa: E402

LIMIT, PLAIN, NEAR, TAIL, ROUNDS = 320, 200, 20, 25, 1000
SUFFIX = {"method": "suffix"}  # as vLLM fills it in: up to 24 candidates
PARALLEL = {
    "method": "draft_model",
    "model": str(material.MODELS / "parallel_draft"),
    "num_speculative_tokens": 4,
    "parallel_drafting": True,
}
RUNS = [
    (material.NGRAM, 1),
    (material.NGRAM, 8),
    (SUFFIX, 1),
    (material.DRAFT_MODEL, 1),
    (material.DRAFT_MODEL, 8),
    (PARALLEL, 1),
    (PARALLEL, 8),
]
NEVER = {"draft_model": {"misses"}}
"""Kinds that a proposer cannot have: a draft model always proposes."""


def main() -> int:
    plain = material.prompts(PLAIN, LIMIT - 120)
    near = [(a + b + a + b)[-(LIMIT - 20) :] for a, b in zip(plain[:NEAR], plain[NEAR : 2 * NEAR], strict=True)]
    asked = material.requests(plain + near, [(80, 48, 64, 25)[i % 4] for i in range(PLAIN)] + [60] * len(near))
    none = material.proposer({"method": "none"})
    capture = run_live(asked, material.engine(8), none, max_model_len=LIMIT, tail_tokens=TAIL)
    trace = material.captured(asked, capture)
    results, failed = [], not capture.reconciliation["ok"]
    for config, concurrency in RUNS:
        count = len(asked) if concurrency == 1 else PLAIN
        requests, walked = asked.take(range(count)), trace.take(range(count))
        live = run_live(requests, material.engine(concurrency), material.proposer(config), max_model_len=LIMIT)
        recorded = replay_recorded(walked, effective(config), max_model_len=LIMIT)
        different = material.differences(live.log, recorded)
        found = material.kinds(live.log, live.finish_reason)
        needed = set(found) - NEVER.get(config["method"], set())
        if concurrency > 1:
            needed -= {"length-limit clips"}
        missing = sorted(kind for kind in needed if found[kind] < (ROUNDS if kind == "rounds" else 1))
        outputs = sum(live.outputs[i].tolist() != capture.outputs[i].tolist() for i in range(count))
        results.append(
            {
                "method": config["method"],
                "concurrency": concurrency,
                "requests": count,
                "decode_steps": len(live.log),
                **found,
                "steps_that_differ": len(different),
                "outputs_that_differ": outputs,
                "reconciled": live.reconciliation["ok"],
                "missing": missing,
                "first_differences": different[:5],
            }
        )
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
        failed |= bool(different or missing or outputs or not live.reconciliation["ok"])
    print(json.dumps({"parity": results, "ok": not failed}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
