"""Counts the golden run by hand, as it were: plain loops over input/, with the formulas of the metrics, no SQL.

    python tests/pipeline/golden/plain_count.py

writes views/ anew, one CSV per view: for a change of the input or of a view's columns; then read the difference.
NULL is an empty cell; ratios have six digits after the point.
"""

import contextlib
import csv
import json
import statistics
from datetime import UTC, datetime
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUN, AT = "golden", 4
PROPOSERS = ("none", "ngram", "suffix")
RATIOS = ("coverage", "acceptance_rate", "mean_acceptance_length", "tokens_per_step")
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    """Rows of an input file; empty = None, numbers are numbers."""

    def value(text: str) -> Any:
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
        return text or None

    with (HERE / "input" / f"{name}.csv").open(newline="") as file:
        return [{key: value(text) for key, text in row.items()} for row in csv.DictReader(file)]


REQUESTS, STEPS, OUTPUTS = read("requests"), read("decode_steps"), read("outputs")
ENGINE, DIFFERENCES = read("engine_steps"), read("output_differences")
DOCUMENTS = json.loads((HERE / "input" / "run.json").read_bytes())
KEYS = {entry["name"]: entry["key"] for entry in DOCUMENTS["plan"]["proposers"]}


def over(part: float | None, whole: float | None) -> Fraction | None:
    return None if part is None or not whole else Fraction(part) / Fraction(whole)


def unit(proposer: str) -> Row:
    return {"run": RUN, "proposer": proposer, "concurrency": AT}


def decode_steps() -> list[Row]:
    out = []
    for step in STEPS:
        request, verified = REQUESTS[step["request"]], step["accepted"] is not None
        proposed = step["drafted"] - step["filler"]
        out.append(
            unit(step["proposer"])
            | {key: request[key] for key in ("request", "request_id", "workload", "tenant")}
            | {key: step[key] for key in ("step", "drafted", "filler")}
            | {
                "proposed": proposed,
                "accepted": step["accepted"],
                "accepted_proposed": min(step["accepted"], proposed) if verified else None,
                "emitted": step["accepted"] + 1 - step["overrun"] if verified else 0,
                "overrun": step["overrun"],
                "miss_reason": step["miss_reason"],
                "engine_step": None,
            }
        )
    return out


def ratios(c: Row) -> dict[str, Fraction | None]:
    """The four numbers of counts S, R, D, C, E."""
    length = over(c["accepted"], c["rounds"])
    return {
        "coverage": over(c["rounds"], c["steps"]),
        "acceptance_rate": over(c["accepted"], c["drafted"]),
        "mean_acceptance_length": None if length is None else 1 + length,
        "tokens_per_step": over(c["emitted"], c["steps"]),
    }


def request_summary() -> list[Row]:
    digests = {o["request"]: o["output_digest"] for o in OUTPUTS if o["proposer"] == "none"}
    out = []
    for output in OUTPUTS:
        request, proposer = REQUESTS[output["request"]], output["proposer"]
        mine = [s for s in decode_steps() if (s["proposer"], s["request"]) == (proposer, request["request"])]
        steps = [s for s in mine if s["accepted"] is not None]
        emitted = max(output["output_tokens"] - 1, 0)
        counts = {
            "steps": emitted if proposer == "none" else len(steps),
            "rounds": sum(s["proposed"] > 0 for s in steps),
            "drafted": sum(s["proposed"] for s in steps),
            "accepted": sum(s["accepted_proposed"] for s in steps),
            "emitted": emitted,
            "overrun": sum(s["overrun"] for s in steps),
            "engine_rounds": sum(s["drafted"] > 0 for s in steps),
            "engine_drafted": sum(s["drafted"] for s in steps),
            "engine_accepted": sum(s["accepted"] for s in steps),
            "unverified": len(mine) - len(steps),
        }
        out.append(
            {"run": RUN, "proposer": proposer, "proposer_key": KEYS[proposer], "concurrency": AT}
            | {k: request[k] for k in ("request", "request_id", "session_id", "turn", "tenant", "workload", "arrival")}
            | {"prompt_tokens": request["prompt_tokens"], "output_tokens": output["output_tokens"]}
            | counts
            | {"prefill_filler": output["prefill_filler"]}
            | ratios(counts)
            | {k: output[k] for k in ("finish_reason", "prefix_cache_hit_tokens", "first_token_us", "finished_us")}
            | {"scheduled_us": request["scheduled_us"], "dispatched_us": output["dispatched_us"]}
            | {"equal_output": output["output_digest"] == digests[output["request"]]}
        )
    return out


