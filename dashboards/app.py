"""The dashboard's frame: which run, which page. Started by `launch.py` with the warehouse in the environment."""

import streamlit as st

from dashboards import data
from dashboards.columns import literal
from dashboards.frame import concurrency_key, landed_on
from pipeline.report_notes import labels, run_warnings
from schemas.errors import InputError

st.set_page_config(page_title="specreplay", layout="wide")
pages = {
    "coverage": st.Page("pages/coverage.py", title="Coverage", default=True),
    "positions": st.Page("pages/positions.py", title="Positions"),
    "sweep": st.Page("pages/sweep.py", title="Sweep"),
}
page = st.navigation(list(pages.values()))
if landed := landed_on():
    st.switch_page(pages[landed])

try:
    data.refresh()
    runs = {info["run"]: info for info in data.runs()}
except InputError as error:
    st.title("specreplay")
    st.error(str(error), icon=":material/error:")
    st.stop()
if not runs:
    st.title("No run yet")
    st.info(f"The warehouse {data.warehouse().root} holds no run. Ingest a trace and replay it, then reload this page:")
    st.code(
        "specreplay ingest examples/trace --trace demo --tokenizer examples/models/target\n"
        "specreplay replay examples/configs/recorded.toml",
        language="bash",
    )
    st.stop()

asked = st.query_params.get("run")
with st.sidebar:
    run = st.selectbox(
        "Run",
        list(runs),
        index=list(runs).index(asked) if asked in runs else 0,
        key="run",
    )
    info = runs[run]
    started = f"{info['started']:%Y-%m-%d %H:%M} UTC · " if info["started"] else ""
    parts = [
        f"trace **{literal(info['trace'])}**" if info["trace"] else None,  # an imported run has none
        info["label"],
        f"runner {info['runner']}" if info["runner"] else None,
        info["status"],
        "reconciled" if info["reconciled"] else None,
    ]
    st.caption(started + " · ".join(part for part in parts if part))
    if len(each := data.concurrencies(run)) > 1:
        st.selectbox(
            "Concurrency",
            each,
            key=concurrency_key(run),
            help="Sequences in flight at once. Read latency at the lowest, capacity at the highest.",
        )
    if said := labels(data.labels(run)):
        with st.expander("What these counts are"):
            for line in said:
                st.caption(literal(line))
for warning in run_warnings(info):
    st.warning(literal(warning))
try:
    page.run()
except InputError as error:  # a damaged file: the line names it
    st.error(str(error), icon=":material/error:")
