"""Readers beside a writer, and beside each other: whole shards only, and the same numbers on every thread."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from logged_runs import Request, Run, Step, random_run, tables

from pipeline.rollups import rollups
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse

SHARDS = 10
BOTH = """
SELECT
    (SELECT count(accepted) FROM decode_steps) AS steps, coalesce(sum(steps), 0)::BIGINT AS summed, count(*) AS shards
FROM proposer_summary
"""


def steps_of(number: int) -> list[Request]:
    """The requests of one shard; no two shards have as many steps."""
    return [Request([Step(3, 1)] * (number + 1))] * (2 ** (number % 8))


def write(root: Path, start) -> None:
    house = Warehouse(root)
    start.wait()
    for number in range(SHARDS):
        name = f"p{number}"
        made = tables(Run({name: []}), name, steps_of(number))
        house.commit_shard("r", f"{number:02d}", made | rollups(made))
    shards = house.committed("r")
    house.write_done("r", {"schema_version": 1, "run": "r", "status": "complete", "shards": shards})


def test_a_reader_beside_a_writer_sees_whole_shards(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_plan("r", {"trace": {"name": "t"}})
    sums = [sum((n + 1) * len(steps_of(n)) for n in range(shards)) for shards in range(SHARDS + 1)]
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    writer = context.Process(target=write, args=(house.root, start))
    writer.start()
    start.set()
    seen = []
    while not seen or (seen[-1] < SHARDS and writer.is_alive()):
        (row,) = query(connect(house), BOTH).to_pylist()
        assert row["steps"] == row["summed"] == sums[row["shards"]]
        seen.append(row["shards"])
    writer.join()
    assert writer.exitcode == 0
    assert seen == sorted(seen)
    (row,) = query(connect(house), BOTH).to_pylist()
    assert row == {"steps": sums[-1], "summed": sums[-1], "shards": SHARDS}


def test_twenty_threads_read_the_same_numbers(tmp_path):
    house = Warehouse(tmp_path / "wh")
    run = random_run(5, requests=30)
    for proposer, requests in run.requests.items():
        house.commit_shard("r", proposer.split()[0], tables(run, proposer, requests))
    con = connect(house)
    asked = "SELECT proposer, workload, steps, rounds, drafted, accepted FROM workload_summary ORDER BY ALL"
    once = query(con, asked).to_pylist()
    assert sum(row["steps"] for row in once) == sum(len(r.verified) for rs in run.requests.values() for r in rs)
    with ThreadPoolExecutor(20) as pool:
        for rows in pool.map(lambda _: query(con, asked).to_pylist(), range(60)):
            assert rows == once
