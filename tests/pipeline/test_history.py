"""Scope of history: each tree is alone. The oracle is the replay of what shares a tree, cut out by hand."""

import hashlib
import json
from collections import defaultdict
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_traces import config as config_of
from small_traces import contents, rows, table

from pipeline.labels import labels
from pipeline.plan import plan
from pipeline.report import FORMATS, render, report
from pipeline.run import replay
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from replay.recorded.engine import replay_recorded
from replay.requests import Requests
from schemas.errors import InputError

DATA = rows(60)
SERVED = sorted(DATA, key=lambda row: row["arrival"])
SUFFIX = {"method": "suffix", "suffix_decoding_min_token_prob": 0.0}
FIRST_DAY = min(row["arrival"] for row in DATA).date()
SECOND_DAY = FIRST_DAY + timedelta(1)


def config(*histories, proposer=SUFFIX, **more):
    """A config whose proposers differ in their history alone."""
    entries = [{"config": proposer} | ({} if history is None else {"history": history}) for history in histories]
    return config_of(entries=entries, **more)


@pytest.fixture
def warehouse(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA)])
    return house


def steps_of(warehouse, run, proposer) -> dict:
    """{request_id: its decode steps (step, drafted, accepted, overrun)}; requests without steps are left out."""
    tables = {
        name: pa.concat_tables(pq.read_table(path, partitioning=None) for path in warehouse.files(name, [run]))
        for name in ("requests", "decode_steps")
    }
    names = {row["request"]: row["request_id"] for row in tables["requests"].to_pylist()}
    out = defaultdict(list)
    for row in tables["decode_steps"].sort_by([("request", "ascending"), ("step", "ascending")]).to_pylist():
        if row["proposer"] == proposer:
            out[names[row["request"]]].append(tuple(row[key] for key in ("step", "drafted", "accepted", "overrun")))
    return dict(out)


def alone(served: list[dict], warm: list[dict] = (), settings: dict = SUFFIX) -> dict:
    """The same of requests walked in one go behind `warm`, as if there were no others."""
    served = [*warm, *served]
    log = replay_recorded(Requests.from_table(table(served)), settings)
    out = defaultdict(list)
    columns = (log.request, log.step, log.drafted, log.accepted, log.overrun)
    for request, *step in zip(*(column.tolist() for column in columns), strict=True):
        if request >= len(warm):
            out[served[request]["request_id"]].append(tuple(step))
    return dict(out)


def groups(served, *keys) -> list[list[dict]]:
    found = defaultdict(list)
    for at, row in enumerate(served):
        found[tuple(key(at, row) for key in keys)].append(row)
    return list(found.values())


def by_tenant(at, row):
    return row["tenant"]


def by_session(replicas):
    def replica(at, row):
        digest = hashlib.blake2b((row["session_id"] or row["request_id"]).encode(), digest_size=8).hexdigest()
        return int(digest, 16) % replicas

    return replica


def in_turn(replicas):
    return lambda at, row: at % replicas


@pytest.mark.parametrize(
    ("history", "keys"),
    [
        ({}, []),
        ({"scope": "tenant"}, [by_tenant]),
        ({"replicas": 2}, [by_session(2)]),
        ({"replicas": 3, "routing": "round_robin"}, [in_turn(3)]),
        ({"scope": "tenant", "replicas": 2}, [by_session(2), by_tenant]),
        ({"scope": "tenant", "replicas": 2, "routing": "round_robin"}, [in_turn(2), by_tenant]),
    ],
    ids=["alone", "tenant", "replicas", "round robin", "tenant and replicas", "tenant and round robin"],
)
def test_a_tree_holds_what_its_own_requests_said_and_nothing_else(warehouse, history, keys):
    settings = config(history)
    run = replay(settings, warehouse).run
    expected = {}
    for group in groups(SERVED, *keys):
        expected |= alone(group)
    assert steps_of(warehouse, run, settings.proposer[0].name) == expected
    assert (expected != alone(SERVED)) == bool(keys)  # or the test could not tell


def test_a_tenants_counts_are_those_of_a_run_over_that_tenant_alone(warehouse):
    together = replay(config({"scope": "tenant"}), warehouse).run
    found = steps_of(warehouse, together, "suffix d24 k24 · tenant")
    for tenant in ("acme", "umbrella", "(none)"):
        run = replay(config(None, trace={"tenant": [tenant]}), warehouse).run
        mine = {row["request_id"] for row in DATA if (row["tenant"] or "(none)") == tenant}
        assert steps_of(warehouse, run, "suffix d24 k24") == {name: s for name, s in found.items() if name in mine}


