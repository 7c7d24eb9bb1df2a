"""The pages through app.py, in Streamlit's own harness: what is drawn is what SQL says."""

import json

import pyarrow as pa
import pytest
from logged_runs import commit, random_run

from pipeline.views import connect, query
from pipeline.warehouse import Warehouse

POSITIONS = "pages/positions.py"


def charts(app) -> list[tuple[dict, list[dict]]]:
    """Each chart's specification, and the rows of its last layer (Streamlit sends them apart, as Arrow)."""
    found = []
    for chart in app.get("vega_lite_chart"):
        spec = json.loads(chart.proto.spec)
        layer = spec["layer"][-1] if "layer" in spec else spec
        name = layer.get("data", spec.get("data"))["name"]
        (sent,) = [d.data.data for d in chart.proto.datasets if d.name == name]
        found.append((spec, pa.ipc.open_stream(sent).read_all().to_pylist()))
    return found


def values(app, number: int = 0) -> list[dict]:
    return charts(app)[number][1]


def select(house, sql: str) -> list[dict]:
    return query(connect(house), sql).to_pylist()


def choose(app, run: str):
    return app.selectbox(key="run").set_value(run).run()


def widget(widgets, name: str):
    """The filter of that name, whatever the run."""
    (found,) = [w for w in widgets if w.key.split()[0] == name]
    return found


def test_coverage_page_shows_what_the_views_say(house, open_app):
    app = choose(open_app(house.root), "2A1")
    assert not app.exception
    assert app.title[0].value == "Coverage against acceptance"
    summary = select(house, "SELECT * FROM proposer_summary WHERE run = '2A1' ORDER BY tokens_per_step DESC, proposer")
    assert [m.value for m in app.metric] == [f"{row['tokens_per_step']:.2f}" for row in summary]
    points = values(app)
    wanted = select(house, "SELECT * FROM workload_summary WHERE run = '2A1' AND mean_acceptance_length IS NOT NULL")
    key = ("proposer", "workload", "coverage", "mean_acceptance_length", "tokens_per_step", "rounds", "steps")
    assert {tuple(p[k] for k in key) for p in points} == {tuple(w[k] for k in key) for w in wanted}
    table = app.dataframe[0].value
    assert table["proposer"].tolist() == [row["proposer"] for row in summary]
    assert table["steps"].tolist() == [row["steps"] for row in summary]
    cost = {r["proposer"]: r["speedup_over_none"] for r in select(house, "SELECT * FROM cost_summary")}
    assert dict(zip(table["proposer"], table["speedup_over_none"], strict=True)) == cost


def test_intervals_are_shown_and_few_sessions_marked(house, open_app):
    app = choose(open_app(house.root), "2A1")
    (table,) = [d.value for d in app.dataframe if "tokens_per_step_low" in d.value]
    wanted = select(house, "SELECT * FROM proposer_summary WHERE run = '2A1'")
    rows = {row["proposer"]: row for row in table.to_dict("records")}
    for row in wanted:
        shown = rows[row["proposer"]]
        assert shown["sessions"] == row["sessions"]
        assert shown["tokens_per_step_low"] == row["tokens_per_step_low"]
        assert shown["tokens_per_step_high"] == row["tokens_per_step_high"]
    few = [row["proposer"] for row in wanted if row["effective_sessions"] < 30]
    told = [c.value for c in app.caption if "Few sessions" in c.value]
    assert few and len(told) == 1 and all(name.split()[0] in told[0] for name in few)


def test_points_lie_on_the_curve_of_their_tokens_per_step(house, open_app):
    """E/S = 1 + coverage × (mean acceptance length − 1), up to filler that was accepted and tokens cut off."""
    app = choose(open_app(house.root), "007")
    for p in values(app):
        on_curve = 1 + p["coverage"] * (p["mean_acceptance_length"] - 1)
        off = (p["engine_accepted"] - p["accepted"] - p["overrun"]) / p["steps"]
        assert p["tokens_per_step"] == pytest.approx(on_curve + off)


@pytest.mark.parametrize("workload", [None, "edit"])
@pytest.mark.parametrize("tenant", [None, "acme", "(none)"])
def test_filters_are_exact(house, open_app, workload, tenant):
    app = choose(open_app(house.root), "007")
    widget(app.selectbox, "workload").set_value(workload)
    widget(app.selectbox, "tenant").set_value(tenant)
    app.run()
    assert not app.exception
    where = " AND ".join(
        f"{column} = '{value}'" for column, value in (("workload", workload), ("tenant", tenant)) if value
    )
    sums = select(
        house,
        "SELECT proposer, sum(steps)::bigint AS steps, sum(rounds)::bigint AS rounds, count(*) AS requests "
        f"FROM request_summary WHERE run = '007' AND {where or 'true'} GROUP BY proposer",
    )
    table = app.dataframe[0].value
    found = table[["proposer", "steps", "rounds", "requests"]].to_dict("records")
    assert sorted(found, key=lambda r: r["proposer"]) == sorted(sums, key=lambda r: r["proposer"])
    assert {p["workload"] for p in values(app)} == ({workload} if workload else {"edit", "extract", "chat [8B]: v1.2"})


