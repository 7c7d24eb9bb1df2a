"""Warehouses for the pages: an ordinary one, and one whose names try to break a chart."""

import sys
from pathlib import Path

import pytest
import streamlit as st
from streamlit.runtime.pages_manager import PagesManager
from streamlit.testing.v1 import AppTest, app_test

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))  # logged_runs

from logged_runs import Request, Run, Step, commit, random_run

from pipeline.warehouse import Warehouse

APP = str(Path(__file__).parents[2] / "dashboards" / "app.py")
ODD = ("gpt-4.1-nano-2025-04-14", "llama[8B]: 'x' *b*", "a.b:c\\d|e")


def odd_run() -> Run:
    """Names with dots, brackets, colons and stars; one proposer that never proposed."""
    requests = {name: random_run(i, 30).requests["suffix"] for i, name in enumerate(ODD)}
    requests["never"] = [Request([Step(0, 0, miss="too_short")] * 3, r.workload, r.tenant) for r in requests[ODD[0]]]
    return Run(requests)


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    warehouse = Warehouse(tmp_path_factory.mktemp("dashboard") / "house")
    commit(warehouse, "2A1", random_run(3, live=True))
    commit(warehouse, "007", random_run(4))
    commit(warehouse, "odd", odd_run())
    return warehouse


@pytest.fixture
def open_app(monkeypatch):
    """Open the app on a warehouse, with no cache from another test."""

    class OnlyNavigation(PagesManager):
        """AppTest forgets before every run that app.py uses st.navigation, and would run a page without its frame."""

    monkeypatch.setattr(app_test, "PagesManager", OnlyNavigation)
    # AppTest leaves the app behind as __main__, which every process that a later test spawns would then run.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def start(root) -> AppTest:
        st.cache_data.clear()
        st.cache_resource.clear()
        monkeypatch.setenv("SPECREPLAY_WAREHOUSE", str(root))
        return AppTest.from_file(APP, default_timeout=60).run()

    return start
