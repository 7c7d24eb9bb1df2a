"""What goes and what stays, and that a kill in between leaves a run whole or gone as readers see it."""

import itertools
import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from logged_runs import commit, random_run
from small_traces import rows, table

from pipeline import gc, removal
from pipeline.fsck import fsck
from pipeline.ingest.generation import RowRefused
from pipeline.ingest.rejects import Rejects
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.errors import InputError, LockedError

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
TOTALS = "SELECT run, sum(steps) AS steps, sum(drafted) AS drafted FROM request_summary GROUP BY run ORDER BY run"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Runs that ended 1, 10 and 40 days ago, one that never ended, a trace with rejects and one that no run needs."""
    warehouse = Warehouse(tmp_path_factory.mktemp("made") / "wh")
    for seed, (name, days) in enumerate({"new": 1, "older": 10, "oldest": 40, "open": None}.items()):
        commit(warehouse, name, random_run(seed, requests=5), finished=days is not None)
        if days is not None:
            # another zone, the same moment
            ended = (NOW - timedelta(days=days)).astimezone().isoformat()
            done = {"schema_version": 1, "run": name, "status": "complete", "ended": ended}
            warehouse.write_done(name, done | {"shards": warehouse.committed(name)})
    for name in ("demo", "unused"):
        warehouse.write_trace(name, [table(rows(5))])
        refused = Rejects()
        refused.add("log.jsonl", 3, RowRefused("output_token_ids", "is negative"))
        refused.commit(warehouse.root, name)
    return warehouse.root


@pytest.fixture
def house(made, tmp_path) -> Warehouse:
    shutil.copytree(made, tmp_path / "wh")
    return Warehouse(tmp_path / "wh")


def names(items: list[gc.Item]) -> list[str]:
    return [f"{item.kind} {item.name}" for item in items]


def files(house: Warehouse) -> set[str]:
    every = (path.relative_to(house.root).as_posix() for path in house.root.rglob("*") if path.is_file())
    return {name for name in every if not name.startswith(".")}


def test_by_age(house):
    assert names(gc.choose(house, keep_days=40, now=NOW)) == []
    assert names(gc.choose(house, keep_days=39, now=NOW)) == ["run oldest"]
    assert names(gc.choose(house, keep_days=9, now=NOW)) == ["run older", "run oldest"]
    assert names(gc.choose(house, keep_days=0, now=NOW)) == ["run new", "run older", "run oldest"]  # never "open"
    assert gc.choose(house, keep_days=10**30, now=NOW) == []


@pytest.mark.parametrize("ended", ["yesterday", 5, None, "", [1]])
def test_a_run_that_does_not_say_when_it_ended_has_no_age(house, ended):
    path = house.root / "runs/oldest/done.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"ended": ended}))
    assert names(gc.choose(house, keep_days=9, now=NOW)) == ["run older"]


def test_choosing_deletes_nothing_and_counts_what_would_go(house):
    before = files(house)
    (item,) = gc.choose(house, runs=["older"])
    assert files(house) == before
    theirs = [name for name in before if "/run=older/" in name or name.startswith("runs/older/")]
    assert item.files == len(theirs) > 5
    assert item.bytes == sum((house.root / name).stat().st_size for name in theirs)


def test_what_goes_is_gone_and_the_rest_is_as_it_was(house):
    before, totals = files(house), query(connect(house), TOTALS).to_pylist()
    gone, busy = gc.remove(house, gc.choose(house, keep_days=9, runs=["open"], now=NOW))
    assert (names(gone), busy) == (["run open", "run older", "run oldest"], [])
    when = f"complete, ended {NOW - timedelta(days=40):%Y-%m-%d %H:%M} UTC"
    assert gone[2].why == when and when in str(gone[2])
    left = files(house)
    assert left == {name for name in before if not any(run in name for run in ("older", "oldest", "open"))}
    assert query(connect(house), TOTALS).to_pylist() == [row for row in totals if row["run"] == "new"]
    assert [record.run for record in house.runs()] == ["new"]
    assert fsck(house).findings == []
    assert not list(house.root.glob("*/run=older"))


def test_a_trace_goes_by_name_only_and_not_while_a_run_needs_it(house):
    before = files(house)
    with pytest.raises(InputError, match=r"^trace demo: run new and 3 more was planned over it; remove those runs too"):
        gc.choose(house, traces=["demo"])
    path = house.root / "runs/new/plan.json"
    plan = path.read_bytes()
    path.write_text(json.dumps(json.loads(plan) | {"warm": {"unused": "0123456789abcdef"}}))  # trees it was warmed with
    with pytest.raises(InputError, match=r"^trace unused: run new was planned over it"):
        gc.choose(house, traces=["unused"])
    path.write_bytes(plan)
    gc.remove(house, gc.choose(house, traces=["unused"]))
    assert files(house) == {name for name in before if "unused" not in name}
    assert [trace.name for trace in house.traces()] == ["demo"]
    gc.remove(house, gc.choose(house, rejects=["demo"]))
    assert {name for name in files(house) if "rejects" in name} == set()
    assert house.read_trace("demo").num_rows == 5
    runs = [record.run for record in house.runs()]
    gc.remove(house, gc.choose(house, runs=runs, traces=["demo"]))
    assert files(house) == set()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "say what may go"),
        ({"keep_days": -1}, "give 0 or more days"),
        ({"runs": ["nope"]}, r"no run 'nope'.*the latest are"),
        ({"traces": ["nope"]}, r"no trace 'nope'.*there are: demo, unused"),
        ({"rejects": ["nope"]}, "trace 'nope' has no rejects"),
        ({"traces": ["../demo"]}, "use letters, digits"),
    ],
)
def test_wrong_wishes_delete_nothing(house, asked, says):
    before = files(house)
    with pytest.raises(InputError, match=says):
        gc.choose(house, **asked)
    assert files(house) == before


def test_a_run_in_use_stays(house):
    commit(house, "older-r2", random_run(9, requests=5))
    items = gc.choose(house, runs=["older", "older-r2", "oldest"])
    before = files(house)
    with house.lock("older"):  # whoever measures a run once more holds the first run's lock
        gone, busy = gc.remove(house, items)
    assert names(gone) == ["run oldest"]
    assert len(busy) == 2
    assert "older is in use by process" in busy[0]
    assert {name for name in before if "older" in name} <= files(house)


def test_a_file_that_a_kept_run_names_stays(house):
    (shard, document), *_ = house.committed("older").items()
    path = house.root / "runs/new/done.json"
    done = json.loads(path.read_bytes())
    done["shards"][shard] = document
    path.write_text(json.dumps(done))
    gc.remove(house, gc.choose(house, runs=["older"]))
    assert {name for name in files(house) if "run=older" in name} == {file["path"] for file in document["files"]}


def test_a_reader_that_was_there_before_reads_on_or_says_one_line(house):
    before = connect(house)
    half_read = pq.ParquetFile(house.files("requests", ["older"])[0])
    gc.remove(house, gc.choose(house, runs=["older"]))
    assert half_read.read().num_rows == 5
    with pytest.raises(InputError) as said:
        query(before, TOTALS)
    assert "\n" not in str(said.value)
    assert len(query(connect(house), TOTALS)) == 3


class Killed(BaseException):
    """Nobody catches it, and nothing works after it."""


def dies_at(monkeypatch, at: int) -> None:
    """From the call number `at` on, counted from 0, nothing is deleted or renamed any more."""
    calls = itertools.count()

    def watched(real):
        def call(*arguments, **named):
            if next(calls) >= at:
                raise Killed
            return real(*arguments, **named)

        return call

    for name in ("unlink", "replace", "rmdir"):
        monkeypatch.setattr(Path, name, watched(getattr(Path, name)))


@pytest.mark.parametrize("run", ["older", "open"])
def test_killed_before_any_step_a_run_is_whole_or_gone(house, tmp_path, monkeypatch, run):
    totals = query(connect(house), TOTALS).to_pylist()
    infos = [record.run for record in house.runs()]
    without = [row for row in totals if row["run"] != run]
    start, seen = tmp_path / "start", []
    shutil.copytree(house.root, start)
    for at in range(100):
        shutil.rmtree(house.root)
        shutil.copytree(start, house.root)
        with monkeypatch.context() as patch:
            dies_at(patch, at)
            try:
                removal.remove(house.root, run)
                whole = True
            except Killed:
                whole = False
        now = query(connect(house), TOTALS).to_pylist()
        assert now in (totals, without)
        assert [record.run for record in house.runs()] == [name for name in infos if now == totals or name != run]
        seen.append(now == totals)
        if whole:
            break
        house.sweep_run(run)  # what the same replay does first
        if now == without:
            assert not [name for name in files(house) if run in name]
        else:
            gc.remove(house, gc.choose(house, runs=[run]))
            assert not [name for name in files(house) if run in name]
    assert len(seen) > 8
    assert seen == sorted(seen, reverse=True)
    assert {True, False} == set(seen)


def test_a_full_disk_can_be_freed(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        house = Warehouse(disk / "wh")
        commit(house, "a", random_run(1, requests=5))
        with house.lock("a"):
            pass
        with (disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
            while True:
                ballast.write(bytes(4096))
        gone, _ = gc.remove(house, gc.choose(house, runs=["a"]))
        assert names(gone) == ["run a"]
        assert files(house) == set()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_removed_run_is_not_there_for_anyone(house):
    removal.remove(house.root, "older")
    with pytest.raises(InputError, match="no run 'older'"):
        house.run("older")
    with pytest.raises(LockedError), house.lock("older"), house.lock("older"):
        pass
