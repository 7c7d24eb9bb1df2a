"""The same warehouse in an S3 bucket, on a real server: same bytes, same numbers, one winner, nothing half there."""

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from bucket import objects, store
from ingested import jsonl
from logged_runs import Request, Run, Step, tables
from small_traces import NGRAM, config, contents, rows, table

from pipeline import gc
from pipeline.imports.run import import_counts
from pipeline.run import replay
from pipeline.views import connect, init_sql, query
from pipeline.warehouse import Warehouse
from schemas.errors import EnvironmentProblem, InputError

CONFIG = config({}, NGRAM, shard_size=12)
TOTALS = "SELECT proposer, steps, rounds, drafted, accepted, emitted FROM proposer_summary ORDER BY proposer"


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory) -> Warehouse:
    house = Warehouse(tmp_path_factory.mktemp("disk") / "wh")
    house.write_trace("small", [table(rows(20))])
    replay(CONFIG, house).raise_for_status()
    return house


def test_same_bytes_and_same_numbers_as_on_disk(url, on_disk, tmp_path, monkeypatch):
    here = Warehouse(url)
    here.write_trace("small", [table(rows(20))])
    replay(config({}, NGRAM, shard_size=12, workers=2), here).raise_for_status()
    assert objects(url) == contents(on_disk.root)
    monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / "second"))
    there = Warehouse(Path(url))  # as the command line gives it: one slash less
    assert there.root != here.root
    assert query(connect(there), TOTALS).to_pylist() == query(connect(on_disk), TOTALS).to_pylist()
    assert there.read_trace("small") == table(rows(20))
    assert replay(CONFIG, there).already_done
    assert objects(url) == contents(on_disk.root)


def test_what_is_committed_elsewhere_is_seen_at_the_next_read(url, tmp_path, monkeypatch):
    here = Warehouse(url)
    monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / "second"))
    there = Warehouse(url)
    assert here.runs() == []
    made = tables(Run({"ngram": [Request([Step(3, 1)])]}), "ngram", [Request([Step(3, 1)])])
    there.write_plan("r", {"started": "1"})
    there.commit_shard("r", "s", made)
    assert [(r.run, r.status) for r in here.runs()] == [("r", "unfinished")]
    assert len(here.files("requests")) == 1
    there.write_done("r", {"status": "complete", "shards": there.committed("r")})
    assert [(r.run, r.status) for r in here.runs()] == [("r", "complete")]
    there.write_done("r", {"status": "failed", "shards": there.committed("r")})
    assert [(r.run, r.status) for r in here.runs()] == [("r", "failed")]
    there.discard_plan("r")
    assert here.runs() == []


def test_of_many_writers_one_wins(url, tmp_path, monkeypatch):
    houses = []
    for i in range(6):  # six machines
        monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / str(i)))
        houses.append(Warehouse(url))
    gate = threading.Barrier(6)

    def write(number: int) -> bool:
        requests = [Request([Step(3, number % 3)] * (number + 1))]
        made = tables(Run({"ngram": requests}), "ngram", requests)
        gate.wait()
        return houses[number].commit_shard("r", "s", made)

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(write, range(6)))
    assert won.count(True) == 1
    (document,) = houses[0].committed("r").values()
    steps = next(file for file in document["files"] if file["table"] == "decode_steps")
    assert steps["rows"] == won.index(True) + 1
    # the losers' files are gone, the winner's are there
    assert {name for name in objects(url) if "run=r" in name} == {
        "_commits/run=r/s.json",
        *(file["path"] for file in document["files"]),
    }


REPLAY = """
import os, signal, sys
import obstore
from small_traces import NGRAM, config
from pipeline.imports.run import import_counts
from pipeline.run import replay
from pipeline.warehouse import Warehouse
real, left = obstore.put, int(sys.argv[2])
def put(*arguments, **named):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **named)
obstore.put = put
replay(config({}, NGRAM, shard_size=12), Warehouse(sys.argv[1])).raise_for_status()
"""


@pytest.mark.parametrize("puts", [0, 1, 4, 7, 12])
def test_killed_on_one_machine_finished_on_another(url, on_disk, tmp_path, monkeypatch, puts):
    Warehouse(url).write_trace("small", [table(rows(20))])
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    ended = subprocess.run([sys.executable, "-c", REPLAY, url, str(puts)], env=environment).returncode
    assert ended == -signal.SIGKILL
    monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / "second"))
    house = Warehouse(url)
    connect(house).close()
    replay(CONFIG, house).raise_for_status()
    assert objects(url) == contents(on_disk.root)