SCOPES = {"all": (), "workload": ("workload",), "tenant": ("tenant",), "workload and tenant": ("workload", "tenant")}
SUMS = "prompt_tokens output_tokens steps rounds drafted accepted emitted overrun engine_rounds engine_drafted "
SUMS += "engine_accepted unverified prefill_filler"


def group_summary() -> list[Row]:
    out = []
    for scope, by in SCOPES.items():
        groups: dict[tuple, list[Row]] = {}
        for row in request_summary():
            groups.setdefault((row["proposer"], *(row[key] for key in by)), []).append(row)
        for (proposer, *names), rows in groups.items():
            counts = {name: sum(row[name] for row in rows) for name in SUMS.split()}
            pooled, made = ratios(counts), {}
            for ratio in RATIOS:
                there = [row[ratio] for row in rows if row[ratio] is not None]
                made |= {ratio: pooled[ratio], f"{ratio}_mean": over(sum(there), len(there)), f"{ratio}_n": len(there)}
            group = dict.fromkeys(("workload", "tenant")) | dict(zip(by, names, strict=True))
            equal = [row["equal_output"] for row in rows]
            out.append(
                unit(proposer)
                | {"proposer_key": KEYS[proposer], "scope": scope}
                | group
                | {"requests": len(rows), "empty_outputs": sum(row["output_tokens"] == 0 for row in rows)}
                | {"sessions": len({row["session_id"] or row["request_id"] for row in rows})}
                | counts
                | made
                | {"equal_outputs": over(sum(equal), len(equal)), "equal_outputs_n": len(equal)}
            )
    return out


def part(scope: str) -> list[Row]:
    """The rows of one scope of group_summary, without the columns that only tell scopes apart."""
    gone = {"scope", "workload", "tenant"} - {scope}
    return [{k: v for k, v in row.items() if k not in gone} for row in group_summary() if row["scope"] == scope]


def step_histogram() -> list[Row]:
    def cell(s: Row) -> tuple:
        return s["proposer"], s["workload"], s["proposed"], s["accepted_proposed"], s["miss_reason"] or ""

    verified = sorted(cell(s) for s in decode_steps() if s["accepted"] is not None)
    return [
        unit(p) | {"workload": w, "drafted": d, "accepted": c, "miss_reason": why or None, "steps": len(list(same))}
        for (p, w, d, c, why), same in groupby(verified)
    ]


def positions(pool: bool) -> list[Row]:
    rounds = [s for s in decode_steps() if s["accepted"] is not None and s["proposed"] > 0]
    out = []
    for proposer in PROPOSERS:
        mine = [s for s in rounds if s["proposer"] == proposer]
        for workload in [None] if pool else sorted({s["workload"] for s in mine}):
            here = [s for s in mine if pool or s["workload"] == workload]
            for i in range(1, max((s["proposed"] for s in mine), default=0) + 1):
                n = {
                    "rounds": len(here),
                    "drafted_at": sum(s["proposed"] >= i for s in here),
                    "reached": sum(s["proposed"] >= i and s["accepted_proposed"] >= i - 1 for s in here),
                    "accepted_at": sum(s["accepted_proposed"] >= i for s in here),
                }
                rates = {"unconditional": "rounds", "attempted": "drafted_at", "conditional": "reached"}
                named = {} if pool else {"workload": workload}
                shares = {name: over(n["accepted_at"], n[whole]) for name, whole in rates.items()}
                out.append(unit(proposer) | named | {"position": i} | n | shares)
    return out


