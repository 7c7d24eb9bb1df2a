"""The heat map of window against number of candidates, from a real replay of a small grid."""

import pytest
from small_traces import NGRAM, config, rows, table
from test_pages import POSITIONS, charts, choose, select, values, widget

from pipeline.run import replay
from pipeline.warehouse import Warehouse

SWEEP = "pages/sweep.py"
GRID = NGRAM | {"prompt_lookup_min": [1, 2], "prompt_lookup_max": [2, 4], "num_speculative_tokens": [1, 3, 12]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    warehouse = Warehouse(tmp_path_factory.mktemp("sweep") / "house")
    warehouse.write_trace("small", [table(rows(40))])
    outcome = replay(config({}, GRID), warehouse)
    outcome.raise_for_status()
    replay(config({}, NGRAM), warehouse).raise_for_status()
    return warehouse, outcome.run


def test_settings_are_those_of_the_plan(swept):
    warehouse, run = swept
    found = select(warehouse, f"SELECT * FROM proposer_settings WHERE run = '{run}' ORDER BY proposer")
    assert [row["method"] for row in found].count("none") == 1 and len(found) == 13
    lookups = {
        (row["prompt_lookup_min"], row["prompt_lookup_max"], row["num_speculative_tokens"])
        for row in found
        if row["method"] == "ngram"
    }
    assert lookups == {(low, top, k) for low in (1, 2) for top in (2, 4) for k in (1, 3, 12)}
    keys = {(row["proposer"], row["proposer_key"]) for row in found}
    summary = select(warehouse, f"SELECT proposer, proposer_key FROM proposer_summary WHERE run = '{run}'")
    assert keys == {(row["proposer"], row["proposer_key"]) for row in summary}


@pytest.mark.parametrize("number", ["tokens_per_step", "coverage"])
@pytest.mark.parametrize("workload", [None, "edit"])
def test_a_cell_per_lookup_says_what_the_views_say(swept, open_app, number, workload):
    warehouse, run = swept
    app = choose(open_app(warehouse.root), run).switch_page(SWEEP).run()
    widget(app.selectbox, "sweep_workload").set_value(workload)
    app.radio(key="number").set_value(number)
    app.run()
    assert not app.exception
    where = f"scope = 'workload' AND workload = '{workload}'" if workload else "scope = 'all'"
    wanted = select(
        warehouse,
        "SELECT * FROM group_summary JOIN proposer_settings USING (run, proposer) "
        f"WHERE run = '{run}' AND {where} AND method = 'ngram'",
    )
    cells = {(cell["window"], cell["num_speculative_tokens"], cell[number]) for cell in values(app)}
    assert cells == {
        (f"{row['prompt_lookup_min']} to {row['prompt_lookup_max']}", row["num_speculative_tokens"], row[number])
        for row in wanted
    }
    assert len(cells) == 12
    (spec, _), *_ = charts(app)
    assert spec["layer"][0]["encoding"]["color"]["field"] == number
    assert spec["layer"][0]["encoding"]["y"]["sort"] == ["1 to 2", "1 to 4", "2 to 2", "2 to 4"]


def test_a_run_without_a_sweep_says_how_to_make_one(swept, open_app):
    warehouse, run = swept
    (other,) = [row["run"] for row in select(warehouse, "SELECT run FROM run_info") if row["run"] != run]
    app = choose(open_app(warehouse.root), other).switch_page(SWEEP).run()
    assert not app.exception
    assert "holds no sweep" in app.info[0].value and "prompt_lookup_max = [4, 5]" in app.code[0].value
    assert not app.switch_page(POSITIONS).run().exception
