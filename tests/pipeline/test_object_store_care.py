"""fsck and gc on a warehouse in a bucket: they say and do what they do on disk, and the mirror follows."""

import json
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
import pytest
from bucket import names, objects, raw, store, upload
from logged_runs import commit, random_run
from small_traces import NGRAM, config, contents, rows, table

from pipeline import gc, removal
from pipeline.fsck import fsck
from pipeline.ingest.generation import RowRefused
from pipeline.ingest.rejects import Rejects
from pipeline.run import replay
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem, InputError, LockedError

CONFIG = config({}, NGRAM, shard_size=12)
TOTALS = "SELECT run, sum(steps) AS steps, sum(drafted) AS drafted FROM request_summary GROUP BY run ORDER BY run"


def later(days: float = 2) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """On disk: a trace, its rejects and a finished run of four shards."""
    house = Warehouse(tmp_path_factory.mktemp("whole") / "wh")
    house.write_trace("small", [table(rows(20))])
    refused = Rejects()
    refused.add("log.jsonl", 3, RowRefused("output_token_ids", "is negative"))
    refused.commit(house.root, "small")
    replay(CONFIG, house).raise_for_status()
    return house.root


@pytest.fixture
def twins(whole, url, tmp_path) -> tuple[Warehouse, Warehouse, str]:
    """The same warehouse on disk and in a bucket."""
    shutil.copytree(whole, tmp_path / "wh")
    upload(whole, url)
    return Warehouse(tmp_path / "wh"), Warehouse(url), url


def damage(twins, name: str, data: bytes | None) -> None:
    """Put other bytes (None: nothing) in a file's place, on disk and in the bucket."""
    disk, _, url = twins
    if data is None:
        (disk.root / name).unlink()
        obstore.delete(store(url), name)
    else:
        (disk.root / name).write_bytes(data)
        obstore.put(store(url), name, data)


def found(house: Warehouse, repair: bool = False) -> list[tuple[str, str, bool]]:
    return [(f.path, f.problem, f.repaired) for f in fsck(house, repair, later()).findings]


def one(house: Warehouse, pattern: str) -> str:
    return sorted(house.root.glob(pattern))[0].relative_to(house.root).as_posix()


def test_a_whole_warehouse(twins, whole):
    disk, there, _ = twins
    reports = [fsck(house) for house in (disk, there)]
    assert reports[0].as_dict() == reports[1].as_dict()
    data = list(whole.rglob("*.parquet"))
    assert (reports[1].files, reports[1].bytes) == (len(data), sum(path.stat().st_size for path in data))
    assert reports[1].findings == []


DAMAGES = [
    ("decode_steps/run=*/*.parquet", lambda data: data[:-20], "is torn"),
    ("requests/run=*/*.parquet", lambda data: data[:10] + bytes([data[10] ^ 1]) + data[11:], "is another file than"),
    ("rollup_steps/run=*/*.parquet", lambda data: None, "is missing"),
    ("_commits/run=*/*.json", lambda data: None, "is missing"),
    ("_commits/run=*/*.json", lambda data: b"{", "is torn"),
    ("runs/*/done.json", lambda data: data[:-3], "is torn"),
    ("runs/*/plan.json", lambda data: None, "is missing"),
    ("runs/*/plan.json", lambda data: data.replace(b"ngram", b"mgram"), "disagrees with done.json"),
]


@pytest.mark.parametrize(("pattern", "change", "problem"), DAMAGES)
def test_damage_is_found_and_mended_as_on_disk(twins, whole, pattern, change, problem):
    disk, there, url = twins
    connect(there).close()  # the mirror has all of it
    name = one(disk, pattern)
    damage(twins, name, change((disk.root / name).read_bytes()))
    before = raw(url)
    (finding,) = found(there)
    assert finding[0] == name
    assert finding[1].startswith(problem)
    assert raw(url) == before
    assert found(there) == found(disk)
    assert found(there, repair=True) == found(disk, repair=True)
    assert objects(url) == contents(disk.root)
    assert found(there) == []
    replay(CONFIG, there).raise_for_status()
    assert objects(url) == contents(whole)


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_to_a_run(twins, whole, seed):
    disk, there, url = twins
    rng = random.Random(seed)
    sound = {name: (whole / name).read_bytes() for name in names(url) if "run" in name}
    for name in rng.sample(sorted(sound), rng.randint(1, 4)):
        data = sound[name]
        other = sound[rng.choice(sorted(sound))] + b" "
        damage(twins, name, rng.choice([None, b"", other, data[: rng.randrange(len(data))]]))
    assert found(there) == found(disk)
    assert found(there, repair=True) == found(disk, repair=True)
    assert objects(url) == contents(disk.root)
    replay(CONFIG, there).raise_for_status()
    assert objects(url) == contents(whole)
    assert found(there) == []


