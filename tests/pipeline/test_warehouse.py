import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from logged_runs import Request, Run, Step, tables

from pipeline import commit
from pipeline.warehouse import Warehouse
from schemas.errors import InputError, LockedError
from schemas.tables import RUN_TABLES

STEPS = [Step(3, 1), Step(0, 0, miss="no_match"), Step(3, None), Step(4, 4, 2, 1)]
RUN = Run({"ngram": [Request(STEPS, "edit"), Request(STEPS[:2], "chat"), Request([], "chat", output_tokens=1)]})


def shard(run: Run = RUN) -> dict[str, pa.Table]:
    return tables(run, "ngram", run.requests["ngram"])


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "wh [1] 100%")  # no pattern, just a name


def tree(warehouse: Warehouse) -> set[str]:
    return {str(p.relative_to(warehouse.root)) for p in warehouse.root.rglob("*") if p.is_file()}


def test_reads_back_what_was_committed(warehouse):
    assert warehouse.commit_shard("r", "s", shard(), {"note": 1})
    (requests,), (steps,) = warehouse.files("requests"), warehouse.files("decode_steps")
    sort = [("request", "ascending")]
    read = pq.read_table(requests, partitioning=None).cast(RUN_TABLES["requests"])
    assert read.sort_by(sort) == shard()["requests"].sort_by(sort)
    read = pq.read_table(steps, partitioning=None).cast(RUN_TABLES["decode_steps"])
    sort.append(("step", "ascending"))
    assert read.sort_by(sort) == shard()["decode_steps"].sort_by(sort)
    # chat sorts before edit: its request comes first although its number is higher
    assert read.column("request").to_pylist() == [1, 1, 0, 0, 0, 0]
    (document,) = warehouse.committed("r").values()
    assert document["facts"] == {"note": 1}
    for file in document["files"]:
        data = (warehouse.root / file["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == file["sha256"]
        assert pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows == file["rows"]
    assert {file["table"] for file in document["files"]} == {"requests", "decode_steps"}


def test_layout_is_as_declared(warehouse):
    warehouse.commit_shard("r", "s", shard())
    group = pq.ParquetFile(warehouse.files("decode_steps")[0]).metadata.row_group(0)
    for i in range(group.num_columns):
        column = group.column(i)
        delta = column.path_in_schema in ("request", "step", "engine_step")
        assert column.compression == "ZSTD"
        assert ("DELTA_BINARY_PACKED" in column.encodings) == delta
        assert column.has_dictionary_page != delta


def test_bytes_depend_on_rows_alone(tmp_path):
    a, b = Warehouse(tmp_path / "a"), Warehouse(tmp_path / "b")
    a.commit_shard("r", "s", shard())
    shuffled = {name: table.take(list(range(table.num_rows))[::-1]) for name, table in shard().items()}
    cut = {name: pa.concat_tables([t.slice(0, 1), t.slice(1)]) for name, t in shuffled.items()}
    b.commit_shard("r", "s", cut)
    assert {n: (a.root / n).read_bytes() for n in tree(a)} == {n: (b.root / n).read_bytes() for n in tree(b)}


def test_empty_tables_make_no_file(warehouse):
    none = {name: table.slice(0, 0) for name, table in shard().items()}
    assert warehouse.commit_shard("r", "s", none)
    assert tree(warehouse) == {"_commits/run=r/s.json"}
    assert warehouse.files("requests") == []


def test_the_second_writer_leaves_nothing(warehouse):
    other = shard(Run({"ngram": [Request(STEPS[:1])]}))
    assert warehouse.commit_shard("r", "s", shard())
    before = tree(warehouse)
    assert not warehouse.commit_shard("r", "s", other)
    assert not warehouse.commit_shard("r", "s", shard())  # the same content has the same names: it stays
    assert tree(warehouse) == before


def _write(root: Path, number: int, gate, results) -> None:
    request = Request([Step(3, number % 4)] * (number + 1))
    made = shard(Run({"ngram": [request]}))
    gate.wait()
    results.put((number, Warehouse(root).commit_shard("r", "s", made)))


def test_of_many_writers_one_wins(warehouse):
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(4), context.Queue()
    writers = [context.Process(target=_write, args=(warehouse.root, i, gate, results)) for i in range(4)]
    for writer in writers:
        writer.start()
    won = [number for number, first in (results.get(timeout=120) for _ in writers) if first]
    for writer in writers:
        writer.join()
    assert len(won) == 1
    (steps,) = warehouse.files("decode_steps")
    assert pq.ParquetFile(steps).metadata.num_rows == won[0] + 1
    (document,) = warehouse.committed("r").values()
    assert tree(warehouse) == {"_commits/run=r/s.json"} | {file["path"] for file in document["files"]}


@pytest.mark.parametrize("torn", [b"", b'{"schema_version": 1, "fi'])
def test_a_torn_commit_counts_as_none_and_is_mended(warehouse, torn):
    warehouse.commit_shard("r", "s", shard())
    warehouse.commit_shard("r", "t", shard())
    path = warehouse.root / "_commits/run=r/s.json"
    whole = path.read_bytes()
    path.write_bytes(torn)
    assert list(warehouse.committed("r")) == ["t"]
    assert len(warehouse.files("requests")) == 1
    assert warehouse.commit_shard("r", "s", shard())
    assert path.read_bytes() == whole


def test_a_finished_run_is_read_through_done_alone(warehouse):
    warehouse.write_plan("r", {"started": "1"})
    warehouse.commit_shard("r", "s", shard())
    assert [(r.run, r.status) for r in warehouse.runs()] == [("r", "unfinished")]
    before = warehouse.files("requests")
    warehouse.write_done("r", {"status": "complete", "shards": warehouse.committed("r")})
    (warehouse.root / "_commits/run=r/s.json").unlink()
    assert warehouse.files("requests") == warehouse.files("requests", ["r"]) == before
    assert warehouse.run("r").status == "complete"
    assert warehouse.write_plan("r", {"started": "2"}) == {"started": "1"}
    with pytest.raises(InputError, match=r"no run 'q'.*the latest are: r"):
        warehouse.run("q")


def test_reading_needs_a_warehouse_and_makes_none(warehouse):
    for read in (warehouse.runs, warehouse.traces, lambda: warehouse.files("requests"), lambda: warehouse.trace("t")):
        with pytest.raises(InputError, match=r"no warehouse at .*wh \[1\]"):
            read()
    assert not warehouse.root.exists()


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "a=b", "ü"])
def test_names_are_safe(warehouse, name):
    with pytest.raises(InputError, match="use letters, digits"):
        warehouse.commit_shard(name, "s", {})
    with pytest.raises(InputError, match="use letters, digits"):
        warehouse.commit_shard("r", name, {})
    assert not warehouse.root.exists()


