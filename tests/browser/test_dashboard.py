"""The dashboard as a person meets it: charts drawn, numbers as in SQL, no exception, nothing fetched from outside."""

import io

import numpy as np
import pytest
from logged_runs import Request, Run, Step, commit, random_run
from PIL import Image

from pipeline.views import connect, query
from pipeline.warehouse import Warehouse

pytestmark = pytest.mark.browser

DRAWN = "[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg.marks"
ODD = ("gpt-4.1-nano-2025-04-14", "llama[8B]: *b* $x$", "a.b:c\\d|e")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    warehouse = Warehouse(tmp_path_factory.mktemp("browser") / "it's a [house]")
    commit(warehouse, "007", random_run(4))
    odd = {name: random_run(i, 30).requests["suffix"] for i, name in enumerate(ODD)}
    odd["never"] = [Request([Step(0, 0, miss="too_short")] * 3, r.workload, r.tenant) for r in odd[ODD[0]]]
    commit(warehouse, "odd", Run(odd))
    commit(warehouse, "z-live", random_run(3, live=True))
    return warehouse


@pytest.fixture(scope="module")
def address(serve, house):
    return serve(house.root)


def settle(page, charts: int) -> None:
    """Wait until that many charts are drawn and the script has run to its end."""
    page.wait_for_function(
        "([selector, count]) => document.querySelectorAll(selector).length >= count", arg=[DRAWN, charts]
    )
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    assert page.locator("[data-testid=stException]").count() == 0
    assert page.locator("[data-testid=stAlertContentError]").count() == 0
    assert page.outside == []


def choose(page, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label).first.click()
    page.get_by_role("option", name=option, exact=True).click()


def metrics(page) -> dict[str, str]:
    labels = page.locator("[data-testid=stMetricLabel]").all_inner_texts()
    values = page.locator("[data-testid=stMetricValue]").all_inner_texts()
    return dict(zip((label.strip() for label in labels), (value.strip() for value in values), strict=True))


def in_sql(house, run: str, where: str = "scope = 'all'") -> dict[str, str]:
    rows = query(
        connect(house),
        f"SELECT proposer, tokens_per_step FROM group_summary WHERE run = '{run}' AND {where} "
        "ORDER BY tokens_per_step DESC NULLS LAST, proposer LIMIT 4",
    ).to_pylist()
    return {row["proposer"]: f"{row['tokens_per_step']:.2f}" for row in rows}


def test_a_page_asked_for_by_address_on_a_fresh_server(page, address):
    """First in this module: Streamlit has not met app.py yet and would show the page without its frame."""
    page.goto(f"{address}/positions")
    settle(page, 3)
    assert page.get_by_role("heading", name="Acceptance by position").is_visible()
    assert page.get_by_role("combobox", name="Run").is_visible()


def test_coverage_page_shows_the_numbers_of_sql(page, address, house):
    page.goto(address)
    settle(page, 2)
    assert page.get_by_role("heading", name="Coverage against acceptance").is_visible()
    assert metrics(page) == in_sql(house, "z-live")
    assert page.locator("[data-testid=stDataFrame] canvas").count() >= 2


def test_filters_change_the_numbers(page, address, house):
    page.goto(f"{address}/?run=007")
    settle(page, 2)
    assert metrics(page) == in_sql(house, "007")
    choose(page, "Workload", "edit")
    wanted = in_sql(house, "007", "scope = 'workload' AND workload = 'edit'")
    page.get_by_text(next(iter(wanted.values())), exact=True).first.wait_for()
    settle(page, 2)
    assert metrics(page) == wanted


def test_odd_names_are_drawn_as_they_are_spelled(page, address, house):
    page.goto(f"{address}/?run=odd")
    settle(page, 2)
    assert metrics(page) == in_sql(house, "odd")
    assert set(metrics(page)) == {*ODD, "never"}
    assert page.get_by_text("No point where nothing was ever proposed").is_visible()
    drawn = colours(page.locator("[data-testid=stVegaLiteChart]").first)
    # in order of name: a.b…, gpt…, llama… have points; never has none, for its length is undefined
    assert [drawn[colour] > 50 for colour in ("#2457a8", "#d1570b", "#1a8a5a", "#a53c8b")] == [True, True, True, False]


def colours(chart) -> dict[str, int]:
    """Pixels near each colour of the first four proposers, in the plot (the legend, at the right, left out)."""
    picture = Image.open(io.BytesIO(chart.screenshot())).convert("RGB")
    pixels = np.asarray(picture.crop((0, 0, int(picture.width * 0.78), picture.height)), int)
    found = {}
    for colour in ("#2457a8", "#d1570b", "#1a8a5a", "#a53c8b"):
        wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
        found[colour] = int((np.abs(pixels - wanted).max(axis=2) < 20).sum())
    return found


def test_positions_page_by_clicking(page, address):
    page.goto(address)
    settle(page, 2)
    page.get_by_role("link", name="Positions").click()
    page.get_by_role("heading", name="Acceptance by position").wait_for()
    settle(page, 3)
    for rate in ("Unconditional", "Conditional", "Attempted"):
        assert page.get_by_role("heading", name=rate, exact=True).is_visible()


def test_an_empty_warehouse_says_what_to_do(page, serve, tmp_path):
    page.goto(serve(tmp_path))
    page.get_by_role("heading", name="No run yet").wait_for()
    assert page.locator("[data-testid=stException]").count() == 0
    assert page.outside == []
