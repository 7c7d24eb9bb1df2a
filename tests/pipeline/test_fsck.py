"""Every kind of damage: what fsck says of it, what it does about it, and that the same replay gives the same bytes."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_traces import NGRAM, config, contents, rows, table

from pipeline.fsck import fsck
from pipeline.ingest.generation import RowRefused
from pipeline.ingest.rejects import Rejects
from pipeline.run import replay
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem, InputError

CONFIG = config({}, NGRAM, shard_size=12)
DATA = rows(20)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A trace, its rejects and a finished run of four shards."""
    warehouse = Warehouse(tmp_path_factory.mktemp("whole") / "wh")
    warehouse.write_trace("small", [table(DATA)])
    refused = Rejects()
    refused.add("log.jsonl", 3, RowRefused("output_token_ids", "is negative"))
    refused.commit(warehouse.root, "small")
    replay(CONFIG, warehouse).raise_for_status()
    return warehouse.root


@pytest.fixture
def house(whole, tmp_path) -> Warehouse:
    shutil.copytree(whole, tmp_path / "wh")
    return Warehouse(tmp_path / "wh")


def run_of(house: Warehouse) -> str:
    (record,) = house.runs() or [None]
    return record.run


def one(house: Warehouse, pattern: str) -> Path:
    return sorted(house.root.glob(pattern))[0]


def found(house: Warehouse, repair: bool = False) -> list[tuple[str, str]]:
    return [(Path(f.path).name, f.problem) for f in fsck(house, repair).findings]


def mends(house: Warehouse, whole: Path, *expected: tuple[str, str], replayed: bool = True) -> None:
    """fsck says that and changes nothing; it repairs it; with the same replay again, all is as it was."""
    before = raw(house.root)
    report = fsck(house)
    assert [(Path(f.path).name, f.problem) for f in report.findings] == list(expected)
    assert raw(house.root) == before
    with pytest.raises(EnvironmentProblem) as left:
        report.raise_for_status()
    assert left.value.exit_code == 4
    again = fsck(house, repair=True)
    again.raise_for_status()
    assert [(Path(f.path).name, f.problem) for f in again.findings] == list(expected)
    assert found(house) == []
    if replayed:
        replay(CONFIG, house).raise_for_status()
    assert contents(house.root) == contents(whole)
    assert found(house) == []


