"""Second page: how the candidates fare by their position in the draft."""

import streamlit as st

from dashboards import charts, columns, data, frame

_QUESTIONS = {
    "unconditional": "How often do all of the first i go through?",
    "conditional": "If the ones before passed, does this one pass?",
    "attempted": "The same, where that many were proposed.",
}
_FORMULAS = {
    "unconditional": "accepted_at / rounds",
    "conditional": "accepted_at / reached",
    "attempted": "accepted_at / drafted_at",
}

run = frame.run_of("positions")
concurrency = frame.concurrency_of(run)
names, workloads = data.values(run, "proposer"), data.values(run, "workload")

st.title("Acceptance by position")
st.markdown(
    "**Unconditional** is what vLLM's counters show: it can only fall. **Conditional** asks of each candidate alone: "
    "where it stays high to the end, longer drafts may pay."
)
with st.sidebar:  # keys hold the run: another run has other proposers, and starts unfiltered
    compare = st.segmented_control("Compare", ["proposers", "workloads"], default="proposers", key="compare")
    if compare == "workloads":
        proposer = st.selectbox("Proposer", names, key=f"position_proposer {run}")
        chosen = st.multiselect("Workloads", workloads, default=workloads, key=f"position_workloads {run}")
    else:
        workload = st.selectbox(
            "Workload",
            [data.ALL, *workloads],
            format_func=lambda w: w or "all workloads",
            key=f"position_workload {run}",
        )
        chosen = st.multiselect("Proposers", names, default=names, key=f"position_proposers {run}")

by = "workload" if compare == "workloads" else "proposer"
rows = (
    data.workload_positions(run, concurrency, proposer)
    if by == "workload"
    else data.positions(run, concurrency, workload)
)
rows = data.only(rows, by, chosen)
if not rows.num_rows:
    st.info("Nothing to show: nothing was proposed here, nothing is chosen, or the run is imported without positions.")
    st.stop()

domain = workloads if by == "workload" else names
for column, (rate, question) in zip(st.columns(3), _QUESTIONS.items(), strict=True):
    with column:
        st.subheader(rate.capitalize(), help=columns.HELP[rate])
        st.caption(f"{question}  \n`{_FORMULAS[rate]}`")
        st.altair_chart(charts.position_chart(rows, rate, by, domain), width="stretch", key=f"{rate}_chart")

silent = [name for name in chosen if name not in rows[by].to_pylist()]
if silent:
    st.caption(f"No curve, for nothing was proposed: {', '.join(map(columns.literal, silent))}.")
st.subheader("Counts")
st.caption("A rate is n/a where no round came that far.")
counts = ["rounds", "drafted_at", "reached", "accepted_at"]
columns.table(rows, [by, "position", *counts, *_QUESTIONS], key="position_table")