def test_no_history_is_a_cache_of_nothing(warehouse):
    run = replay(config({"scope": "none"}, shard_size=20), warehouse).run
    nothing = SUFFIX | {"suffix_decoding_max_cached_requests": 0}
    assert steps_of(warehouse, run, "suffix d24 k24 · no history") == alone(SERVED, settings=nothing)
    done = warehouse.run(run).done
    assert "tree" not in done["proposers"]["suffix d24 k24 · no history"]
    assert len(done["shards"]) == 3  # nothing runs through all requests


def test_warmed_with_another_trace(warehouse):
    other = rows(30, seed=7)
    warehouse.write_trace("last-week", [table(other)])
    before = sorted(other, key=lambda row: row["arrival"])
    tenants = config({"scope": "tenant", "warm_with": "last-week"})
    run = replay(tenants, warehouse).run
    expected = {}
    for group in groups(SERVED, by_tenant):
        expected |= alone(group, [row for row in before if row["tenant"] == group[0]["tenant"]])
    assert steps_of(warehouse, run, tenants.proposer[0].name) == expected
    assert expected != {name: s for group in groups(SERVED, by_tenant) for name, s in alone(group).items()}
    document = warehouse.run(run)
    assert document.plan["warm"] == {"last-week": warehouse.trace("last-week").fingerprint}
    assert document.done["proposers"][tenants.proposer[0].name]["tree"]["warm_requests"] == 30


def test_warmed_with_the_day_before(warehouse):
    days = {"from": FIRST_DAY, "to": FIRST_DAY.isoformat()}
    settings = config({"warm_with": days}, trace={"date_from": SECOND_DAY})
    run = replay(settings, warehouse).run
    before = [row for row in SERVED if row["arrival"].date() == FIRST_DAY]
    after = [row for row in SERVED if row["arrival"].date() > FIRST_DAY]
    found = steps_of(warehouse, run, settings.proposer[0].name)
    assert found == alone(after, before) != alone(after)
    assert warehouse.run(run).plan["requests"] == len(after)


def test_the_tree_is_measured(warehouse):
    replay_run = replay(
        config({"scope": "tenant"}, proposer=SUFFIX | {"suffix_decoding_max_cached_requests": 3}), warehouse
    )
    document = warehouse.run(replay_run.run).done
    tree = document["proposers"]["suffix d24 k24 · tenant"]["tree"]
    said = [row for row in SERVED if row["output_tokens"]]
    kept = [row for group in groups(said, by_tenant) for row in group[-3:]]
    assert (tree["trees"], tree["cached_requests"], tree["evictions"]) == (3, 9, len(said) - 9)
    # The last step's tokens past the end are unknown here: there is no tail.
    assert tree["cached_tokens"] == sum(row["output_tokens"] for row in kept)
    assert tree["bytes_per_cached_token"] == tree["used_bytes"] / tree["cached_tokens"]


def test_settings_that_share_their_trees_count_as_they_do_alone(warehouse):
    grid = SUFFIX | {"num_speculative_tokens": [2, 8], "suffix_decoding_max_tree_depth": [4, 24]}
    settings = config({"scope": ["global", "tenant"], "replicas": [1, 2]}, proposer=grid)
    assert len(settings.proposer) == 16
    run = replay(settings, warehouse).run
    whole = warehouse.run(run).done["proposers"]
    for proposer in settings.proposer[::5]:
        one = config_of(
            entries=[{"config": proposer.config, "history": proposer.history and proposer.history.as_dict()}]
        )
        other = replay(one, warehouse).run
        assert steps_of(warehouse, run, proposer.name) == steps_of(warehouse, other, one.proposer[0].name)
        assert whole[proposer.name]["tree"] == warehouse.run(other).done["proposers"][one.proposer[0].name]["tree"]


def test_the_same_bytes_every_time_and_after_an_interruption(warehouse, tmp_path, monkeypatch):
    second = Warehouse(tmp_path / "second")
    second.write_trace("small", [table(DATA)])
    settings = config({"scope": ["global", "tenant"], "replicas": [1, 2]})
    replay(settings, warehouse)
    commit, left = Warehouse.commit_shard, [3]

    def dies(self, *args, **kwargs):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return commit(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "commit_shard", dies)
        with pytest.raises(KeyboardInterrupt):
            replay(settings, second)
    replay(settings, second)
    assert contents(second.root) == contents(warehouse.root)


