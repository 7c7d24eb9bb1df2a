import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import NGRAM, config, rows, table

from pipeline.plan import plan, shards
from pipeline.selection import arrivals, select
from pipeline.warehouse import Warehouse
from schemas.config import TraceSection
from schemas.errors import InputError
from schemas.tables import TRACE

DATA = rows(60)
SUFFIX = {"method": "suffix"}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    house = Warehouse(tmp_path_factory.mktemp("plan") / "wh")
    house.write_trace("small", [table(DATA)])
    return house


def chosen(**filters) -> list[dict]:
    return [DATA[i] for i in select(table(DATA), TraceSection(**filters))]


def test_order_is_arrival_then_source():
    assert chosen() == sorted(DATA, key=lambda row: row["arrival"])  # sorted is stable


def test_requests_without_arrival_come_last_by_offset():
    data = [dict(row) for row in DATA[:5]]
    for row, arrival, offset in zip(data, [None, 5, None, 3, None], [9, None, 7, None, None], strict=True):
        row["arrival"] = None if arrival is None else datetime(2026, 1, arrival, tzinfo=UTC)
        row["arrival_offset_us"] = offset
    assert select(table(data), TraceSection()).tolist() == [3, 1, 2, 0, 4]


def test_filters_by_hand():
    day = min(row["arrival"] for row in DATA).date()
    for filters, keeps in (
        ({"workload": ["edit"]}, lambda row: row["workload"] == "edit"),
        ({"tenant": ["acme", "(none)"]}, lambda row: row["tenant"] in ("acme", None)),
        ({"date_from": day, "date_to": day}, lambda row: row["arrival"].date() == day),
        ({"date_from": day + timedelta(1)}, lambda row: row["arrival"].date() > day),
    ):
        kept = chosen(**filters)
        assert 0 < len(kept) < 60
        assert sorted(row["request_id"] for row in kept) == sorted(row["request_id"] for row in DATA if keeps(row))


def test_the_sample_is_of_whole_sessions_by_a_pinned_hash():
    def drawn(seed: int) -> set[str]:
        keys = {row["session_id"] or row["request_id"] for row in DATA}
        digests = {key: hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=6).hexdigest() for key in keys}
        return {key for key, digest in digests.items() if int(digest, 16) < 0.4 * 2**48}

    for seed in (0, 1):
        kept = chosen(sample=0.4, seed=seed)
        assert {row["session_id"] or row["request_id"] for row in kept} == drawn(seed)
        assert len(kept) == sum((row["session_id"] or row["request_id"]) in drawn(seed) for row in DATA)
    assert chosen(sample=0.4, seed=0) != chosen(sample=0.4, seed=1)
    assert {r["request_id"] for r in chosen(sample=0.2)} <= {r["request_id"] for r in chosen(sample=0.4)}


@pytest.mark.parametrize(
    "filters, says",
    [
        (
            {"workload": ["edits"]},
            r"^trace demo: no request has workload = 'edits' \(nearest: edit\); there are: \(none\), chat, edit$",
        ),
        ({"tenant": ["nobody"]}, r"no request has tenant = 'nobody'; there are: \(none\), acme, umbrella"),
        (
            {"tenant": ["(none)", "acne"]},  # a slip beside a known name is none the less one
            r"no request has tenant = 'acne' \(nearest: acme\); there are: \(none\), acme, umbrella",
        ),
        ({"workload": ["chat", "edit", "Edit"]}, r"no request has workload = 'Edit' \(nearest: edit\); "),
        ({"date_to": "2020-01-01"}, r"dates … to 2020-01-01 \(UTC\) leaves none .*: 2026-11-24 to 2026-11-25"),
        ({"sample": 1e-9}, r"sample = 1e-09 leaves none"),
    ],
)
def test_an_empty_selection_names_the_filter(filters, says):
    with pytest.raises(InputError, match=says):
        chosen(**filters)


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from("abcde")), min_size=1, max_size=60), st.integers(1, 10))
def test_shards_hold_every_request_once_and_sessions_whole(sessions, size):
    parts = [part.tolist() for part in shards(sessions, size)]
    assert sorted(i for part in parts for i in part) == list(range(len(sessions)))
    assert all(part and part == sorted(part) for part in parts)
    for session in set(sessions) - {None}:
        assert sum(any(sessions[i] == session for i in part) for part in parts) == 1
    if not any(sessions):
        assert all(len(part) == size for part in parts[:-1])
        assert len(parts[-1]) <= size