def test_a_replaced_file_is_not_taken(url, tmp_path, monkeypatch):
    house = Warehouse(url)
    house.write_trace("small", [table(rows(20))])
    (part,) = (file["path"] for file in house.trace("small").files)
    obstore.put(store(url), part, b"another file", mode="overwrite")
    monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / "second"))
    with pytest.raises(EnvironmentProblem, match=r"in the object store is another file than was committed"):
        Warehouse(url).read_trace("small")
    obstore.delete(store(url), part)
    with pytest.raises(InputError, match=r"trace small: .* is missing"):
        Warehouse(url).read_trace("small")


@pytest.mark.parametrize("endpoint_url", [None, "http://127.0.0.1:9"])
def test_no_bucket_or_no_server_is_one_line(url, monkeypatch, endpoint_url):
    if endpoint_url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint_url)
    with pytest.raises(EnvironmentProblem, match=r"^s3://no-such-bucket/x: ") as said:
        Warehouse("s3://no-such-bucket/x").runs()
    assert "\n" not in str(said.value)


def test_views_of_ones_own(url, tmp_path, monkeypatch):
    here = Warehouse(url)
    monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / "second"))
    there = Warehouse(url)
    requests = [Request([Step(3, 1)])]
    here.write_plan("r", {"started": "1"})
    here.commit_shard("r", "s", tables(Run({"ngram": requests}), "ngram", requests))

    def said() -> list[int]:
        return [query(connect(house), "SELECT * FROM twice").column(0).to_pylist() for house in (here, there)]

    with pytest.raises(InputError, match="twice"):
        said()
    for factor in (2, 20):  # a view may be changed
        view = f"CREATE VIEW twice AS SELECT {factor} * drafted AS n FROM decode_steps"
        obstore.put(store(url), "views/a.sql", view.encode())
        assert said() == [[3 * factor]] * 2
        assert f"{factor} * drafted" in init_sql(there)
    obstore.put(store(url), "views/b.sql", b"CREATE VIEW b AS SELECT * FROM nope")
    with pytest.raises(InputError) as error:
        connect(there)
    assert str(error.value).startswith(f"{url}/views/b.sql: Catalog Error: Table with name nope does not exist")
    obstore.put(store(url), "views/b.sql", b"DROP VIEW a")
    with pytest.raises(InputError, match=rf"^{url}/views/b\.sql: must be one CREATE VIEW"):
        connect(there)
    obstore.delete(store(url), ["views/a.sql", "views/b.sql"])
    (there.root / "views" / "a.sql").write_text(view)  # in the mirror alone it is no view of the warehouse
    for house in (here, there):
        with pytest.raises(InputError, match="twice"):
            query(connect(house), "SELECT * FROM twice")


def test_counts_of_others_come_in_there_too(url, tmp_path, monkeypatch):
    choice = {"new_tokens": [4], "accept_lengths": [1, 3], "turns": ["said"]}
    rows = [{"question_id": q, "model_id": "eagle", "choices": [choice]} for q in range(3)]
    path = jsonl(tmp_path / "answers.jsonl", rows)
    assert not import_counts([path], Warehouse(url), "published").already_done
    monkeypatch.setenv("SPECREPLAY_CACHE", str(tmp_path / "second"))
    assert query(connect(Warehouse(url)), TOTALS).to_pylist() == [
        {"proposer": "eagle", "steps": 6, "rounds": None, "drafted": None, "accepted": 6, "emitted": 9}
    ]
    assert import_counts([path], Warehouse(url), "published").already_done


def test_messages_name_the_bucket_and_not_the_mirror(url, tmp_path):
    here = Warehouse(url)
    path = jsonl(tmp_path / "a.jsonl", [{"model_id": "m", "choices": [{"new_tokens": [4], "accept_lengths": [4]}]}])
    import_counts([path], here, "r")
    for ask in (
        lambda: here.run("nope"),
        lambda: here.trace("nope"),
        lambda: gc.choose(here, runs=["nope"]),
        lambda: gc.choose(here, rejects=["nope"]),
    ):
        with pytest.raises(InputError, match=rf"'nope'.* in {re.escape(url)}") as said:
            ask()
        assert str(here.root) not in str(said.value)


@pytest.mark.parametrize("left", [b"", b"[1]", b"\0" * 40])
def test_what_a_power_loss_left_of_the_mirror_comes_down_again(url, tmp_path, left):
    here = Warehouse(url)
    path = jsonl(tmp_path / "a.jsonl", [{"model_id": "m", "choices": [{"new_tokens": [4], "accept_lengths": [4]}]}])
    import_counts([path], here, "r")
    assert [r.status for r in here.runs()] == ["complete"]
    for name in (".tags.json", ".remote", "runs/r/done.json", "runs/r/plan.json"):
        (here.root / name).write_bytes(left)
        again = Warehouse(url)
        assert [(r.run, r.status) for r in again.runs()] == [("r", "complete")], name