def test_choosing_proposers(house, open_app):
    app = choose(open_app(house.root), "2A1")
    widget(app.multiselect, "proposers").set_value(["suffix"]).run()
    assert not app.exception
    assert {p["proposer"] for p in values(app)} == {"suffix"}
    assert app.dataframe[0].value["proposer"].tolist() == ["suffix"]


def test_choosing_nothing_says_so(house, open_app):
    app = open_app(house.root)
    widget(app.multiselect, "proposers").set_value([]).run()
    assert not app.exception
    assert not charts(app)
    assert "Nothing to show" in app.info[0].value
    app.switch_page(POSITIONS).run()
    widget(app.multiselect, "position_proposers").set_value([]).run()
    assert not app.exception
    assert "Nothing to show" in app.info[0].value


def test_positions_page_shows_what_the_views_say(house, open_app):
    app = open_app(house.root)
    app.switch_page(POSITIONS).run()
    choose(app, "2A1")
    assert not app.exception
    shown = charts(app)
    assert [spec["encoding"]["y"]["field"] for spec, _ in shown] == [
        "unconditional",
        "conditional",
        "attempted",
    ]
    wanted = select(house, "SELECT * FROM proposer_positions WHERE run = '2A1'")
    for (_, rows), rate in zip(shown, ("unconditional", "conditional", "attempted"), strict=True):
        found = {(p["proposer"], p["position"], p[rate]) for p in rows}
        assert found == {(w["proposer"], w["position"], w[rate]) for w in wanted}
    widget(app.selectbox, "position_workload").set_value("edit").run()
    wanted = select(house, "SELECT * FROM position_summary WHERE run = '2A1' AND workload = 'edit'")
    found = {(p["proposer"], p["position"], p["conditional"]) for p in values(app, 1)}
    assert found == {(w["proposer"], w["position"], w["conditional"]) for w in wanted}


def test_positions_by_workload(house, open_app):
    app = open_app(house.root)
    app.switch_page(POSITIONS).run()
    choose(app, "007")
    app.segmented_control(key="compare").set_value("workloads").run()
    widget(app.selectbox, "position_proposer").set_value("suffix").run()
    assert not app.exception
    wanted = select(house, "SELECT * FROM position_summary WHERE run = '007' AND proposer = 'suffix'")
    found = {(p["series"], p["position"], p["attempted"]) for p in values(app, 2)}
    assert found == {(w["workload"], w["position"], w["attempted"]) for w in wanted}


def test_a_proposer_that_never_proposed_is_named_not_drawn(house, open_app):
    app = choose(open_app(house.root), "odd")
    assert not app.exception
    assert "never" not in {p["proposer"] for p in values(app)}
    assert any("No point" in c.value and "never" in c.value for c in app.caption)
    app.switch_page(POSITIONS).run()
    assert any("No curve" in c.value and "never" in c.value for c in app.caption)


def test_a_run_committed_meanwhile_appears(tmp_path, open_app):
    warehouse = Warehouse(tmp_path / "w")
    commit(warehouse, "a", random_run(1, 5), finished=False)
    app = open_app(warehouse.root)
    assert app.selectbox(key="run").options == ["a"]
    assert "unfinished" in app.warning[0].value
    commit(warehouse, "b", random_run(2, 5))
    assert "b" in app.run().selectbox(key="run").options


def test_an_empty_warehouse_says_what_to_do(tmp_path, open_app):
    app = open_app(tmp_path)
    assert not app.exception
    assert app.title[0].value == "No run yet"
    assert "specreplay replay" in app.code[0].value


def test_a_missing_warehouse_is_one_line(tmp_path, open_app):
    app = open_app(tmp_path / "nowhere")
    assert not app.exception
    assert "no warehouse at" in app.error[0].value


def test_a_damaged_file_is_one_line_that_names_it(tmp_path, open_app):
    warehouse = Warehouse(tmp_path / "w")
    commit(warehouse, "a", random_run(1, 5))
    with open(warehouse.files("decode_steps")[0], "r+b") as file:  # noqa: PTH123
        file.truncate(40)
    app = open_app(warehouse.root)
    assert not app.exception
    assert "decode_steps" in app.error[0].value


def test_a_run_with_a_plan_alone(tmp_path, open_app):
    warehouse = Warehouse(tmp_path / "w")
    warehouse.write_plan(
        "a", {"trace": {"name": "t"}, "engine": {"kind": "recorded", "runner": "v1"}, "label": "recorded"}
    )
    app = open_app(warehouse.root)
    assert not app.exception
    assert "Nothing to show" in app.info[0].value
    app.switch_page(POSITIONS).run()
    assert not app.exception
