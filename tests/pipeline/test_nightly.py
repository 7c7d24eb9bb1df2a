from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_traces import NGRAM, config, contents, rows, table

from pipeline.nightly import nightly
from pipeline.warehouse import Warehouse
from schemas.errors import InputError, LockedError

DATA = rows(30)


@pytest.fixture
def warehouse(tmp_path):
    house = Warehouse(tmp_path / "wh")
    house.write_trace("small", [table(DATA)])
    return house


def test_each_day_is_a_run_of_its_own_and_nothing_happens_twice(warehouse):
    first, second = date(2026, 11, 24), date(2026, 11, 25)
    made = {day: nightly(config({}, NGRAM), warehouse, day) for day in (first, second)}
    assert made[first].run != made[second].run
    for day, outcome in made.items():
        assert (outcome.status, outcome.already_done) == ("complete", False)
        wanted = {row["request_id"] for row in DATA if row["arrival"].date() == day}
        read = [pq.read_table(path, partitioning=None) for path in warehouse.files("requests", [outcome.run])]
        ids = [request for part in read for request in part.column("request_id").to_pylist()]
        assert sorted(ids) == sorted([*wanted, *wanted])  # two proposers
    before = contents(warehouse.root)
    again = nightly(config({}, NGRAM), warehouse, first)
    assert (again.run, again.already_done) == (made[first].run, True)
    assert contents(warehouse.root) == before


def test_the_configs_own_dates_are_set_aside(warehouse):
    dated = config({}, trace={"date_from": "2026-11-25", "date_to": "2026-11-25"})
    assert nightly(dated, warehouse, date(2026, 11, 24)).run == nightly(config({}), warehouse, date(2026, 11, 24)).run


def test_a_day_without_requests_is_an_error_that_names_the_days(warehouse):
    before = contents(warehouse.root)
    with pytest.raises(InputError, match=r"2026-11-23 to 2026-11-23.*there are: 2026-11-24 to 2026-11-25"):
        nightly(config({}), warehouse, date(2026, 11, 23))
    assert contents(warehouse.root) == before


def test_a_second_one_is_refused_while_the_first_runs(warehouse):
    run = nightly(config({}), warehouse, date(2026, 11, 24)).run
    with warehouse.lock(run), pytest.raises(LockedError, match="is in use by"):
        nightly(config({}), warehouse, date(2026, 11, 24))


@pytest.mark.live
def test_warnings_of_the_preflight_are_told(warehouse):
    """Before the engine starts: the first one ends it here. A limit of 41 tokens cuts some of the outputs."""
    model = Path(__file__).parents[2] / "examples" / "models" / "target"

    def warn(finding):
        raise KeyboardInterrupt(finding.check)

    engine = {"kind": "vllm", "model": str(model), "dtype": "float32", "sampling": {"max_tokens": 24}}
    limited = config({}, engine=engine, trace={"max_model_len": 41})
    with pytest.raises(KeyboardInterrupt, match="context"):
        nightly(limited, warehouse, date(2026, 11, 24), warn=warn)