def length_summary() -> list[Row]:
    rounds = [s for s in decode_steps() if s["accepted"] is not None and s["proposed"] > 0]
    out = []
    for proposer in PROPOSERS:
        mine = [s for s in rounds if s["proposer"] == proposer]
        lengths = sorted({s["proposed"] for s in mine})
        for d in lengths:
            here = [s["accepted_proposed"] for s in mine if s["proposed"] == d]
            rate, length = Fraction(sum(here), len(here) * d), 1 + Fraction(sum(here), len(here))
            out.append(
                unit(proposer)
                | {"drafted": d, "rounds": len(here), "accepted": sum(here), "fully_accepted": here.count(d)}
                | {"acceptance_rate": rate, "mean_acceptance_length": length, "only_length": len(lengths) == 1}
                | {"length_from_rate": 1 + d * rate if len(lengths) == 1 else None}
            )
    return out


def miss_reasons() -> list[Row]:
    verified = [s for s in decode_steps() if s["accepted"] is not None]
    cells = sorted({(s["proposer"], s["workload"], s["miss_reason"]) for s in verified if s["proposed"] == 0})
    out = []
    for proposer, workload, reason in cells:
        here = [s for s in verified if (s["proposer"], s["workload"]) == (proposer, workload)]
        steps = sum(s["proposed"] == 0 and s["miss_reason"] == reason for s in here)
        made = {"workload": workload, "miss_reason": reason, "steps": steps, "share": over(steps, len(here))}
        out.append(unit(proposer) | made)
    return out


def cost_summary() -> list[Row]:
    out, price = [], {}
    for proposer in PROPOSERS:
        every = [e for e in ENGINE if e["proposer"] == proposer]
        plain = [e for e in every if e["prefill_tokens"] == 0]
        draft, verify, step, emitted = (
            sum(e[k] for e in plain) for k in ("draft_us", "verify_us", "step_us", "emitted")
        )
        wall = max(e["started_us"] + e["step_us"] for e in every) - min(e["started_us"] for e in every)
        price[proposer] = Fraction(draft + verify, emitted)
        outputs = [o for o in OUTPUTS if o["proposer"] == proposer]
        told = DOCUMENTS["done"]["proposers"][proposer]
        out.append(
            unit(proposer)
            | {"iterations": len(plain), "prefill_iterations": len(every) - len(plain)}
            | {"draft_s": Fraction(draft, 10**6), "verify_s": Fraction(verify, 10**6), "step_s": Fraction(step, 10**6)}
            | {"draft_share": over(draft, step), "verify_share": over(verify, step), "emitted": emitted}
            | {"us_per_emitted_token": price[proposer], "step_us_per_emitted_token": Fraction(step, emitted)}
            | {"wall_s": Fraction(wall, 10**6)}
            | {"tokens_per_s": sum(o["output_tokens"] for o in outputs) / Fraction(wall, 10**6)}
            | {"speedup_over_none": price["none"] / price[proposer]}
            | {"kv_cache_tokens": told["kv_cache_tokens"], "max_concurrency": told["max_concurrency"]}
            | {"prefix_cache_hit_tokens": sum(o["prefix_cache_hit_tokens"] for o in outputs), "engines_at_once": None}
        )
    return out


def between(values: list[Any]) -> tuple[Any, Any]:
    """Median and 95th percentile, between neighbours in proportion."""
    return statistics.median(values), statistics.quantiles(values, n=20, method="inclusive")[-1]


def latency_summary() -> list[Row]:
    out = []
    for proposer in PROPOSERS:
        some = [o for o in OUTPUTS if o["proposer"] == proposer and o["output_tokens"] > 0]
        per_token = [
            (o["finished_us"] - o["first_token_us"]) / (o["output_tokens"] - 1) for o in some if o["output_tokens"] > 1
        ]
        times = {
            "first_token_us": [o["first_token_us"] for o in some],
            "per_output_token_us": per_token,
            "finished_us": [o["finished_us"] for o in some],
            "dispatch_lag_us": [o["dispatched_us"] - REQUESTS[o["request"]]["scheduled_us"] for o in some],
        }
        made = {f"{k}_{p}": v for k, vs in times.items() for p, v in zip(("p50", "p95"), between(vs), strict=True)}
        longest = max(e["step_us"] for e in ENGINE if e["proposer"] == proposer)
        made = {name: float(value) for name, value in made.items()}
        out.append(unit(proposer) | {"requests": len(some)} | made | {"longest_iteration_us": longest})
    return out


