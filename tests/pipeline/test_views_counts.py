"""Every view against a plain count over the steps it was made of."""

from collections import defaultdict
from fractions import Fraction

import pytest
from logged_runs import Request, Run, Step, commit, prefix_hit, random_run

from pipeline.views import connect, query
from pipeline.warehouse import Warehouse

RUNS = {"007": random_run(7), "2A1": random_run(8, live=True), "e-3": random_run(9, requests=3)}
RATIOS = ("coverage", "acceptance_rate", "mean_acceptance_length", "tokens_per_step")


@pytest.fixture(scope="module", params=["rollups", "no rollups", "some rollups"])
def con(request, tmp_path_factory):
    """The same runs, summed up when they were written, when they are read, or one way or the other per run."""
    warehouse = Warehouse(tmp_path_factory.mktemp("house"))
    for number, (name, run) in enumerate(RUNS.items()):
        commit(warehouse, name, run, rolled={"rollups": True, "no rollups": False}.get(request.param, number % 2 == 0))
    return connect(warehouse)


def rows(con, sql: str) -> list[dict]:
    return query(con, sql).to_pylist()


def counts(proposer: str, requests: list[Request]) -> dict[str, int]:
    """S, R, D, C, E and the rest, straight from the definitions."""
    steps = [s for r in requests for s in r.verified]
    return {
        "requests": len(requests),
        "empty_outputs": sum(r.length == 0 for r in requests),
        "steps": sum(r.emitted for r in requests) if proposer == "none" else len(steps),
        "rounds": sum(s.proposed > 0 for s in steps),
        "drafted": sum(s.proposed for s in steps),
        "accepted": sum(s.real for s in steps),
        "emitted": sum(r.emitted for r in requests),
        "overrun": sum(s.overrun for s in steps),
        "engine_rounds": sum(s.drafted > 0 for s in steps),
        "engine_drafted": sum(s.drafted for s in steps),
        "engine_accepted": sum(s.accepted for s in steps),
        "unverified": sum(s.accepted is None for r in requests for s in r.steps),
    }


def ratios(c: dict[str, int]) -> dict[str, Fraction | None]:
    """The four numbers; None where undefined."""
    length = ratio(c["accepted"], c["rounds"])
    return {
        "coverage": ratio(c["rounds"], c["steps"]),
        "acceptance_rate": ratio(c["accepted"], c["drafted"]),
        "mean_acceptance_length": None if length is None else 1 + length,
        "tokens_per_step": ratio(c["emitted"], c["steps"]),
    }


def ratio(part: int, whole: int) -> Fraction | None:
    return Fraction(part, whole) if whole else None


def same(found: float | None, wanted: Fraction | None) -> bool:
    return found is None if wanted is None else found == pytest.approx(float(wanted), rel=1e-12)


def groups(*keys: str) -> dict[tuple, list[Request]]:
    """Requests by (run, proposer) and the named fields."""
    out = defaultdict(list)
    for name, run in RUNS.items():
        for proposer, requests in run.requests.items():
            for request in requests:
                out[name, proposer, *(getattr(request, key) for key in keys)].append(request)
    return out


@pytest.mark.parametrize(
    ("view", "keys"),
    [
        ("proposer_summary", ()),
        ("workload_summary", ("workload",)),
        ("tenant_summary", ("tenant",)),
        ("(FROM group_summary WHERE scope = 'workload and tenant')", ("workload", "tenant")),
    ],
)
def test_summaries_pool_and_average(con, view, keys):
    found = {tuple(row[k] for k in ("run", "proposer", *keys)): row for row in rows(con, f"SELECT * FROM {view}")}
    wanted = groups(*keys)
    assert found.keys() == wanted.keys()
    for key, requests in wanted.items():
        row, total = found[key], counts(key[1], requests)
        assert {name: row[name] for name in total} == total
        own = [ratios(counts(key[1], [r])) for r in requests]
        for name, value in ratios(total).items():
            defined = [r[name] for r in own if r[name] is not None]
            assert same(row[name], value), (key, name)
            assert row[f"{name}_n"] == len(defined)
            assert same(row[f"{name}_mean"], sum(defined) / Fraction(len(defined)) if defined else None)


