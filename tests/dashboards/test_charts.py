"""Charts and cells as functions of rows: curves where the arithmetic puts them, undefined values as gaps."""

import altair as alt
import pyarrow as pa
import pytest

from dashboards.charts import coverage_chart, miss_chart, position_chart
from dashboards.columns import literal, written
from pipeline.views import connect, query


def rows(house, sql: str) -> pa.Table:
    return query(connect(house), sql)


def layers(chart: alt.TopLevelMixin) -> list[list[dict]]:
    spec = chart.to_dict()
    return [spec["datasets"][layer.get("data", spec.get("data"))["name"]] for layer in spec["layer"]]


def test_a_curve_is_one_level_of_tokens_per_step(house):
    table = rows(house, "SELECT * FROM workload_summary WHERE run = '007'")
    curves, names, _, points = layers(coverage_chart(table, ["suffix"]))
    assert {c["level"] for c in curves} == {float(n["text"]) for n in names}
    for c in curves:
        assert 1 + c["coverage"] * (c["mean_acceptance_length"] - 1) == pytest.approx(c["level"])
    top = max(p["mean_acceptance_length"] for p in points) * 1.06
    assert all(c["mean_acceptance_length"] <= top + 1e-9 for c in curves)
    assert len(points) == table.num_rows


def test_rows_without_a_length_have_no_point(house):
    table = rows(house, "SELECT * FROM workload_summary WHERE run = '2A1'")
    points = layers(coverage_chart(table, ["none", "suffix"]))[-1]
    assert "none" not in {p["proposer"] for p in points}
    assert all(p["mean_acceptance_length"] is not None for p in points)


def test_no_rows_give_a_chart_without_points(house):
    empty = rows(house, "SELECT * FROM workload_summary WHERE false")
    assert layers(coverage_chart(empty, []))[-1] == []


def test_names_are_values_never_fields(house):
    table = rows(house, "SELECT * FROM workload_summary WHERE run = 'odd'")
    positions = rows(house, "SELECT * FROM proposer_positions WHERE run = 'odd'")
    for chart in (
        coverage_chart(table, table["proposer"].to_pylist()),
        position_chart(positions, "conditional", "proposer", positions["proposer"].to_pylist()),
        miss_chart(rows(house, "SELECT * FROM miss_reasons WHERE run = 'odd'")),
    ):
        assert all(field.isidentifier() for field in _fields(chart.to_dict()))


def _fields(node) -> list[str]:
    if isinstance(node, list):
        return [f for item in node for f in _fields(item)]
    if not isinstance(node, dict):
        return []
    own = [node["field"]] if isinstance(node.get("field"), str) else []
    return own + [f for key, item in node.items() if key != "data" for f in _fields(item)]


def test_an_undefined_rate_leaves_a_gap(house):
    table = pa.table(
        {
            "proposer": ["p", "p"],
            "position": [1, 2],
            "rounds": [2, 2],
            "drafted_at": [2, 1],
            "reached": [2, 0],
            "accepted_at": [0, 0],
            "unconditional": [0.0, 0.0],
            "attempted": [0.0, 0.0],
            "conditional": pa.array([0.0, None], pa.float64()),
        }
    )
    (found,) = position_chart(table, "conditional", "proposer", ["p"]).to_dict()["datasets"].values()
    assert [row["conditional"] for row in found] == [0.0, None]


def test_a_colour_means_the_same_under_every_filter(house):
    names = ["ngram 2-4 k5", "none", "suffix"]
    scales = []
    for where in ("true", "proposer = 'suffix'"):
        table = rows(house, f"SELECT * FROM workload_summary WHERE run = '2A1' AND {where}")
        scales.append(coverage_chart(table, names).to_dict()["layer"][-1]["encoding"]["color"]["scale"])
    assert scales[0] == scales[1]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("coverage", 2 / 3, "66.7%"),
        ("coverage", None, "n/a"),
        ("coverage", 0.0, "0.0%"),
        ("tokens_per_step", 3.0, "3.00"),
        ("steps", 1234567, "1,234,567"),
        ("speedup_over_none", 1.306, "1.31x"),
    ],
)
def test_numbers_as_text(column, value, text):
    assert written(column, value) == text


def test_markdown_in_names_is_escaped():
    assert literal("a*b*[c](d) $x$ :red[e]") == r"a\*b\*\[c\]\(d\) \$x\$ \:red\[e\]"
