"""Runs of several concurrencies in the dashboard: one is chosen, and every page shows its numbers alone."""

import pytest
from concurrent_runs import AT, commit
from test_pages import choose, select, values

from pipeline.warehouse import Warehouse


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    warehouse = Warehouse(tmp_path_factory.mktemp("several") / "wh")
    commit(warehouse, "both", AT)
    commit(warehouse, "one", {8: AT[8]})
    return warehouse


def test_the_numbers_are_those_of_the_concurrency_chosen(several, open_app):
    app = choose(open_app(several.root), "both")
    box = app.selectbox(key="concurrency both")
    assert [int(option) for option in box.options] == [1, 8]
    for concurrency in (1, 8):
        app.selectbox(key="concurrency both").set_value(concurrency).run()
        assert not app.exception
        where = f"WHERE run = 'both' AND concurrency = {concurrency}"
        wanted = select(several, f"SELECT * FROM proposer_summary {where} ORDER BY tokens_per_step DESC, proposer")
        assert [m.value for m in app.metric] == [f"{row['tokens_per_step']:.2f}" for row in wanted]
        shown = app.dataframe[0].value
        assert shown["steps"].tolist() == [row["steps"] for row in wanted]
        costs = select(several, f"SELECT * FROM cost_summary {where}")
        for column in ("speedup_over_none", "prefix_cache_hit_tokens"):
            assert dict(zip(shown["proposer"], shown[column], strict=True)) == {r["proposer"]: r[column] for r in costs}
        app.switch_page("pages/positions.py").run()
        assert not app.exception
        points = select(several, f"SELECT * FROM proposer_positions {where}")
        key = ("proposer", "position", "rounds", "accepted_at")
        assert {tuple(p[k] for k in key) for p in values(app)} == {tuple(w[k] for k in key) for w in points}
        app.switch_page("pages/coverage.py").run()


def test_a_run_of_one_concurrency_offers_no_choice(several, open_app):
    app = choose(open_app(several.root), "one")
    assert not app.exception and app.metric
    assert "Concurrency" not in [box.label for box in app.selectbox]
