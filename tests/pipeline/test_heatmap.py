"""The heat map at the end of a report: a cell per lookup, from a real replay of a small grid."""

import re
from dataclasses import replace

import pytest
from small_traces import NGRAM, config, rows, table

from pipeline.heatmap import heat_map
from pipeline.report import render, report
from pipeline.run import replay
from pipeline.views import connect
from pipeline.warehouse import Warehouse

GRID = NGRAM | {"prompt_lookup_min": [1, 2], "prompt_lookup_max": 3, "num_speculative_tokens": [1, 3, 12]}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    warehouse = Warehouse(tmp_path_factory.mktemp("heat") / "house")
    warehouse.write_trace("small", [table(rows(40))])
    return warehouse


def test_a_grid_ends_its_report_with_two_heat_maps(house):
    outcome = replay(config({}, GRID), house)
    found = report(connect(house), outcome.run)
    shown = render(found)
    value = {
        (row["prompt_lookup_min"], row["num_speculative_tokens"]): row["tokens_per_step"]
        for row in found.proposers
        if row["method"] == "ngram"
    }
    text = shown.split("tokens per step, by window and candidates\n")[1]
    head, *lines = [line.split() for line in text.splitlines()[:3]]
    assert head == ["window", "k=1", "k=3", "k=12"]
    for low, line in zip((1, 2), lines, strict=True):
        assert line == [str(low), "to", "3", *(f"{value[low, k]:.2f}" for k in (1, 3, 12))]
    assert re.search(r"coverage, by window and candidates\nwindow +k=1 +k=3 +k=12\n1 to 3( +\d+\.\d%){3}\n", shown)


def test_a_grids_notes_do_not_bury_its_maps(house):
    found = report(connect(house), replay(config({}, GRID), house).run)
    many = replace(found, warnings=[f"warning {i}" for i in range(40)])
    lines = render(many).splitlines()
    assert lines[-2:] == ["note: warning 11", "and 28 notes more, all of them in --format json"]
    assert "warning 39" in render(many, "json") and "warning 39" in render(many, "markdown")


def test_one_lookup_is_no_map(house):
    outcome = replay(config({}, NGRAM), house)
    assert "by window and candidates" not in render(report(connect(house), outcome.run))


def test_cells_without_a_lookup_are_empty_and_undefined_ones_say_so():
    made = [
        {"method": "ngram", "prompt_lookup_min": low, "prompt_lookup_max": 4, "num_speculative_tokens": k, "x": x}
        for low, k, x in ((1, 2, None), (2, 3, 0.5))
    ]
    drawn = heat_map([*made, made[0] | {"method": "suffix"}, made[0] | {"x": 3}], "x", lambda v: f"<{v}>")
    assert [[str(cell) for cell in column.cells] for column in drawn.columns] == [
        ["1 to 4 ", "2 to 4 "],
        [" <None> ", ""],
        ["", " <0.5> "],
    ]
    assert heat_map(made[:1], "x", str) is None and heat_map([], "x", str) is None
