"""The report: what the views say, written down; nothing cut, nothing invented, undefined said plainly."""

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from logged_runs import Request, Run, Step, commit, random_run

from pipeline.report import FORMATS, render, report
from pipeline.views import connect, query
from pipeline.warehouse import Warehouse
from schemas.errors import InputError


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    warehouse = Warehouse(tmp_path_factory.mktemp("house"))
    commit(warehouse, "a", random_run(1))
    commit(warehouse, "b", random_run(2, live=True))
    return warehouse


def one(tmp_path, run: Run, **how) -> str:
    warehouse = Warehouse(tmp_path / "one")
    commit(warehouse, "r", run, **how)
    return render(report(connect(warehouse)), "table", 100)


def test_golden_case_2_as_a_table(tmp_path):
    text = one(tmp_path, Run({"p": [Request([Step(4, 2), Step(0, 0, miss="no_match"), Step(4, 4)], "edit")]}))
    row = next(line for line in text.splitlines() if line.startswith("p "))
    assert row.split() == ["p", "1", "3", "2", "8", "6", "66.7%", "75.0%", "4.00", "3.00", "n/a"]
    by_workload = next(line for line in text.splitlines() if line.startswith("edit "))
    assert by_workload.split() == ["edit", "p", "1", "3", "2", "8", "6", "66.7%", "75.0%", "4.00", "3.00"]


def test_json_holds_the_views_rows(house):
    con = connect(house)
    text = render(report(con, "b"), "json")
    assert text.count("\n") == 1
    found = json.loads(text)
    rows = query(con, "SELECT * FROM proposer_summary WHERE run = 'b'").to_pylist()
    assert len(found["proposers"]) == len(rows) == 3
    for row in rows:
        (same,) = [p for p in found["proposers"] if p["proposer"] == row["proposer"]]
        assert {k: same[k] for k in row} == row
    cost = {r["proposer"]: r["speedup_over_none"] for r in query(con, "SELECT * FROM cost_summary").to_pylist()}
    assert {p["proposer"]: p["speedup_over_none"] for p in found["proposers"]} == cost
    assert len(found["workloads"]) == query(con, "SELECT * FROM workload_summary WHERE run = 'b'").num_rows


def test_csv_leaves_the_undefined_empty(house):
    found = report(connect(house), "b")
    rows = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    assert len(rows) == len(found.proposers) + len(found.workloads)
    none = next(r for r in rows if r["proposer"] == "none" and not r["workload"])
    assert (none["acceptance_rate"], none["mean_acceptance_length"], none["coverage"]) == ("", "", "0.0")


def test_intervals_and_few_sessions(tmp_path):
    """Two requests, 3 of 4 and 1 of 4 steps with a hit: t with 1 degree of freedom reaches almost everywhere."""
    miss, hit = Step(0, 0, miss="no_match"), Step(2, 2)
    text = one(tmp_path, Run({"p": [Request([hit] * 3 + [miss]), Request([hit] + [miss] * 3)]}))
    block = text.split("95 % intervals")[1].split("By workload")[0]
    row = next(line for line in block.splitlines() if line.startswith("p "))
    # coverage 1/2, half width 12.706 / 4: on the logit 12.706. Tokens per step 2, half width 12.706 / 2: 1 + exp(6.353)
    assert row.split() == ["p", "2", "few", "0.0–100.0%", "100.0–100.0%", "3.00–3.00", "1.00–575.32"]


class _Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.texts = []

    def handle_data(self, data):
        self.texts.append(data)


def test_names_survive_every_format(tmp_path):
    name = '[bold]<b>&amp; | 8B"'
    warehouse = Warehouse(tmp_path / "one")
    commit(warehouse, "r", Run({name: [Request([Step(2, 1)])]}))
    found = report(connect(warehouse))
    assert name in render(found, "table", 110)
    assert json.loads(render(found, "json"))["proposers"][0]["proposer"] == name
    assert next(csv.DictReader(io.StringIO(render(found, "csv"))))["proposer"] == name
    assert name.replace("|", "\\|") in render(found, "markdown")
    page = _Cells()
    page.feed(render(found, "html"))
    assert name in page.texts