def test_a_damaged_trace_is_named_and_kept(twins):
    disk, there, url = twins
    name = one(disk, "traces/small/*.parquet")
    damage(twins, name, b"torn")
    assert found(there, repair=True) == found(disk, repair=True) == [(name, "is torn", False)]
    assert name in names(url)
    with pytest.raises(EnvironmentProblem):
        fsck(there).raise_for_status()


def test_what_nobody_names_goes_once_it_is_old(twins, whole):
    _, there, url = twins
    run = there.runs()[0].run
    lost = f"requests/run={run}/s-0123456789abcdef.parquet"
    obstore.put(store(url), lost, b"x")
    assert fsck(there, repair=True).findings == []  # another machine may be about to commit it
    assert lost in names(url)
    (here,) = fsck(there, repair=True, now=later()).findings
    assert (here.path, here.problem, here.repaired) == (lost, "is named by no commit object", True)
    assert objects(url) == contents(whole)
    mirrored = there.root / lost
    mirrored.parent.mkdir(parents=True)
    mirrored.write_bytes(b"x")  # killed between the mirror and the bucket
    (here,) = fsck(there, repair=True).findings
    assert here.path == lost
    assert not mirrored.exists()


def test_the_age_of_an_object_is_by_the_clock_of_its_store(twins, monkeypatch):
    _, there, url = twins
    lost = f"requests/run={there.runs()[0].run}/s-0123456789abcdef.parquet"
    obstore.put(store(url), lost, b"x")

    class Tomorrow(datetime):
        """The clock of this machine is years ahead."""

        @classmethod
        def now(cls, tz=None):
            return later(1000)

    before = names(url)
    monkeypatch.setattr("pipeline.fsck.datetime", Tomorrow)
    assert fsck(there, repair=True).findings == []
    assert names(url) == before


def test_a_mirror_that_is_torn_comes_down_again(twins, whole):
    disk, there, url = twins
    assert query(connect(there), TOTALS) == query(connect(disk), TOTALS)
    name = one(there, "requests/run=*/*.parquet")
    record = one(there, "_commits/run=*/*.json")
    (there.root / name).write_bytes(b"")
    (there.root / record).write_bytes(b"")  # its tag is as it was
    (finding,) = fsck(there, repair=True).findings
    assert (finding.path, finding.problem) == (name, "is torn in the mirror on this machine")
    assert query(connect(there), TOTALS) == query(connect(disk), TOTALS)
    assert objects(url) == contents(whole)


def test_a_record_of_the_bucket_that_is_torn_does_not_win(twins, whole):
    _, there, url = twins
    run = there.runs()[0].run
    (name,) = [n for n in names(url) if n.startswith("_commits/run=") and n.endswith("0000.json")][:1]
    obstore.delete(store(url), f"runs/{run}/done.json")
    obstore.put(store(url), name, b"")
    replay(CONFIG, there).raise_for_status()
    assert objects(url) == contents(whole)


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Path:
    """On disk: three finished runs that ended long ago, one that did not, and two traces with rejects."""
    house = Warehouse(tmp_path_factory.mktemp("three") / "wh")
    for seed, name in enumerate(("a", "b", "c", "open")):
        commit(house, name, random_run(seed, requests=5), finished=name != "open")
        if name != "open":
            done = {"schema_version": 1, "run": name, "status": "complete", "ended": f"2026-0{seed + 1}-01T00:00:00Z"}
            house.write_done(name, done | {"shards": house.committed(name)})
    for name in ("demo", "unused"):
        house.write_trace(name, [table(rows(5))])
        refused = Rejects()
        refused.add("log.jsonl", 3, RowRefused("output_token_ids", "is negative"))
        refused.commit(house.root, name)
    return house.root


