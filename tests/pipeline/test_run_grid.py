"""A grid of n-gram settings in one replay: shared work, the same files."""

import shutil

import pytest
from small_traces import NGRAM, config, contents, rows, table

from pipeline.plan import plan
from pipeline.run import replay
from pipeline.units import shared
from pipeline.warehouse import Warehouse
from schemas.errors import UnitsFailedError

GRID = NGRAM | {"prompt_lookup_min": [1, 2], "num_speculative_tokens": [1, 3]}


@pytest.fixture
def warehouse(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(rows(40))])
    return house


def test_lookups_over_the_same_requests_are_one_job(warehouse):
    planned = plan(config({}, GRID, {"method": "ngram_gpu", "num_speculative_tokens": 2}, shard_size=10), warehouse)
    jobs = shared(planned.units, live=False)
    assert [unit for group in jobs for unit in group if unit.proposer.method == "none"] == list(planned.units[:4])
    together = [[unit.proposer.name for unit in group] for group in jobs if len(group) > 1]
    assert len(jobs) == 8 and together == [[p.name for p in planned.config.proposer[1:]]] * 4
    assert all(len({unit.rows.tobytes() for unit in group}) == 1 for group in jobs)
    assert [len(group) for group in shared(planned.units, live=True)] == [1] * len(planned.units)


def test_a_shared_index_commits_what_each_setting_alone_would(warehouse, tmp_path, monkeypatch):
    shutil.copytree(warehouse.root, tmp_path / "alone")
    told = {}
    grid = config({}, GRID, shard_size=15)
    replay(grid, warehouse, progress=lambda name, done, total: told.__setitem__(name, (done, total))).raise_for_status()
    assert told == {proposer.name: (40, 40) for proposer in grid.proposer}
    alone = Warehouse(tmp_path / "alone")
    monkeypatch.setattr("pipeline.run.shared", lambda units, live: [(unit,) for unit in units])
    replay(grid, alone).raise_for_status()
    assert contents(warehouse.root) == contents(alone.root)


def test_a_job_that_breaks_off_keeps_what_it_committed(warehouse, monkeypatch):
    whole = config(GRID)
    commit = Warehouse.commit_shard

    def third_fails(self, run, shard, tables, facts=None):
        if shard.startswith("02-"):
            raise OSError("no")
        return commit(self, run, shard, tables, facts)

    with monkeypatch.context() as patch:
        patch.setattr(Warehouse, "commit_shard", third_fails)
        outcome = replay(whole, warehouse)
    assert outcome.status == "failed" and len(outcome.failed) == 2
    with pytest.raises(UnitsFailedError, match="2 units failed"):
        outcome.raise_for_status()
    again = replay(whole, warehouse)
    again.raise_for_status()
    assert again.run == outcome.run and len(warehouse.committed(again.run)) == 4
