"""Counts of other tools as runs: what they say is what was generated, what they do not say is NULL everywhere."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from ingested import jsonl
from logged_runs import Request, Run, Step, commit

from pipeline.compare import compare
from pipeline.fsck import fsck
from pipeline.imports.run import import_counts
from pipeline.report import FORMATS, render, report
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from replay.recorded.engine import replay_recorded
from replay.requests import Requests
from schemas.errors import InputError

ROOT = Path(__file__).parents[2]
COUNTS = ("output_tokens", "emitted", "steps", "rounds", "drafted", "accepted", "overrun", "unverified")
RATES = ("coverage", "acceptance_rate", "mean_acceptance_length", "tokens_per_step")


@pytest.fixture
def house(tmp_path) -> Warehouse:
    return Warehouse(tmp_path / "wh")


def sql(house: Warehouse, statement: str) -> list[dict]:
    return query(connect(house), statement).to_pylist()


def answer(question: int, counts: list[list[int]], model: str = "sps", **changed) -> dict:
    """A row as Spec-Bench writes it, of turns given by their accept lengths."""
    choice = {
        "index": 0,
        "turns": ["said"] * len(counts),
        "decoding_steps": [len(turn) for turn in counts],
        "new_tokens": [sum(turn) for turn in counts],
        "wall_time": [0.5] * len(counts),
        "accept_lengths": [length for turn in counts for length in turn],
    }
    row = {"question_id": question, "category": "qa" if question % 2 else "math", "model_id": model, "tstamp": 1.5}
    return row | {"choices": [choice | changed]}


def turns_drawn(rng: random.Random) -> list[list[int]]:
    return [[rng.choice([1, 1, 2, 5]) for _ in range(rng.randint(2, 9))] for _ in range(rng.randint(1, 3))]


CONVENTIONS = {
    "steps": lambda turns: {},
    "index of the last step, under EAGLE's name": lambda turns: {
        "decoding_steps": None,
        "idxs": [len(turn) - 1 for turn in turns],
    },
    "index of the last token, as its prompt lookup": lambda turns: {"decoding_steps": [sum(t) - 1 for t in turns]},
    "no steps at all": lambda turns: {"decoding_steps": None},
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_spec_bench(house, tmp_path, convention):
    rng = random.Random(convention)
    asked = {question: turns_drawn(rng) for question in range(20)}
    rows = [answer(q, turns, **CONVENTIONS[convention](turns)) for q, turns in asked.items()]
    for row in rows:
        row["choices"] = [{k: v for k, v in choice.items() if v is not None} for choice in row["choices"]]
    import_counts([jsonl(tmp_path / "answers.jsonl", rows)], house, "published")
    wanted = {
        f"{q}/0/{n}": (sum(turn), min(len(turn), sum(turn) - 1), sum(turn) - len(turn), f"{q}/0", n, 500_000)
        for q, turns in asked.items()
        for n, turn in enumerate(turns)
    }
    columns = "request_id, output_tokens, steps, accepted, session_id, turn, finished_us"
    found = {r.pop("request_id"): tuple(r.values()) for r in sql(house, f"SELECT {columns} FROM request_summary")}
    assert found == wanted
    (row,) = sql(house, "SELECT * FROM proposer_summary")
    steps, tokens = sum(w[1] for w in wanted.values()), sum(w[0] for w in wanted.values())
    assert (row["proposer"], row["concurrency"], row["requests"]) == ("sps", 1, len(wanted))
    assert (row["steps"], row["emitted"]) == (steps, tokens - len(wanted))
    assert row["accepted"] == sum(w[2] for w in wanted.values())
    assert row["tokens_per_step"] == pytest.approx((tokens - len(wanted)) / steps)
    assert row["tokens_per_step_low"] < row["tokens_per_step"] < row["tokens_per_step_high"]
    unknown = {name for name, value in row.items() if value is None}
    assert unknown == {
        *("rounds", "drafted", "overrun", "unverified", "prefill_filler", "prompt_tokens", "equal_outputs"),
        *("engine_rounds", "engine_drafted", "engine_accepted"),
        *(f"{rate}{end}" for rate in RATES[:3] for end in ("", "_low", "_high", "_mean")),
    }
    assert [row[f"{rate}_n"] for rate in RATES] == [0, 0, 0, sum(w[1] > 0 for w in wanted.values())]
    by_workload = sql(house, "SELECT workload, steps FROM workload_summary ORDER BY workload")
    assert by_workload == [
        {"workload": kind, "steps": sum(w[1] for q, w in wanted.items() if int(q.split("/")[0]) % 2 == odd)}
        for odd, kind in ((0, "math"), (1, "qa"))
    ]


def test_a_fork_that_names_no_question(house, tmp_path):
    rows = [{"model_id": "swift", "choices": answer(0, [[2, 3]], turns="said")["choices"]} for _ in range(3)]
    means = {"Mean accepted tokens": 2.5, "Token acceptance rate": 0.9}
    import_counts([jsonl(tmp_path / "a.jsonl", [*rows, means])], house, "r")
    found = sql(house, "SELECT request_id, workload, steps FROM request_summary ORDER BY request")
    assert found == [{"request_id": f"{row}/0/0", "workload": "(none)", "steps": 2} for row in (1, 2, 3)]
    with pytest.raises(InputError, match=r"means\.jsonl: holds no counts; nothing was imported"):
        import_counts([jsonl(tmp_path / "means.jsonl", [means])], house, "s")


def test_plain_decoding_is_one_token_per_step(house, tmp_path):
    import_counts([jsonl(tmp_path / "a.jsonl", [answer(q, [[1] * 30, [1] * 4]) for q in range(3)])], house, "r")
    (row,) = sql(house, "SELECT steps, emitted, tokens_per_step, accepted FROM proposer_summary")
    assert row == {"steps": 3 * (29 + 3), "emitted": 3 * (29 + 3), "tokens_per_step": 1.0, "accepted": 0}


def test_a_turn_that_failed_is_left_out(house, tmp_path):
    row = answer(7, [[1, 3], [1, 3], [2]], turns=["said", "ERROR", "said"])
    import_counts([jsonl(tmp_path / "a.jsonl", [row])], house, "r")
    assert [r["request_id"] for r in sql(house, "SELECT request_id FROM request_summary ORDER BY ALL")] == [
        "7/0/0",
        "7/0/2",
    ]


def spec(rounds: list[tuple[int, int]], k: int = 4, detailed: bool = True) -> dict:
    """vLLM's numbers of one request, of (drafted, accepted) per round; held against vLLM's own below."""
    accepted = [c for _, c in rounds]
    drafted = sum(d for d, _ in rounds)
    out = {
        "mean_acceptance_length": 1 + sum(accepted) / len(rounds) if rounds else 1.0,
        "draft_acceptance_rate": sum(accepted) / drafted if drafted else 0.0,
        "acceptance_histogram": [accepted.count(j) for j in range(k + 1)],
        "num_spec_steps": len(rounds),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": drafted,
        "num_spec_tokens": k,
    }
    steps = {"per_step_accepted": accepted, "per_step_drafted": [d for d, _ in rounds]}
    return out | (steps if detailed and rounds else dict.fromkeys(steps))


def response(name: str, rounds: list[tuple[int, int]], tokens: int | None, **how) -> dict:
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 10, "completion_tokens": tokens}}
    metrics = {"queue_time_ms": 1.0, "time_to_first_token_ms": 20.5, "generation_time_ms": 300.0}
    choices = [{"index": 0, "message": {"content": "said"}, "finish_reason": "stop"}]
    return {"id": name, "choices": choices, **usage, "metrics": metrics | {"speculative_decoding": spec(rounds, **how)}}


def steps_drawn(rng: random.Random) -> list[Step]:
    """Decode steps as an engine takes them, those that proposed nothing among them; the last may be cut."""
    drawn = [rng.choice([0, 0, 1, 3, 4]) for _ in range(rng.randint(1, 30))]
    steps = [Step(d, rng.randint(0, d), miss=None if d else "no_match") for d in drawn]
    last = steps[-1]
    return [*steps[:-1], Step(last.drafted, last.accepted, overrun=rng.randint(0, last.accepted), miss=last.miss)]


@pytest.mark.parametrize("seed", range(10))
def test_vllm_metrics_beside_a_run_of_ours(house, tmp_path, seed):
    rng = random.Random(seed)
    drawn = [Request(steps_drawn(rng)) for _ in range(25)]
    commit(house, "ours", Run({"ngram": drawn}))
    rounds = [[(s.drafted, s.accepted) for s in request.steps if s.drafted] for request in drawn]
    rows = [response(f"r{i}", r, drawn[i].length, detailed=seed % 2 == 0) for i, r in enumerate(rounds)]
    import_counts([jsonl(tmp_path / "server.v1.jsonl", rows)], house, "theirs")
    ours, theirs = sql(house, "SELECT * FROM proposer_summary ORDER BY run")
    assert theirs["proposer"] == "server.v1"
    for name in ("requests", "output_tokens", "emitted", "rounds", "drafted", "accepted", *RATES[1:3]):
        assert theirs[name] == ours[name], name
        assert theirs.get(f"engine_{name}", ours.get(f"engine_{name}")) == ours.get(f"engine_{name}")
    for rate in RATES[1:3]:  # intervals need the rounds alone
        assert theirs[f"{rate}_low"] == ours[f"{rate}_low"]
        assert theirs[f"{rate}_n"] == ours[f"{rate}_n"]
    unknown = ("steps", "coverage", "tokens_per_step", "overrun", "unverified", "coverage_mean", "coverage_low")
    assert {theirs[name] for name in unknown} == {None}
    assert (theirs["coverage_n"], theirs["tokens_per_step_n"]) == (0, 0)
    (plan, done) = (house.run("theirs").plan, house.run("theirs").done)
    assert plan["label"] == "imported"
    bounds = done["proposers"]["server.v1"]["bounds"]
    for rate in ("coverage", "tokens_per_step"):
        low, high = bounds[rate]
        assert low <= ours[rate] <= high
        assert low < high or not any(r.emitted for r in drawn)
    (setting,) = sql(house, "SELECT label, reason, method FROM proposer_settings WHERE run = 'theirs'")
    assert setting["label"] == "imported"
    assert f"coverage is between {bounds['coverage'][0]:.1%} and {bounds['coverage'][1]:.1%}" in setting["reason"]
    first = sql(house, "SELECT first_token_us, finished_us FROM request_summary WHERE run = 'theirs' LIMIT 1")
    assert first == [{"first_token_us": 21_500, "finished_us": 321_500}]


def test_without_the_number_of_tokens_nothing_follows_from_it(house, tmp_path):
    rows = [response("a", [(4, 1)], 3), response("b", [(4, 2)], None)]
    import_counts([jsonl(tmp_path / "s.jsonl", rows)], house, "r")
    (row,) = sql(house, "SELECT * FROM proposer_summary")
    assert (row["rounds"], row["drafted"], row["accepted"]) == (2, 8, 3)
    assert {row[name] for name in ("output_tokens", "emitted", "empty_outputs", "steps", "tokens_per_step")} == {None}
    assert "bounds" not in house.run("r").done["proposers"]["s"]
    assert "1 of 2 responses do not say their usage.completion_tokens" in render(report(connect(house)), "html")


def test_reports_pages_and_views_show_a_gap_and_never_0(house, tmp_path):
    rows = [answer(q, [[1, 3, 2]]) for q in range(4)]
    import_counts([jsonl(tmp_path / "a.jsonl", rows)], house, "published")
    con = connect(house)
    for format_ in FORMATS:
        shown = render(report(con), format_)
        assert "None" not in shown
        assert "nan" not in shown.lower().replace("<!doctype", "")
    table = render(report(con), "table", 120)
    assert "run published · imported · complete" in table
    line = next(line for line in table.splitlines() if line.startswith("sps"))
    assert line.split() == ["sps", "4", "12", "n/a", "n/a", "12", "n/a", "n/a", "n/a", "1.67", "n/a"]
    for view in (
        "decode_steps",
        "step_histogram",
        "position_summary",
        "length_summary",
        "miss_reasons",
        "cost_summary",
    ):
        assert query(con, f"SELECT * FROM {view}").num_rows == 0
    info = sql(house, "SELECT trace, engine, runner, status, reconciled, label, requests FROM run_info")
    nothing = dict.fromkeys(("trace", "runner", "reconciled"))
    assert info == [nothing | {"engine": "imported", "status": "complete", "label": "imported", "requests": 4}]
    with pytest.raises(InputError, match=r"^run published: the counts of sps were imported and lack rounds, filler, "):
        compare(con, "published", "published")


BAD = {
    "accept_lengths that leave out the target's own token": (
        answer(1, [[0, 2]]),
        r"row 2: choices\[0\]\.accept_lengths: holds a 0: each must count the target's own token too, so 1 at least",
    ),
    "steps that do not make the tokens": (
        answer(1, [[1, 2], [1]], new_tokens=[9, 1]),
        r"row 2: choices\[0\]\.accept_lengths: 3 steps of 4 tokens do not make 2 turns of 10 tokens",
    ),
    "no count": (
        answer(1, [[1, 2]], new_tokens=[2.5]),
        r"row 2: choices\[0\]\.new_tokens\[0\]: must be a whole number, 0 or more \(is 2\.5\)",
    ),
    "a negative": (
        answer(1, [[1, -2]], new_tokens=[3]),
        r"accept_lengths\[1\]: must be a whole number, 0 or more \(is -2\)",
    ),
    "content": (answer(1, [[1, 2]], new_tokens=["secret"]), r"new_tokens\[0\]: must be .* \(is a str\); nothing was"),
    "nobody's": (answer(1, [[1]], model=""), r"row 2: model_id: must be a text: it names the proposer"),
    "the same request": (answer(0, [[1, 2]]), r"row 2: request '0/0/0' of sps came before \(.*answers\.jsonl row 1\)"),
    "another format": (response("a", [(4, 1)], 3), r"row 2: \(row\): is no spec-bench row, as the rows before it are"),
    "no object": ([1], r"row 2: \(row\): is no spec-bench row"),
    "more than a column holds": (
        answer(1, [[2**31 - 1, 2**31 - 1]], new_tokens=[2**31 - 1]),
        r"row 2: accepted: comes to 4294967292, more than any request has; nothing was imported",
    ),
    "a blank name": (
        answer(1, [[1]], model=" "),
        r"row 2: the proposer would be called ' ', by its model_id; that must",
    ),
    "a name that steers the terminal": (
        answer(1, [[1]], model="m\n\x1b[31m"),
        r"row 2: the proposer would be called '.*', by its model_id; that must be one line of printable text",
    ),
    "cut": (b'{"question_id": 1', r"row 2: \(row\): not valid JSON; nothing was imported"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_one_line_and_nothing_is_written(house, tmp_path, name):
    row, says = BAD[name]
    path = jsonl(tmp_path / "answers.jsonl", [answer(0, [[1, 2]]), row])
    with pytest.raises(InputError, match=says) as said:
        import_counts([path], house, "r")
    assert str(said.value).startswith(str(path))
    assert "secret" not in str(said.value)
    assert not house.root.exists()


BAD_METRICS = {
    "n of 2": ({"metrics": None}, r": is missing: vLLM leaves it out for n > 1"),
    "rounds that the histogram does not know": ({"num_spec_steps": 3}, r"num_spec_steps: is 3, but .* says 2"),
    "accepted, likewise": ({"num_accepted_draft_tokens": 9}, r"num_accepted_draft_tokens: is 9, but .* says 3"),
    "more accepted than drafted": ({"num_draft_tokens": 2}, r"num_draft_tokens: is 2, but 3 were accepted in 2 rounds"),
    "more drafted than rounds can": (
        {"num_draft_tokens": 9},
        r"num_draft_tokens: is 9, but 3 were accepted in 2 rounds of at most 4",
    ),
    "more accepted at once than k": (
        {"num_spec_tokens": 1},
        r"histogram: says that 2 were accepted at once, of num_sp",
    ),
    "a step that accepted more than it drafted": (
        {"per_step_drafted": [1, 7]},
        r"per_step_drafted\[0\]: is 1, but 2 were accepted, of 4 at most",
    ),
    "steps of another request": ({"per_step_accepted": [3, 0]}, r"per_step_accepted: does not add up to acceptance_h"),
    "drafts of another request": ({"per_step_drafted": [4, 3]}, r"per_step_drafted: does not add up to num_draft_tok"),
    "no histogram": ({"acceptance_histogram": None}, r"acceptance_histogram: must be a list of whole numbers"),
    "fewer tokens than that": ({"tokens": 2}, r"acceptance_histogram: says 2 rounds that accepted 3: too many for 2 "),
    "no name": ({"id": None}, "id: must be a text"),
}


@pytest.mark.parametrize("name", BAD_METRICS)
def test_metrics_that_contradict_themselves(house, tmp_path, name):
    changed, says = BAD_METRICS[name]
    row = response("b", [(4, 2), (4, 1)], changed.get("tokens", 6))
    assert import_counts([jsonl(tmp_path / "ok.jsonl", [response("b", [(4, 2), (4, 1)], 6)])], house, "ok").requests
    for key in ("id", "metrics"):
        row |= {key: changed[key]} if key in changed else {}
    if row["metrics"]:
        spec_ = row["metrics"]["speculative_decoding"]
        spec_ |= {key: value for key, value in changed.items() if key in spec_}
    with pytest.raises(
        InputError, match=rf"row 1: {'' if name == 'no name' else 'metrics.speculative_decoding'}.*{says}"
    ):
        import_counts([jsonl(tmp_path / "s.jsonl", [row])], house, "r")
    assert [record.run for record in house.runs()] == ["ok"]


def test_a_name_of_a_file_and_a_file_named_twice(house, tmp_path):
    row = response("a", [(4, 1)], 3)
    for name in (".jsonl", "a\nb.jsonl", " .json"):
        path = jsonl(tmp_path / name, [row])
        with pytest.raises(
            InputError, match=r"row 1: the proposer would be called '.*', by its file; that must be one"
        ):
            import_counts([path], house, "r")
    (tmp_path / "in").mkdir()
    path = jsonl(tmp_path / "in" / "a.jsonl", [row])
    for given in ([path, path], [path.parent, path], [path, path.parent / ".." / "in"]):
        with pytest.raises(InputError, match=r"a\.jsonl: is named twice; nothing was imported"):
            import_counts(given, house, "r")
    assert not house.root.exists()


@pytest.mark.parametrize("time", [10**400, 9e15, float("inf"), float("nan"), -1, "1", None])
def test_what_is_no_time_is_unknown(house, tmp_path, time):
    import_counts([jsonl(tmp_path / "a.jsonl", [answer(0, [[1, 2]], wall_time=[time])])], house, "r")
    row = response("a", [(4, 1)], 3)
    row["metrics"] |= dict.fromkeys(("queue_time_ms", "time_to_first_token_ms", "generation_time_ms"), time)
    import_counts([jsonl(tmp_path / "b.jsonl", [row])], house, "s")
    unknown = {"first_token_us": None, "finished_us": None}
    assert sql(house, "SELECT first_token_us, finished_us FROM request_summary") == [unknown] * 2


def test_a_grammar_may_leave_a_round_without_candidates(house, tmp_path):
    import_counts([jsonl(tmp_path / "a.jsonl", [response("a", [(0, 0), (0, 0), (3, 1)], 6)])], house, "r")
    (row,) = sql(house, "SELECT rounds, drafted, accepted FROM proposer_summary")
    assert row == {"rounds": 3, "drafted": 3, "accepted": 1}


def test_again_is_nothing_and_other_counts_need_another_name(house, tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [answer(q, [[1, 3]], model=m) for q in range(3) for m in ("eagle", "sps")])
    made = import_counts([path], house, "r")
    assert made.requests == {"eagle": 3, "sps": 3}
    assert not made.already_done
    before = {p: p.read_bytes() for p in house.root.rglob("*.*") if p.is_file() and ".locks" not in p.parts}
    assert import_counts([path], house, "r").already_done
    assert {p: p.read_bytes() for p in before} == before
    other = jsonl(tmp_path / "b.jsonl", [answer(q, [[1, 2]]) for q in range(3)])
    with pytest.raises(InputError, match=r"^run r exists with other content: take another name"):
        import_counts([other], house, "r")
    assert fsck(house).findings == []
    # killed before its end, or damaged and mended: the same import finishes it
    (house.root / "runs/r/done.json").unlink()
    assert house.run("r").status == "unfinished"
    assert not import_counts([path], house, "r").already_done
    (shard,) = (house.root / "requests/run=r").glob("0000-*")
    shard.write_bytes(b"torn")
    (finding,) = [f for f in fsck(house, repair=True).findings if "taken back" in f.action]
    assert str(finding).endswith("is torn; shard 0000 taken back: import it again under the same name")
    import_counts([path], house, "r")
    assert [r["requests"] for r in sql(house, "SELECT requests FROM proposer_summary")] == [3, 3]
    assert fsck(house).findings == []


def test_the_command(tmp_path):
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "import", *arguments, "--warehouse", str(tmp_path / "wh")],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    path = jsonl(tmp_path / "a.jsonl", [answer(q, [[1, 3]]) for q in range(3)])
    done = command(str(path), "--name", "r", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["info"]["label"] == "imported"
    assert said["proposers"][0]["coverage"] is None
    refused = command(str(tmp_path / "none.jsonl"), "--name", "r")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert command(str(path), "--name", "../r").returncode == 2


@pytest.mark.live
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_what_vllm_itself_writes(house, tmp_path):
    pytest.importorskip("vllm")
    here = Path(__file__).parent
    models = Path(os.environ.get("SPECREPLAY_TEST_MODELS") or ROOT / "examples" / "models")
    settings = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    subprocess.run(
        [sys.executable, here / "vllm_responses.py", models / "target", tmp_path], env=os.environ | settings, check=True
    )
    counters = json.loads((tmp_path / "counters.json").read_bytes())
    outputs = [json.loads(line) for line in (tmp_path / "outputs.jsonl").read_text().splitlines()]
    ids = [(o["prompt_token_ids"], o["outputs"][0]["token_ids"]) for o in outputs]
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 1}
    walked = replay_recorded(Requests.from_lists(prompts=[p for p, _ in ids], outputs=[o for _, o in ids]), lookup)
    steps = int(walked.counts()["steps"].sum())
    import_counts([tmp_path / f"{name}" for name in ("chat.jsonl", "batch.jsonl", "stream.sse")], house, "server")
    import_counts([tmp_path / "outputs.jsonl"], house, "engine")
    rows = sql(house, "SELECT * FROM proposer_summary ORDER BY proposer")
    assert [row["proposer"] for row in rows] == ["batch", "chat", "outputs", "stream"]
    kinds = {"rounds": "drafts", "drafted": "draft_tokens", "accepted": "accepted_tokens"}
    for row in rows:
        assert row["requests"] == len(outputs)
        assert row["output_tokens"] == sum(counters["outputs"]) == counters["vllm:generation_tokens"]
        for name, theirs in kinds.items():
            assert row[name] == row[f"engine_{name}"] == counters[f"vllm:spec_decode_num_{theirs}"] > 0
        assert row["steps"] is None
        low, high = house.run(row["run"]).done["proposers"][row["proposer"]]["bounds"]["coverage"]
        assert low <= row["rounds"] / steps <= high
    told = sql(house, "SELECT count(first_token_us) AS n, min(finished_us) > 0 AS some FROM request_summary")
    assert told == [{"n": 2 * len(outputs) + len(outputs), "some": True}]
    written = json.loads((tmp_path / "chat.jsonl").read_text().splitlines()[-1])["metrics"]["speculative_decoding"]
    pairs = list(zip(written["per_step_drafted"], written["per_step_accepted"], strict=True))
    assert spec(pairs, k=3) == written  # what the other tests are made of