def test_a_name_of_several_lines_stays_in_its_row(tmp_path):
    name = "a\n| b\x1b[31m" + "c" * 1000
    warehouse = Warehouse(tmp_path / "one")
    commit(warehouse, "r", Run({name: [Request([Step(2, 1)])]}))
    found = report(connect(warehouse))
    assert next(csv.DictReader(io.StringIO(render(found, "csv"))))["proposer"] == name
    rows = [line for line in render(found, "markdown").splitlines() if "ccc" in line]
    assert all(line.startswith("| ") and "| a\\n\\| b\\x1b[31mccc" in line and line.endswith(" |") for line in rows)
    table = render(found, "table", 110)
    assert "\x1b" not in table and max(map(len, table.splitlines())) <= 130


def test_html_needs_nothing_from_elsewhere(house):
    page = render(report(connect(house)), "html")
    assert "http" not in page and "src=" not in page and "<script" not in page


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_no_number_is_cut_whatever_the_width(house, width, term, monkeypatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    found = report(connect(house), "b")
    big = dict.fromkeys(("steps", "rounds", "drafted", "accepted"), 123_456_789) | {"proposer": "long name " * 6}
    text = render(replace(found, proposers=[{**row, **big} for row in found.proposers]), "table", width)
    assert text.count("123,456,789") == 4 * len(found.proposers) and "…" not in text
    assert text.count("long") >= len(found.proposers)


def test_a_length_that_sits_on_few_steps_is_called_out(tmp_path):
    steps = [Step(4, 3), *[Step(0, 0, miss="no_match")] * 9]
    text = one(tmp_path, Run({"p": [Request(steps)]}))
    assert "p: a mean acceptance length of 4.0 sits on 10.0% of the steps" in text.replace("\n", " ")
    assert "a mean acceptance length" not in one(tmp_path / "2", Run({"p": [Request([Step(4, 3)] * 4)]}))


def test_outputs_that_differ_from_none_are_called_out(house):
    found = report(connect(house), "b")
    for row in found.proposers:
        assert any(w.startswith(f"{row['proposer']}: ") and "equal those" in w for w in found.warnings) == (
            row["equal_outputs"] < 1
        )


@pytest.mark.parametrize(("step_us", "warned"), [(1000, False), (400, True)])
def test_a_speed_that_tokens_per_step_cannot_explain_is_called_out(tmp_path, step_us, warned):
    """2 tokens a step: at equal cost per step 2x; at 0.4 of none's 5x, which no verification can reach."""
    step = {"sequences": 1, "prefill_tokens": 0, "decode_tokens": 1, "draft_tokens": 0, "draft_us": 0}
    iterations = {
        "none": [{**step, "emitted": 1, "step_us": 1000, "verify_us": 1000}] * 4,
        "p": [{**step, "emitted": 2, "step_us": step_us, "verify_us": step_us}] * 2,
    }
    requests = {"none": [Request([], output_tokens=5)], "p": [Request([Step(1, 1)] * 2)]}
    text = one(tmp_path, Run(requests, 1, iterations))
    assert ("tokens per step can explain" in " ".join(text.split())) == warned


def test_an_unfinished_run_says_so(tmp_path):
    assert "this run is unfinished" in one(tmp_path, random_run(1), finished=False)


def test_the_latest_run_is_the_one_started_last(house):
    assert report(connect(house)).run == "b"


def test_an_unknown_run_lists_those_there_are(house):
    with pytest.raises(InputError, match="no run 'c'; there are: a, b"):
        report(connect(house), "c")


def test_no_run_at_all(tmp_path):
    tmp_path.joinpath("w").mkdir()
    with pytest.raises(InputError, match="no run yet"):
        report(connect(Warehouse(tmp_path / "w")))


def test_unknown_format_names_those_there_are(house):
    with pytest.raises(InputError, match=", ".join(FORMATS)):
        render(report(connect(house)), "xml")