def test_pooled_numbers_hold_the_identity_of_tokens_per_step(con):
    """E / S = 1 + (engine_accepted - overrun) / S; without filler engine_accepted is C."""
    for row in rows(con, "SELECT * FROM workload_summary WHERE steps > 0 AND proposer <> 'none'"):
        assert row["emitted"] == row["steps"] + row["engine_accepted"] - row["overrun"]


def test_requests_one_by_one(con):
    found = {(r["run"], r["proposer"], r["request"]): r for r in rows(con, "SELECT * FROM request_summary")}
    assert len(found) == sum(len(rs) for run in RUNS.values() for rs in run.requests.values())
    for name, run in RUNS.items():
        for proposer, requests in run.requests.items():
            for i, request in enumerate(requests):
                row, total = found[name, proposer, i], counts(proposer, [request])
                shared = [k for k in total if k in row]
                assert {k: row[k] for k in shared} == {k: total[k] for k in shared}
                assert all(same(row[k], v) for k, v in ratios(total).items())
                assert row["request_id"] == str(9007199254740993 + i)


def test_steps_one_by_one(con):
    found = {(r["run"], r["proposer"], r["request"], r["step"]): r for r in rows(con, "SELECT * FROM decode_steps")}
    wanted = {
        (name, proposer, i, n + 1): (request, step)
        for name, run in RUNS.items()
        for proposer, requests in run.requests.items()
        for i, request in enumerate(requests)
        for n, step in enumerate(request.steps)
    }
    assert found.keys() == wanted.keys()
    for key, (request, step) in wanted.items():
        row, verified = found[key], step.accepted is not None
        assert (row["drafted"], row["filler"], row["proposed"]) == (step.drafted, step.filler, step.proposed)
        assert (row["accepted"], row["overrun"], row["miss_reason"]) == (step.accepted, step.overrun, step.miss)
        assert row["accepted_proposed"] == (step.real if verified else None)
        assert row["emitted"] == (step.accepted + 1 - step.overrun if verified else 0)
        assert (row["workload"], row["tenant"]) == (request.workload, request.tenant)


def test_positions(con):
    found = {
        (r["run"], r["proposer"], r["workload"], r["position"]): r for r in rows(con, "SELECT * FROM position_summary")
    }
    pooled = {(r["run"], r["proposer"], r["position"]): r for r in rows(con, "SELECT * FROM proposer_positions")}
    wanted, wanted_pooled = {}, {}
    for (name, proposer), requests in groups().items():
        rounds = _rounds(requests)
        for i in range(1, max((s.proposed for s in rounds), default=0) + 1):
            wanted_pooled[name, proposer, i] = _position(rounds, i)
            for workload in {r.workload for r in requests}:
                if own := _rounds([r for r in requests if r.workload == workload]):
                    wanted[name, proposer, workload, i] = _position(own, i)
    for got, want in ((found, wanted), (pooled, wanted_pooled)):
        assert got.keys() == want.keys()
        for key, row in want.items():
            assert all(same(got[key][column], value) for column, value in row.items()), key


def _rounds(requests: list[Request]) -> list[Step]:
    return [s for r in requests for s in r.verified if s.proposed > 0]


def _position(rounds: list[Step], i: int) -> dict[str, Fraction | int | None]:
    drafted = sum(s.proposed >= i for s in rounds)
    reached = sum(s.proposed >= i and s.real >= i - 1 for s in rounds)
    accepted = sum(s.real >= i for s in rounds)
    return {
        "rounds": Fraction(len(rounds)),
        "drafted_at": Fraction(drafted),
        "reached": Fraction(reached),
        "accepted_at": Fraction(accepted),
        "unconditional": ratio(accepted, len(rounds)),
        "attempted": ratio(accepted, drafted),
        "conditional": ratio(accepted, reached),
    }