@pytest.fixture
def pair(three, url, tmp_path) -> tuple[Warehouse, Warehouse, str]:
    shutil.copytree(three, tmp_path / "wh")
    upload(three, url)
    return Warehouse(tmp_path / "wh"), Warehouse(url), url


@pytest.mark.parametrize(
    "asked",
    [
        {"keep_days": 1, "now": datetime(2026, 2, 15, tzinfo=UTC)},
        {"runs": ["open", "c"]},
        {"traces": ["unused"]},
        {"rejects": ["demo"]},
        {"runs": ["a", "b", "c", "open"], "traces": ["demo", "unused"]},
    ],
)
def test_the_same_goes_as_on_disk(pair, asked, tmp_path, monkeypatch):
    disk, there, url = pair
    before, whole = names(url), contents(disk.root)
    assert gc.choose(there, **asked) == (items := gc.choose(disk, **asked))
    assert items
    assert all(item.bytes > 0 for item in items)
    assert names(url) == before
    monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / "second"))
    other = Warehouse(url)
    assert other.root != there.root
    reader = connect(other)
    assert gc.remove(there, gc.choose(there, **asked)) == gc.remove(disk, items)
    assert objects(url) == contents(disk.root) != whole
    mirrored = {path.relative_to(there.root).as_posix() for path in there.root.rglob("*") if path.is_file()}
    assert {name for name in mirrored if not name.startswith(".")} <= set(names(url))  # their ids are gone here too
    assert query(connect(other), TOTALS) == query(connect(there), TOTALS) == query(connect(disk), TOTALS)
    assert [r.run for r in other.runs()] == [r.run for r in disk.runs()]
    assert fsck(there, now=later()).findings == []
    reader.close()


def test_what_a_kept_run_names_stays_and_so_does_its_mirror(pair):
    _, there, url = pair
    (shard, document), *_ = there.committed("b").items()
    done = json.loads(bytes(obstore.get(store(url), "runs/a/done.json").bytes()))
    done["shards"][shard] = document
    obstore.put(store(url), "runs/a/done.json", json.dumps(done).encode())
    connect(there).close()
    gc.remove(there, gc.choose(there, runs=["b"]))
    kept = {file["path"] for file in document["files"]}
    assert {name for name in names(url) if "run=b" in name} == kept
    assert {p.relative_to(there.root).as_posix() for p in there.root.glob("*/run=b/*")} == kept


def test_wrong_wishes_and_runs_in_use(pair):
    _, there, url = pair
    before = names(url)
    with pytest.raises(InputError, match=r"^trace demo: run a and 3 more was planned over it"):
        gc.choose(there, traces=["demo"])
    with pytest.raises(InputError, match="no run 'nope'"):
        gc.choose(there, runs=["nope"])
    with there.lock("a"):
        gone, busy = gc.remove(there, gc.choose(there, runs=["a"]))
    assert gone == []
    assert "a is in use by" in busy[0]
    assert names(url) == before
    with pytest.raises(LockedError), there.lock("a"), there.lock("a"):
        pass


def test_killed_half_way_a_run_is_gone_and_the_rest_follows(pair, monkeypatch):
    disk, there, url = pair
    real, calls = obstore.delete, []

    class Killed(BaseException):
        pass

    def dies(*arguments):
        calls.append(arguments)
        if len(calls) > 3:  # past the commit objects and one table
            raise Killed
        return real(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(obstore, "delete", dies)
        removal.remove(there.root, "a")
    assert {r.run for r in there.runs()} == {"b", "c", "open"}
    assert any("run=a" in name for name in names(url))
    (finding,) = fsck(there, repair=True).findings
    assert (finding.path, finding.repaired) == ("runs/a/done.json", True)
    removal.remove(disk.root, "a")
    assert objects(url) == contents(disk.root)
