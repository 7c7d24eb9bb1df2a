"""What app.py and its pages agree on: which run is looked at. Draws nothing."""

import streamlit as st

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


def landed_on() -> str | None:
    """The page to come back to, once."""
    return st.session_state.pop(_LANDED, None)
