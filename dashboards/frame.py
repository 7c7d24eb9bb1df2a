"""What app.py and its pages agree on: which run is looked at, at which concurrency. Draws nothing."""

import streamlit as st

from dashboards import data

_LANDED = "landed_on"


def run_of(page: str) -> str:
    """The run chosen in app.py.

    A fresh server that is asked for a page's own address runs that page alone, because the folder is called pages;
    app.py then takes over and comes back to `page`, its file's name.
    """
    if "run" not in st.session_state:
        st.session_state[_LANDED] = page
        st.switch_page("app.py")
    return st.session_state["run"]


def concurrency_of(run: str) -> int:
    """The concurrency chosen in app.py, or the only one of the run (1 while nothing of it is committed)."""
    return st.session_state.get(concurrency_key(run)) or next(iter(data.concurrencies(run)), 1)


def concurrency_key(run: str) -> str:
    """The key of app.py's choice; it holds the run, for another run has others."""
    return f"concurrency {run}"


def landed_on() -> str | None:
    """The page to come back to, once."""
    return st.session_state.pop(_LANDED, None)