def test_names_keys_and_the_run_follow_the_history(warehouse):
    warehouse.write_trace("last-week", [table(rows(10, seed=1))])
    every = [None, {"scope": "tenant"}, {"replicas": 2}, {"replicas": 2, "routing": "round_robin"}, {"scope": "none"},
             {"warm_with": "last-week"}]  # fmt: skip
    proposers = config(*every).proposer
    words = ["", " · tenant", " · 2 replicas", " · 2 replicas round robin", " · no history", " · warm last-week"]
    assert [p.name.removeprefix("suffix d24 k24") for p in proposers] == words
    assert len({p.key for p in proposers}) == len({plan(config(h), warehouse).run for h in every}) == len(every)
    assert config({"scope": "global", "routing": "round_robin"}).proposer == config(None).proposer
    last_week = Warehouse(warehouse.root.parent / "other")
    last_week.write_trace("small", [table(DATA)])
    last_week.write_trace("last-week", [table(rows(10, seed=2))])
    warm = config({"warm_with": "last-week"})
    assert plan(warm, last_week).run != plan(warm, warehouse).run


def test_a_grid_holds_each_case_once():
    names = [p.name for p in config({"scope": ["global", "tenant", "none"], "replicas": [1, 4]}).proposer]
    assert [name.removeprefix("suffix d24 k24") for name in names] == [
        "", " · 4 replicas", " · tenant", " · tenant · 4 replicas", " · no history"]  # fmt: skip


@pytest.mark.parametrize(
    ("history", "more", "says"),
    [
        ({"scop": "tenant"}, {}, "unknown key 'scop'; did you mean 'scope'"),
        ({"scope": "user"}, {}, "history.scope = 'user'"),
        ({"replicas": 0}, {}, "history.replicas = 0"),
        ({"warm_with": {"from": SECOND_DAY, "to": FIRST_DAY}}, {}, "is after to"),
        ({"warm_with": {}}, {}, "needs from, to or both"),
        ("tenant", {}, "must be a table"),
        ({"scope": "tenant"}, {"proposer": {"method": "ngram", "num_speculative_tokens": 3}}, "ngram does not"),
        ({"scope": "tenant"}, {"proposer": SUFFIX | {"suffix_decoding_max_cached_requests": 0}}, "there is no history"),
        ({"scope": "tenant"}, {"engine": {"kind": "vllm", "model": "m/m"}}, 'history is for kind = "recorded"'),
    ],
    ids=lambda value: json.dumps(value, default=str) if isinstance(value, dict) else None,
)
def test_what_is_refused(history, more, says):
    with pytest.raises(InputError, match=says):
        config(history, **more)


def test_what_cannot_have_been_served_before(warehouse):
    for warm, says in (
        ("small", "holds 60 of the requests that are counted"),
        ({"to": FIRST_DAY}, "of the requests that are counted"),
        ("nothing", "no trace 'nothing'"),
        ({"to": "2020-01-01"}, r"history.warm_with: trace small: dates … to 2020-01-01 \(UTC\) leaves none"),
    ):
        with pytest.raises(InputError, match=says):
            plan(config({"warm_with": warm}), warehouse)


def test_the_label_says_which_servers_are_meant(warehouse):
    other = [row | {"extra": '{"token_ids": "tokenised"}'} for row in rows(10, seed=1)]
    warehouse.write_trace("typed", [table(other)])
    settings = config({"scope": "tenant", "replicas": 2}, {"warm_with": "typed"}, {"scope": "none"})
    said = [entry["reason"] for entry in labels(plan(settings, warehouse), warehouse).values()]
    assert said[0].endswith("; one engine for each tenant on each of 2 replicas (session routing), cold")
    assert "; one engine, warmed with trace typed, where the ids of 10 requests were made from text again" in said[1]
    assert said[2].endswith("as with suffix_decoding_max_cached_requests = 0")


def test_the_views_and_the_report_show_label_reason_and_trees(warehouse):
    settings = config({"scope": ["global", "tenant"]}, {"scope": "none"})
    run = replay(settings, warehouse).run
    con = connect(warehouse)
    rows = {row["proposer"]: row for row in query(con, "SELECT * FROM proposer_settings").to_pylist()}
    done = warehouse.run(run).done["proposers"]
    assert json.loads(rows["suffix d24 k24 · tenant"]["history"])["scope"] == "tenant"
    for name, row in rows.items():
        assert (row["label"], row["reason"]) == ("proxy", done[name]["reason"])
        tree = done[name].get("tree", {})
        assert [row[key] for key in ("trees", "cached_tokens", "tree_nodes", "tree_bytes", "evictions")] == [
            tree.get(key) for key in ("trees", "cached_tokens", "nodes", "used_bytes", "evictions")
        ]
    assert query(con, "SELECT label FROM run_info").to_pylist() == [{"label": "recorded (proxy)"}]
    for format_ in FORMATS:
        text = " ".join(render(report(con), format_).split())
        assert "tail_token_ids" in text
        assert "one engine for each tenant, cold" in text
        if format_ != "csv":
            assert "recorded (proxy)" in text
    text = render(report(con))
    assert (
        sum(
            line.startswith("suffix d24 k24 ") for line in text.split("Suffix trees of earlier outputs")[1].splitlines()
        )
        == 2
    )