def test_units(warehouse):
    planned = plan(config({}, NGRAM, SUFFIX, shard_size=20), warehouse)
    by_proposer: dict = {}
    for unit in planned.units:
        by_proposer.setdefault(unit.proposer.name, []).append(unit)
        assert [DATA[i]["request_id"] for i in unit.rows] == [
            chosen()[position]["request_id"] for position in unit.positions
        ]
        assert unit.prompt_tokens == sum(DATA[i]["prompt_tokens"] for i in unit.rows)
        assert unit.output_tokens == sum(DATA[i]["output_tokens"] for i in unit.rows)
    assert {name: len(units) > 1 for name, units in by_proposer.items()} == {
        "none": True,
        "ngram 2-4 k3": True,
        "suffix d24 k24": False,  # its tree runs through all requests
    }
    for units in by_proposer.values():
        assert sorted(p for unit in units for p in unit.positions.tolist()) == list(range(60))
    assert len({unit.shard for unit in planned.units}) == len(planned.units)


def test_live_units_are_whole(warehouse, tmp_path):
    planned = plan(config(NGRAM, engine={"kind": "vllm", "model": "some/model"}, shard_size=5), warehouse)
    assert [(unit.proposer.name, len(unit.rows)) for unit in planned.units] == [("none", 60), ("ngram 2-4 k3", 60)]
    assert planned.run.startswith("small-live-")
    assert planned.as_dict()["label"] == "live"


def test_the_run_id_follows_what_decides_the_numbers(warehouse, tmp_path):
    def run(*proposers, house=warehouse, **sections) -> str:
        return plan(config(*(proposers or (NGRAM,)), **sections), house).run

    same = run()
    assert same == run() == run(workers=7)
    other = Warehouse(tmp_path / "other")
    other.write_trace("small", [table(rows(60, seed=1))])
    elsewhere = Warehouse(tmp_path / "elsewhere")
    elsewhere.write_trace("small", [table(DATA[:30]), table(DATA[30:])])
    assert run(house=elsewhere) == same
    different = [
        run(NGRAM | {"num_speculative_tokens": 4}),
        run(NGRAM, {}),
        run(trace={"workload": ["edit"]}),
        run(trace={"sample": 0.5}),
        run(trace={"sample": 0.5, "seed": 1}),
        run(trace={"max_model_len": 4096}),
        run(shard_size=3),
        run(engine={"kind": "vllm", "model": "some/model"}),
        run(engine={"kind": "vllm", "model": "some/model", "concurrency": 2}),
        run(engine={"kind": "vllm", "model": "some/model", "block_size": 32}),
        run(house=other),
    ]
    assert len({same, *different}) == len(different) + 1


def without(data: list[dict], *columns: str) -> list[dict]:
    return [{key: None if key in columns else value for key, value in row.items()} for row in data]


def test_traces_that_cannot_be_replayed(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("lengths", [table(without(DATA, "prompt_token_ids", "output_token_ids"))])
    house.write_trace("prompts", [table(without(DATA, "output_token_ids", "output_tokens"))])
    with pytest.raises(InputError, match="trace lengths holds lengths, not prompt token ids"):
        plan(config(trace={"name": "lengths"}), house)
    with pytest.raises(InputError, match="trace prompts has no recorded outputs"):
        plan(config(trace={"name": "prompts"}), house)
    assert plan(config(trace={"name": "prompts"}, engine={"kind": "vllm", "model": "m/m"}), house).requests == 60
    with pytest.raises(InputError, match=r"no trace 'small' in .*; there are: lengths, prompts"):
        plan(config(), house)


def test_requests_without_output_are_left_out_and_counted(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA[:40] + without(DATA[40:], "output_token_ids", "output_tokens"))])
    planned = plan(config(), house)
    assert (planned.requests, planned.without_outputs) == (40, 20)
    assert planned.as_dict()["without_outputs"] == 20
    assert all((unit.rows < 40).all() for unit in planned.units)


def test_no_proposer_and_one_that_has_no_recorded_form(warehouse):
    with pytest.raises(InputError, match="names no proposer"):
        plan(config().model_copy(update={"proposer": []}), warehouse)
    with pytest.raises(InputError, match="medusa"):
        plan(config({"method": "medusa", "model": "x/y", "num_speculative_tokens": 3}), warehouse)