def output_differences() -> list[Row]:
    out = []
    for d in DIFFERENCES:
        named = {key: REQUESTS[d["request"]][key] for key in ("request_id", "workload", "tenant")}
        said = {k: d[k] for k in ("position", "baseline_token", "token", "baseline_logprob", "logprob")}
        gap = None if d["logprob"] is None else d["baseline_logprob"] - d["logprob"]
        out.append(unit(d["proposer"]) | named | said | {"gap": gap})
    return out


def output_equality() -> list[Row]:
    out = []
    for proposer in ("ngram", "suffix"):
        equal = [row["equal_output"] for row in request_summary() if row["proposer"] == proposer]
        mine = [row for row in output_differences() if row["proposer"] == proposer]
        gaps = [abs(row["gap"]) for row in mine if row["gap"] is not None]
        out.append(
            unit(proposer)
            | {"compared": len(equal), "equal": sum(equal), "equal_outputs": over(sum(equal), len(equal))}
            | {"first_position": min((row["position"] for row in mine), default=None)}
            | {"median_gap": statistics.median(gaps) if gaps else None, "largest_gap": max(gaps, default=None)}
        )
    return out


def run_info() -> list[Row]:
    plan, done = DOCUMENTS["plan"], DOCUMENTS["done"]
    return [
        {"run": RUN, "trace": plan["trace"]["name"], "trace_fingerprint": plan["trace"]["fingerprint"]}
        | {"engine": plan["engine"]["kind"], "runner": plan["engine"]["runner"], "status": done["status"]}
        | {"reconciled": done["reconciled"], "label": plan["label"], "requests": plan["requests"]}
        | {key: datetime.fromisoformat(text) for key, text in (("started", plan["started"]), ("ended", done["ended"]))}
    ]


def proposer_settings() -> list[Row]:
    out = []
    for entry in DOCUMENTS["plan"]["proposers"]:
        config, told = entry["config"], DOCUMENTS["done"]["proposers"][entry["name"]]
        tree = told.get("tree", {})
        asked = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
        kept = {"tree_nodes": "nodes", "tree_bytes": "used_bytes"}
        trees = (
            "trees warm_requests cached_requests cached_tokens tree_nodes tree_bytes evictions bytes_per_cached_token"
        )
        out.append(
            {"run": RUN, "proposer": entry["name"], "proposer_key": entry["key"]}
            | {key: config.get(key) for key in asked}
            | {"label": told["label"], "reason": told["reason"]}
            | {name: tree.get(kept.get(name, name)) for name in trees.split()}
        )
    return out


VIEWS = {
    "decode_steps": decode_steps,
    "request_summary": request_summary,
    "group_summary": group_summary,
    "proposer_summary": lambda: part("all"),
    "workload_summary": lambda: part("workload"),
    "tenant_summary": lambda: part("tenant"),
    "step_histogram": step_histogram,
    "position_summary": lambda: positions(pool=False),
    "proposer_positions": lambda: positions(pool=True),
    "length_summary": length_summary,
    "miss_reasons": miss_reasons,
    "cost_summary": cost_summary,
    "latency_summary": latency_summary,
    "output_differences": output_differences,
    "output_equality": output_equality,
    "run_info": run_info,
    "proposer_settings": proposer_settings,
}


def cell(value: Any) -> str:
    """One value as it stands in the files."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Fraction | float):
        return f"{float(value):.6f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return "" if value is None else str(value)


def text(rows: list[Row]) -> str:
    """Rows as CSV, in an order that does not depend on who made them."""
    lines = sorted([cell(value) for value in row.values()] for row in rows)
    return "".join(",".join(line) + "\n" for line in [list(rows[0]), *lines])


if __name__ == "__main__":
    for name, count in VIEWS.items():
        (HERE / "views" / f"{name}.csv").write_text(text(count()))