def test_lengths(con):
    wanted = {}
    for (name, proposer), requests in groups().items():
        for step in _rounds(requests):
            n, accepted, full = wanted.get((name, proposer, step.proposed), (0, 0, 0))
            wanted[name, proposer, step.proposed] = n + 1, accepted + step.real, full + (step.real == step.proposed)
    found = rows(con, "SELECT * FROM length_summary")
    assert {
        (r["run"], r["proposer"], r["drafted"]): (r["rounds"], r["accepted"], r["fully_accepted"]) for r in found
    } == wanted


def test_a_rate_becomes_a_length_only_where_every_round_has_the_same(tmp_path):
    """Golden case 3: rounds (1,1), (4,0) have rate 1/5 and length 1.5, while 1 + 4 * 1/5 would say 1.8."""
    warehouse = Warehouse(tmp_path / "house")
    fixed = [Request([Step(4, 2), Step(0, 0, miss="no_match"), Step(4, 4), Step(6, 1, filler=2)])]
    commit(warehouse, "r", Run({"fixed": fixed, "varying": [Request([Step(1, 1), Step(4, 0)])]}))
    con = connect(warehouse)
    found = rows(con, "SELECT * FROM length_summary ORDER BY proposer, drafted")
    assert [(r["proposer"], r["drafted"], r["only_length"]) for r in found] == [
        ("fixed", 4, True),
        ("varying", 1, False),
        ("varying", 4, False),
    ]
    assert [r["length_from_rate"] for r in found] == [pytest.approx(1 + 7 / 3), None, None]
    assert [r["mean_acceptance_length"] for r in found] == [pytest.approx(1 + 7 / 3), 2.0, 1.0]
    pooled = rows(con, "SELECT mean_acceptance_length AS m FROM proposer_summary ORDER BY proposer")
    assert [r["m"] for r in pooled] == [pytest.approx(1 + 7 / 3), 1.5]


def test_miss_reasons(con):
    wanted, steps = defaultdict(int), defaultdict(int)
    for (name, proposer, workload), requests in groups("workload").items():
        for step in (s for r in requests for s in r.verified):
            steps[name, proposer, workload] += 1
            if step.proposed == 0:
                wanted[name, proposer, workload, step.miss] += 1
    found = {
        (r["run"], r["proposer"], r["workload"], r["miss_reason"]): r for r in rows(con, "SELECT * FROM miss_reasons")
    }
    assert {key: row["steps"] for key, row in found.items()} == wanted
    assert all(same(row["share"], Fraction(row["steps"], steps[key[:3]])) for key, row in found.items())


def test_cost(con):
    found = {(r["run"], r["proposer"]): r for r in rows(con, "SELECT * FROM cost_summary")}
    run = RUNS["2A1"]
    assert found.keys() == {("2A1", proposer) for proposer in run.iterations}
    cost = {}
    for proposer, iterations in run.iterations.items():
        plain = [i for i in iterations if i["prefill_tokens"] == 0]
        micros = sum(i["draft_us"] + i["verify_us"] for i in plain)
        cost[proposer] = Fraction(micros, sum(i["emitted"] for i in plain))
        row = found["2A1", proposer]
        assert (row["iterations"], row["prefill_iterations"]) == (len(plain), len(iterations) - len(plain))
        assert row["emitted"] == sum(i["emitted"] for i in plain)
        assert same(row["draft_s"], Fraction(sum(i["draft_us"] for i in plain), 10**6))
        assert same(row["verify_s"], Fraction(sum(i["verify_us"] for i in plain), 10**6))
        assert same(row["step_s"], Fraction(sum(i["step_us"] for i in plain), 10**6))
        assert same(row["us_per_emitted_token"], cost[proposer])
        assert row["kv_cache_tokens"] == run.kv_cache[proposer]["kv_cache_tokens"]
        assert row["max_concurrency"] == 2.5
        hits = [prefix_hit(i) for i in range(len(run.requests[proposer]))]
        assert row["prefix_cache_hit_tokens"] == sum(hits) > 0
    for proposer in run.iterations:
        assert same(found["2A1", proposer]["speedup_over_none"], cost["none"] / cost[proposer])