def test_planning_reads_no_token_ids(warehouse):
    columns = [name for name in TRACE.names if not name.endswith("_token_ids")]
    assert (
        select(warehouse.read_trace("small", columns), TraceSection()).tolist()
        == select(table(DATA), TraceSection()).tolist()
    )


def test_what_there_is_to_choose_from_fits_a_line(tmp_path):
    warehouse = Warehouse(tmp_path)
    data = [row | {"tenant": f"t{i:02}\n{'x' * 500}"} for i, row in enumerate(rows(30))]
    warehouse.write_trace("odd", [table(data)])
    with pytest.raises(InputError, match=r"there are: t00\\nx+…x+, t01.* and 10 more$") as error:
        plan(config(trace={"name": "odd", "tenant": ["nobody"]}), warehouse)
    assert len(str(error.value)) < 1500


LIVE = {"kind": "vllm", "model": "some/model"}


def test_a_unit_for_each_concurrency(warehouse):
    planned = plan(config(NGRAM, engine=LIVE | {"concurrency": [8, 1]}), warehouse)
    assert [(u.shard, u.proposer.name, u.concurrency, len(u.rows)) for u in planned.units] == [
        ("00-none-c8-00000", "none", 8, 60),
        ("00-none-c1-00000", "none", 1, 60),
        ("01-ngram-2-4-k3-c8-00000", "ngram 2-4 k3", 8, 60),
        ("01-ngram-2-4-k3-c1-00000", "ngram 2-4 k3", 1, 60),
    ]
    assert [unit["concurrency"] for unit in planned.as_dict()["units"]] == [8, 1, 8, 1]
    recorded = plan(config(NGRAM), warehouse)
    assert {unit.concurrency for unit in recorded.units} == {1}
    assert all("concurrency" not in unit for unit in recorded.as_dict()["units"])


def test_a_run_of_one_concurrency_keeps_its_id_and_its_shards(warehouse, monkeypatch):
    """Written down when there was no list, no pace, no device: such a run is resumed, not begun anew."""
    monkeypatch.setattr("pipeline.plan._versions", lambda config: {"vllm": "0.32.0"})
    engine = LIVE | {"concurrency": 4, "sampling": {"temperature": 0.0}}
    planned = plan(config(NGRAM, engine=engine, devices=["0"], hang_after_s=5), warehouse)
    assert [unit.shard for unit in planned.units] == ["00-none-00000", "01-ngram-2-4-k3-00000"]
    assert planned.run == "small-live-5360c5903d"
    one, listed = (plan(config(NGRAM, engine=engine | {"concurrency": c}), warehouse).run for c in (4, [4]))
    paced = plan(config(NGRAM, engine=engine | {"pace": "arrival"}), warehouse).run
    assert planned.run == one == listed != paced
    assert plan(config(NGRAM, engine=engine | {"pace": "arrival", "speed": 2.0}), warehouse).run != paced
    assert set(planned.as_dict()["engine"]) == {"kind", "runner", "model", "dtype", "concurrency", "sampling"}


def test_arrivals_are_counted_from_the_first_selected(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA)])
    chosen = table(DATA).take([5, 2, 9])
    first = min(DATA[i]["arrival"] for i in (5, 2, 9))
    wanted = [(DATA[i]["arrival"] - first) / timedelta(microseconds=1) for i in (5, 2, 9)]
    assert arrivals(chosen, "small").tolist() == wanted
    offsets = [row | {"arrival": None, "arrival_offset_us": 7 * i} for i, row in enumerate(DATA)]
    assert arrivals(table(offsets).take([5, 2, 9]), "small").tolist() == [21, 0, 49]


def test_recorded_pace_needs_arrivals(tmp_path):
    house = Warehouse(tmp_path / "wh")
    some = without(DATA[:30], "arrival") + DATA[30:]
    mixed = [row | {"arrival_offset_us": 1} for row in without(DATA[:30], "arrival")] + DATA[30:]
    house.write_trace("some", [table(some)])
    house.write_trace("mixed", [table(mixed)])
    paced = LIVE | {"pace": "arrival"}
    for name, says in (("some", "does not say when it arrived"), ("mixed", "has an offset where others have a time")):
        with pytest.raises(InputError, match=rf"trace {name}: request 'r\d+' {says}.*; take pace = \"closed\"$"):
            plan(config(NGRAM, engine=paced, trace={"name": name}), house)
        assert plan(config(NGRAM, engine=LIVE, trace={"name": name}), house).requests == 60
