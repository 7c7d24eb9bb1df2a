"""Third page: n-gram lookups set side by side, window against number of candidates."""

import streamlit as st

from dashboards import charts, columns, data, frame

run = frame.run_of("sweep")

st.title("Window and number of candidates")
st.markdown(
    "Every n-gram lookup of this run in its cell. A longer shortest window proposes less often and hits more; "
    "more candidates per round (k) put out more tokens per step until they stop being accepted, and each one costs "
    "verification: only a live run tells how much."
)
with st.sidebar:  # keys hold the run: another run has other proposers, and starts unfiltered
    number = st.radio("Number", columns.RATIOS, format_func=columns.title, key="number")
    workload = st.selectbox(
        "Workload",
        [data.ALL, *data.values(run, "workload")],
        format_func=lambda w: w or "all workloads",
        key=f"sweep_workload {run}",
    )
rows = data.lookups(run, frame.concurrency_of(run), workload)
methods = sorted(set(rows["method"].to_pylist()))
if len(methods) > 1:
    with st.sidebar:
        method = st.selectbox("Method", methods, key=f"sweep_method {run}")
    rows = data.only(rows, "method", [method])
if rows.num_rows < 2:
    st.info("This run holds no sweep of n-gram lookups. In a config, a list of values stands for every one of them:")
    st.code(
        "[[proposer]]\n"
        'config = { method = "ngram", prompt_lookup_min = [1, 2, 3], prompt_lookup_max = [4, 5], '
        "num_speculative_tokens = [2, 4, 8] }",
        language="toml",
    )
    st.stop()

best = rows.slice(0, 1).to_pylist()[0]
st.caption(
    f"Most tokens per step: **{columns.literal(best['proposer'])}**, "
    f"{columns.written('tokens_per_step', best['tokens_per_step'])} at a coverage of "
    f"{columns.written('coverage', best['coverage'])}."
)
st.subheader(columns.title(number).capitalize(), help=columns.HELP[number])
st.altair_chart(charts.sweep_chart(rows, number), width="stretch", key="sweep_chart")
st.subheader("Per lookup")
columns.table(rows, ["proposer", *columns.RATIOS, *columns.COUNTS], key="sweep_table")