def test_equal_outputs_against_none(con):
    found = {r["proposer"]: r for r in rows(con, "SELECT * FROM proposer_summary WHERE run = '2A1'")}
    live = RUNS["2A1"].requests
    for proposer, requests in live.items():
        equal = sum(a.digest == b.digest for a, b in zip(requests, live["none"], strict=True))
        assert found[proposer]["equal_outputs"] == pytest.approx(equal / len(requests))
        assert found[proposer]["equal_outputs_n"] == len(requests)
    assert rows(con, "SELECT DISTINCT equal_outputs FROM proposer_summary WHERE run = '007'") == [
        {"equal_outputs": None}
    ]


def _one(tmp_path, *steps: Step) -> dict[str, dict]:
    warehouse = Warehouse(tmp_path / "golden")
    commit(warehouse, "golden", Run({"p": [Request(list(steps))]}))
    con = connect(warehouse)
    positions = {r["position"]: r for r in rows(con, "SELECT * FROM position_summary")}
    return {"all": rows(con, "SELECT * FROM proposer_summary")[0], "positions": positions}


def test_golden_case_2_misses_pull_tokens_per_step_down(tmp_path):
    found = _one(tmp_path, Step(4, 2), Step(0, 0, miss="no_match"), Step(4, 4))["all"]
    assert [found[c] for c in ("steps", "rounds", "drafted", "accepted", "emitted")] == [3, 2, 8, 6, 9]
    assert [found[c] for c in RATIOS] == [2 / 3, 0.75, 4.0, 3.0]


def test_golden_case_3_variable_length(tmp_path):
    found = _one(tmp_path, Step(1, 1), Step(4, 0))
    assert found["all"]["acceptance_rate"] == 0.2
    assert found["all"]["mean_acceptance_length"] == 1.5
    second = found["positions"][2]
    assert (second["drafted_at"], second["reached"], second["accepted_at"]) == (1, 0, 0)
    assert (second["conditional"], second["unconditional"]) == (None, 0)


def test_golden_case_4_filler(tmp_path):
    found = _one(tmp_path, Step(4, 2, 4, miss="no_match"), Step(4, 3, 1), Step(4, 0, 4, miss="no_match"), Step(4, 4))
    row = found["all"]
    assert [row[c] for c in ("steps", "rounds", "drafted", "accepted")] == [4, 2, 7, 7]
    assert [row[c] for c in ("coverage", "mean_acceptance_length", "tokens_per_step")] == [0.5, 4.5, 13 / 4]
    assert [row[c] for c in ("engine_rounds", "engine_drafted", "engine_accepted")] == [4, 16, 9]


def test_long_requests_rule_the_pooled_rate_and_not_the_mean(tmp_path):
    """Fault 6: request A accepts all of 10, request B nothing of 10,000."""
    warehouse = Warehouse(tmp_path / "house")
    short, long = Request([Step(10, 10)]), Request([Step(10, 0)] * 1000)
    commit(warehouse, "r", Run({"p": [short, long]}))
    row = rows(connect(warehouse), "SELECT * FROM proposer_summary")[0]
    assert row["acceptance_rate"] == 10 / 10_010
    assert row["acceptance_rate_mean"] == 0.5


def test_a_proposer_that_never_proposes_has_undefined_rates(tmp_path):
    found = _one(tmp_path, Step(0, 0, miss="too_short"))
    assert found["all"]["coverage"] == 0
    assert found["all"]["acceptance_rate"] is None
    assert found["all"]["mean_acceptance_length"] is None
    assert (found["all"]["mean_acceptance_length_n"], found["positions"]) == (0, {})