def test_roots_that_are_none(tmp_path):
    for root in ("ftp://host/prefix", "s3://", "s3:///", "S3://bucket/prefix", "gs://bucket", "file:///tmp/wh"):
        for spelled in (root, Path(root)):  # the command line's is a Path, which leaves slashes out
            with pytest.raises(InputError, match=r"a warehouse is a folder or s3://bucket/prefix"):
                Warehouse(spelled)
    assert Warehouse(tmp_path / "a: b").root.name == "a: b"
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a folder"):
        Warehouse(tmp_path / "file")


HOLD = """
import sys, time
from pipeline.warehouse import Warehouse
with Warehouse(sys.argv[1]).lock("r"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_lock_refuses_a_second_process_and_dies_with_its_owner(warehouse):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(warehouse.root)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(LockedError, match=rf"^r is in use by process {holder.pid} ") as refused,
            warehouse.lock("r"),
        ):
            pass
        assert refused.value.exit_code == 6
        with warehouse.lock("other"):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()
    with warehouse.lock("r"):
        pass


def test_sweep_takes_what_dead_processes_left(warehouse):
    warehouse.commit_shard("r", "s", shard())
    folder = warehouse.root / "requests/run=r"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, alive = folder / f".s.{dead.pid}.00.tmp", folder / f".s.{os.getppid()}.00.tmp"
    left.touch()
    alive.touch()
    warehouse.sweep_run("r")
    assert not left.exists()
    assert alive.exists()


def test_replaced_json_is_whole(tmp_path):
    commit.replace_json(tmp_path, "x/done.json", {"b": 1, "a": "é"})
    commit.replace_json(tmp_path, "x/done.json", {"b": 2, "a": "é"})
    assert json.loads((tmp_path / "x/done.json").read_text("utf-8")) == {"a": "é", "b": 2}
    assert [p.name for p in (tmp_path / "x").iterdir()] == ["done.json"]
