from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import rows, table

from pipeline import tracefiles
from pipeline.warehouse import Warehouse
from schemas.errors import InputError
from schemas.tables import TRACE

DATA = rows(50)


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "wh")


@pytest.fixture
def small_groups(monkeypatch):
    """Several row groups and files out of 50 rows."""
    monkeypatch.setattr(tracefiles, "GROUP_ROWS", 7)
    monkeypatch.setattr(tracefiles, "PART_GROUPS", 3)


def test_round_trip(warehouse, small_groups):
    info = warehouse.write_trace("small", [table(DATA)])
    assert warehouse.read_trace("small") == table(DATA)
    assert [file["rows"] for file in info.files] == [21, 21, 8]
    assert warehouse.trace("small") == info
    assert warehouse.traces() == [info]
    # another reader, on the files themselves
    paths = [str(warehouse.root / file["path"]) for file in info.files]
    n, prompts, outputs = (
        duckdb.connect()
        .execute(
            "select count(*), sum(len(prompt_token_ids)), sum(len(output_token_ids)) from read_parquet($1)", [paths]
        )
        .fetchall()[0]
    )
    assert (n, prompts, outputs) == (info.requests, info.prompt_tokens, info.output_tokens)
    assert (info.with_prompts, info.with_outputs, info.with_tails) == (50, 50, 0)


def test_rows_by_position(warehouse, small_groups):
    warehouse.write_trace("small", [table(DATA)])
    wanted = [49, 3, 3, 20, 21, 0]
    read = warehouse.read_trace("small", ["output_token_ids", "request_id"], wanted)
    assert read.column_names == ["output_token_ids", "request_id"]
    assert read.column("request_id").to_pylist() == [DATA[i]["request_id"] for i in wanted]
    assert read.column("output_token_ids").to_pylist() == [DATA[i]["output_token_ids"] for i in wanted]
    assert warehouse.read_trace("small", rows=np.array([], np.int64)).num_rows == 0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 50), max_size=5))
def test_batches_do_not_matter(tmp_path_factory, cuts):
    bounds = [0, *sorted(cuts), 50]
    batches = [table(DATA).slice(a, b - a) for a, b in pairwise(bounds)]
    whole = Warehouse(tmp_path_factory.mktemp("whole")).write_trace("small", [table(DATA)])
    assert Warehouse(tmp_path_factory.mktemp("cut")).write_trace("small", batches) == whole


def test_the_same_rows_again_are_a_no_op_others_are_refused(warehouse):
    first = warehouse.write_trace("small", [table(DATA)])
    files = sorted(warehouse.root.rglob("*"))
    assert warehouse.write_trace("small", [table(DATA)]) == first
    with pytest.raises(InputError, match=r"trace small exists with other content \(50 requests; these are 49\)"):
        warehouse.write_trace("small", [table(DATA[1:])])
    assert sorted(warehouse.root.rglob("*")) == files


CHANGES = [
    ("prompt_token_ids", lambda ids: [*ids[:-1], ids[-1] + 1]),
    ("tail_token_ids", lambda ids: []),  # empty is not NULL
    ("workload", lambda name: f"{name}!"),
    ("arrival", lambda time: None),
]


@pytest.mark.parametrize("column, change", CHANGES, ids=[c for c, _ in CHANGES])
def test_fingerprint_sees_every_value(tmp_path, column, change):
    a, b = Warehouse(tmp_path / "a"), Warehouse(tmp_path / "b")
    changed = [dict(row) for row in DATA]
    changed[7][column] = change(changed[7].get(column))
    assert a.write_trace("t", [table(DATA)]).fingerprint != b.write_trace("t", [table(changed)]).fingerprint


def test_fingerprint_is_not_fooled_by_moved_borders(tmp_path):
    def trace(name: str, *lists):
        made = [DATA[i] | {"output_token_ids": ids, "output_tokens": len(ids)} for i, ids in enumerate(lists)]
        return Warehouse(tmp_path / name).write_trace("t", [table(made)]).fingerprint

    assert len({trace("a", [1, 2], [3]), trace("b", [1], [2, 3]), trace("c", [1, 2, 3], [])}) == 3


def test_refused_rows_leave_nothing(warehouse, small_groups):
    twice = [*DATA, DATA[3]]
    with pytest.raises(InputError, match="request id 'r3' comes twice"):
        warehouse.write_trace("small", [table(twice)])
    lengths = pa.array([None] * 50, pa.int32())
    missing = table(DATA).set_column(TRACE.get_field_index("prompt_tokens"), "prompt_tokens", lengths)
    with pytest.raises(InputError, match="row 1 of the batch: prompt_tokens is missing"):
        warehouse.write_trace("small", [missing])
    with pytest.raises(InputError, match="no rows"):
        warehouse.write_trace("small", [])
    assert not [p for p in warehouse.root.rglob("*") if p.is_file() and ".locks" not in p.parts]


def test_a_missing_trace_lists_those_there_are(warehouse):
    warehouse.write_trace("small", [table(DATA)])
    with pytest.raises(InputError, match=r"no trace 'large' in .*; there are: small"):
        warehouse.trace("large")


def test_a_damaged_file_is_named(warehouse):
    info = warehouse.write_trace("small", [table(DATA)])
    path = warehouse.root / info.files[0]["path"]
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"part-00000-.*\.parquet is damaged"):
        warehouse.read_trace("small")
    path.unlink()
    with pytest.raises(InputError, match=r"part-00000-.*\.parquet is missing"):
        warehouse.read_trace("small")


def test_other_arrow_types_of_the_same_values_are_taken(warehouse, tmp_path):
    wide = table(DATA).cast(
        pa.schema(
            [
                pa.field(f.name, pa.large_list(pa.int64()) if pa.types.is_list(f.type) else f.type, f.nullable)
                for f in TRACE
            ]
        )
    )
    other = Warehouse(tmp_path / "other").write_trace("small", [wide])
    assert other == warehouse.write_trace("small", [table(DATA)])


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a b", "a\nb", "%41", "é", "x" * 201, "x" * 5000])
def test_a_name_no_file_system_takes_is_one_line(tmp_path, name):
    with pytest.raises(InputError, match=r"^trace .*use letters.*200 at most$") as error:
        Warehouse(tmp_path).trace(name)
    assert len(str(error.value)) < 300