def raw(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*.*") if path.is_file() and ".locks" not in path.parts}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def edit(path: Path, change) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def test_a_whole_warehouse(house):
    report = fsck(house)
    report.raise_for_status()
    assert report.findings == []
    data = list(house.root.rglob("*.parquet"))
    assert (report.files, report.bytes) == (len(data), sum(path.stat().st_size for path in data))
    assert report.files > 8


def test_a_torn_data_file(house, whole):
    path = one(house, "decode_steps/run=*/*.parquet")
    cut(path)
    mends(house, whole, (path.name, "is torn"))


def test_a_replaced_data_file(house, whole):
    path = one(house, "requests/run=*/*.parquet")
    pq.write_table(pa.table({"other": [1, 2, 3]}), path)
    mends(house, whole, (path.name, "is another file than was committed (sha256 differs)"))


def test_one_flipped_bit(house, whole):
    path = one(house, "decode_steps/run=*/*.parquet")
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    mends(house, whole, (path.name, "is another file than was committed (sha256 differs)"))


def test_a_missing_data_file(house, whole):
    path = one(house, "requests/run=*/*.parquet")
    path.unlink()
    mends(house, whole, (path.name, "is missing"))


def test_a_shard_taken_back_is_out_of_the_views_until_it_is_computed_again(house):
    one(house, "requests/run=*/*.parquet").unlink()
    fsck(house, repair=True)
    assert house.run(run_of(house)).status == "unfinished"
    assert len(house.files("requests")) == 3


def test_a_wrong_row_count(house, whole):
    run = run_of(house)
    shard = one(house, "_commits/run=*/*.json")

    def more(document):
        document["files"][0]["rows"] += 1

    n = json.loads(shard.read_bytes())["files"][0]["rows"]
    name = Path(json.loads(shard.read_bytes())["files"][0]["path"]).name
    edit(shard, more)
    edit(house.root / "runs" / run / "done.json", lambda done: more(done["shards"][shard.stem]))
    mends(house, whole, (name, f"has {n} rows, {n + 1} were committed"))


@pytest.mark.parametrize("damage", [Path.unlink, cut, lambda path: path.write_text("[]")])
def test_a_lost_commit_object_is_written_again_from_done(house, whole, damage):
    path = one(house, "_commits/run=*/*.json")
    damage(path)
    mends(house, whole, (path.name, "is torn" if path.exists() else "is missing"), replayed=False)


def test_a_commit_object_of_another_shard(house, whole):
    first, second = sorted(house.root.glob("_commits/run=*/*.json"))[:2]
    shutil.copy(second, first)
    mends(house, whole, (first.name, "is torn"), replayed=False)


def test_a_commit_object_that_names_another_hash(house, whole):
    path = one(house, "_commits/run=*/*.json")
    edit(path, lambda document: document["files"][0].update(sha256="0" * 64))
    name = json.loads(path.read_bytes())["files"][0]["path"]
    mends(house, whole, (path.name, f"names {name}"), replayed=False)


def test_a_torn_done(house, whole):
    cut(house.root / "runs" / run_of(house) / "done.json")
    mends(house, whole, ("done.json", "is torn"))


def test_a_done_that_says_nothing(house, whole):
    path = house.root / "runs" / run_of(house) / "done.json"
    path.write_text("{}")
    with pytest.raises(InputError, match=r"does not say what came of the run; specreplay fsck --repair mends it"):
        house.shards()
    mends(house, whole, ("done.json", "is torn"))


SENSELESS = {
    "status": [None, 5],
    "ended": [None, "yesterday", 5],
    "reconciled": ["x", 1],
    "proposers": [[1], {"none": 5}],
    "failed": [5, [1]],
}


@pytest.mark.parametrize("key", SENSELESS)
def test_a_done_that_says_it_in_no_sense(house, whole, key):
    path = house.root / "runs" / run_of(house) / "done.json"
    for value in SENSELESS[key]:
        edit(path, lambda done, value=value: done.update({key: value}))
        assert query(connect(house), "SELECT run, ended FROM run_info").num_rows == 1  # readers live with it
        assert [problem for _, problem in found(house)] == ["is torn"], value
    mends(house, whole, ("done.json", "is torn"))


@pytest.mark.parametrize("units", [5, [1, 2], [{"shard": 3}], None])
def test_plans_whose_units_are_none(house, units):
    folder = house.root / "runs" / run_of(house)
    edit(folder / "done.json", lambda done: done["plan"].update(units=units))
    edit(folder / "plan.json", lambda plan: plan.update(units=units))
    assert found(house) == []


@pytest.mark.parametrize("name", ["plan.json", "done.json"])
def test_a_record_nested_without_end(house, whole, name):
    (house.root / "runs" / run_of(house) / name).write_text("[" * 100_000)
    mends(house, whole, (name, "is torn"), replayed=name == "done.json")


def test_a_done_that_disagrees(house, whole):
    path = house.root / "runs" / run_of(house) / "done.json"
    edit(path, lambda done: next(iter(done["shards"].values()))["files"][0].update(sha256="0" * 64))
    mends(house, whole, ("done.json", "disagrees with the commit objects"), replayed=False)


def test_a_done_that_forgot_a_shard(house, whole):
    path = house.root / "runs" / run_of(house) / "done.json"
    edit(path, lambda done: done["shards"].popitem())
    mends(house, whole, ("done.json", "disagrees with the commit objects"), replayed=False)


def test_a_shard_that_was_planned_and_is_nowhere(house, whole):
    path, run = one(house, "_commits/run=*/*.json"), run_of(house)
    edit(house.root / "runs" / run / "done.json", lambda done: done["shards"].pop(path.stem))
    files = [Path(file["path"]) for file in json.loads(path.read_bytes())["files"]]
    path.unlink()
    lost = ("done.json", f"disagrees with the commit objects ({path.stem})")
    places = ["decode_steps", "requests", "engine_steps", "rollup_steps", "rollup_histogram", "rollup_groups"]
    ordered = sorted(files, key=lambda file: places.index(file.parts[0]))
    mends(house, whole, lost, *((file.name, "is named by no commit object") for file in ordered))


@pytest.mark.parametrize("damage", [Path.unlink, cut, lambda path: edit(path, lambda plan: plan.update(requests=1))])
def test_a_plan_is_written_again_from_done(house, whole, damage):
    path = house.root / "runs" / run_of(house) / "plan.json"
    before = path.read_bytes()
    damage(path)
    what = {Path.unlink: "is missing", cut: "is torn"}.get(damage, "disagrees with done.json")
    mends(house, whole, ("plan.json", what), replayed=False)
    assert path.read_bytes() == before


@pytest.mark.parametrize("held", [None, [], {"run": "another"}])
def test_a_done_gets_its_plan_back(house, whole, held):
    path = house.root / "runs" / run_of(house) / "done.json"
    before = json.loads(path.read_bytes())
    edit(path, lambda done: done.update(plan=held))
    mends(house, whole, ("done.json", "holds no plan of this run"), replayed=False)
    assert json.loads(path.read_bytes()) == before


def test_plans_lost_in_both_places_come_again_with_the_same_replay(house, whole):
    folder = house.root / "runs" / run_of(house)
    (folder / "plan.json").unlink()
    edit(folder / "done.json", lambda done: done.update(plan=None))
    (finding,) = fsck(house, repair=True).left
    assert str(finding).endswith("done.json: holds no plan of this run; run the same replay again, it writes it again")
    replay(CONFIG, house).raise_for_status()
    assert contents(house.root) == contents(whole)
    assert found(house) == []


def test_a_torn_plan_of_an_unfinished_run(house, whole):
    folder = house.root / "runs" / run_of(house)
    cut(folder / "plan.json")
    (folder / "done.json").unlink()
    (finding,) = fsck(house, repair=True).left
    assert str(finding).endswith("plan.json: is torn; run the same replay again, it writes it again")
    replay(CONFIG, house).raise_for_status()
    assert contents(house.root) == contents(whole)


def test_leftovers(house, whole):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    run, root = run_of(house), house.root
    temporary = root / f"requests/run={run}/.s.{dead.pid}.00.tmp"
    alive = root / f"requests/run={run}/.s.{os.getppid()}.00.tmp"
    unnamed = root / f"requests/run={run}/s-0123456789abcdef.parquet"
    staged = root / f"_commits/run={run}/s.json#1"
    for path in (temporary, alive, unnamed, staged):
        path.write_bytes(b"x")
    expected = [
        (temporary.name, "is a temporary file of a process that is gone"),
        (unnamed.name, "is named by no commit object"),
        (staged.name, "is a staging file of a process that is gone"),
    ]
    assert found(house) == expected == found(house, repair=True)
    assert not any(path.exists() for path in (temporary, unnamed, staged))
    assert alive.exists()
    alive.unlink()
    assert contents(root) == contents(whole)


def test_what_is_in_use_is_left_alone(house):
    run = run_of(house)
    unnamed = house.root / f"requests/run={run}/s-0123456789abcdef.parquet"
    unnamed.write_bytes(b"x")
    torn = one(house, "decode_steps/run=*/*.parquet")
    cut(torn)
    before = contents(house.root)
    with house.lock(run):
        report = fsck(house, repair=True)
    assert report.in_use == [f"run {run}"]
    assert [(Path(f.path).name, f.problem, f.repaired) for f in report.findings] == [(torn.name, "is torn", False)]
    assert contents(house.root) == before


def test_a_version_of_tomorrow(house):
    run = run_of(house)
    edit(house.root / "runs" / run / "done.json", lambda done: done.update(schema_version=2))
    (house.root / f"requests/run={run}/s-0123456789abcdef.parquet").write_bytes(b"x")
    before = raw(house.root)
    (finding,) = fsck(house, repair=True).left
    assert "schema version 2, which is not known here; upgrade specreplay" in str(finding)
    assert raw(house.root) == before
    for read in (house.shards, house.runs, lambda: replay(CONFIG, house)):
        with pytest.raises(InputError, match=r"done\.json: schema version 2 is not known here .* upgrade specreplay$"):
            read()


def test_a_record_cannot_point_out_of_its_run(house, whole, tmp_path):
    outside = tmp_path / "precious.parquet"
    outside.write_bytes(b"x")
    run, shard = run_of(house), one(house, "_commits/run=*/*.json")

    def astray(document):
        document["files"][0]["path"] = "../precious.parquet"

    edit(shard, astray)
    edit(house.root / "runs" / run / "done.json", lambda done: astray(done["shards"][shard.stem]))
    assert ("precious.parquet", "is no file of this run or trace") in found(house, repair=True)
    assert outside.exists()
    fsck(house, repair=True)
    replay(CONFIG, house).raise_for_status()
    assert contents(house.root) == contents(whole)


def test_a_removal_that_was_cut_short(house):
    run = run_of(house)
    done = house.root / "runs" / run / "done.json"
    done.write_text(json.dumps({"schema_version": 1, "run": run, "status": "removed", "shards": {}}))
    assert house.runs() == [] == house.shards()
    assert found(house, repair=True) == [("done.json", "says that the run is removed, but files are left")]
    assert not list(house.root.glob(f"*/run={run}/*")) + list(house.root.glob("runs/*"))
    replay(CONFIG, house).raise_for_status()
    assert found(house) == []


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_damaged_trace_is_whole_after_the_same_ingest(house, whole, damage):
    part = one(house, "traces/small/*.parquet")
    damage(part)
    problem = "is torn" if part.exists() else "is missing"
    (left,) = fsck(house, repair=True).left
    assert (Path(left.path), left.problem) == (part.relative_to(house.root), problem)
    assert left.action == "ingest its logs again under the same name"
    house.write_trace("small", [table(DATA)])
    assert contents(house.root) == contents(whole)


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_trace_that_lost_its_commit_object_keeps_its_rows(house, whole, damage):
    path = house.root / "_commits/trace=small/trace.json"
    damage(path)
    assert [f.path for f in fsck(house, repair=True).left] == ["_commits/trace=small/trace.json"]
    house.write_trace("small", [table(DATA)])
    assert contents(house.root) == contents(whole)


def test_a_trace_whose_ingest_was_killed_leaves_nothing(house, whole):
    shutil.copytree(house.root / "traces/small", house.root / "traces/other")
    (part,) = (house.root / "traces/other").iterdir()
    assert found(house, repair=True) == [(part.name, "is named by no commit object")]
    shutil.rmtree(house.root / "traces/other")
    assert contents(house.root) == contents(whole)


def test_damaged_rejects_are_named(house):
    path = one(house, "rejects/*/*.parquet")
    cut(path)
    (left,) = fsck(house, repair=True).left
    assert (Path(left.path).name, left.problem) == (path.name, "is torn")


@pytest.mark.parametrize("seed", range(25))
def test_any_damage_to_a_run_is_found_and_the_same_replay_undoes_it(house, whole, seed):
    rng, run = random.Random(seed), run_of(house)
    files = [p for p in sorted(house.root.rglob("*.*")) if p.is_file() and "run" in str(p.relative_to(house.root))]
    files = [p for p in files if p.name != "plan.json" and not p.relative_to(house.root).parts[0].startswith(".")]
    sound = {path: path.read_bytes() for path in files}
    for path in rng.sample(files, rng.randint(1, 4)):
        data = sound[path]
        damage = rng.choice(["unlink", "cut", "empty", "other"])
        if damage == "unlink":
            path.unlink()
        else:
            at = rng.randrange(len(data))
            path.write_bytes({"cut": data[:at], "empty": b"", "other": sound[rng.choice(files)] + b" "}[damage])
    lost_done = not (house.root / "runs" / run / "done.json").exists()
    assert fsck(house).findings or lost_done  # a run without done.json is an unfinished one
    fsck(house, repair=True).raise_for_status()
    assert fsck(house).findings == []
    replay(CONFIG, house).raise_for_status()
    assert contents(house.root) == contents(whole)


def test_no_warehouse(tmp_path):
    with pytest.raises(InputError, match="no warehouse at"):
        fsck(Warehouse(tmp_path / "none"))


def test_the_command(house):
    path = one(house, "requests/run=*/*.parquet")
    cut(path)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "fsck", *arguments, "--warehouse", str(house.root)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )

    looked = command()
    assert looked.returncode == 4
    assert looked.stdout.startswith(f"{path.relative_to(house.root)}: is torn; --repair: shard ")
    assert looked.stdout.count("\n") == 1
    assert command("--repair").returncode == 0
    again = command("--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["findings"] == []
