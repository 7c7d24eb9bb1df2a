"""How the frozen warehouses were made. Run it for a new schema version only: what is frozen stays as it is.

    python tests/pipeline/frozen/make.py v1

Writes the warehouse and, counted from the step tuples in plain Python, what its views must say.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2])]

from logged_runs import commit, random_run  # noqa: E402
from small_traces import rows, table  # noqa: E402

from pipeline.ingest.generation import RowRefused  # noqa: E402
from pipeline.ingest.rejects import Rejects  # noqa: E402
from pipeline.warehouse import Warehouse  # noqa: E402
from schemas.tables import SCHEMA_VERSION  # noqa: E402

RUNS = {"recorded": (1, False, True), "live": (2, True, True), "unfinished": (4, False, False)}
"""Seed, live, finished. Only the first has rollups, as shards may or may not."""


def counts(requests: list) -> dict[str, int]:
    verified = [step for request in requests for step in request.verified]
    return {
        "requests": len(requests),
        "steps": len(verified),
        "rounds": sum(step.proposed > 0 for step in verified),
        "drafted": sum(step.proposed for step in verified),
        "accepted": sum(step.real for step in verified),
        "emitted": sum(request.emitted for request in requests),
    }


def main() -> None:
    home = HERE / sys.argv[1]
    house = Warehouse(home / "warehouse")
    data = rows(6)
    house.write_trace("small", [table(data)])
    refused = Rejects()
    refused.add("log.jsonl", 3, RowRefused("output_token_ids", "is negative"))
    refused.commit(house.root, "small")
    said = {}
    for name, (seed, live, finished) in RUNS.items():
        run = random_run(seed, requests=6, live=live)
        run = replace(run, requests={"suffix": run.requests["suffix"]})
        commit(house, name, run, finished=finished, rolled=name == "recorded")
        if finished:
            done = json.loads((house.root / "runs" / name / "done.json").read_bytes())
            house.write_done(
                name, done | {"schema_version": SCHEMA_VERSION, "run": name, "ended": "2026-11-29T22:00:00Z"}
            )
        said[name] = counts(run.requests["suffix"])
    document = {
        "schema_version": SCHEMA_VERSION,
        "runs": said,
        "trace": {row["request_id"]: [row["prompt_token_ids"], row["output_token_ids"]] for row in data},
    }
    (home / "said.json").write_text(json.dumps(document, sort_keys=True, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
