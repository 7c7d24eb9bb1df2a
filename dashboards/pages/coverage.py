"""First page: how often a proposer proposes, set against how far its candidates go."""

import streamlit as st

from dashboards import charts, columns, data, frame
from pipeline.report_notes import proposer_warnings
from pipeline.report_tables import FEW_SESSIONS, few_sessions

_HEADLINES = 4

run = frame.run_of("coverage")
concurrency = frame.concurrency_of(run)
names = data.values(run, "proposer")

st.title("Coverage against acceptance")
st.markdown(
    "Acceptance only looks at steps that proposed something. **Tokens per step** counts the misses too: "
    "it is what a user gets, and it grows along the dashed curves."
)
with st.sidebar:  # keys hold the run: another run has other proposers, and starts unfiltered
    chosen = st.multiselect("Proposers", names, default=names, key=f"proposers {run}")
    workload = st.selectbox(
        "Workload",
        [data.ALL, *data.values(run, "workload")],
        format_func=lambda w: w or "all workloads",
        key=f"workload {run}",
    )
    tenant = st.selectbox(
        "Tenant", [data.ALL, *data.values(run, "tenant")], format_func=lambda t: t or "all tenants", key=f"tenant {run}"
    )

summary = data.only(data.proposers(run, concurrency, workload, tenant), "proposer", chosen)
points = data.only(data.points(run, concurrency, workload, tenant), "proposer", chosen)
if not summary.num_rows:
    st.info("Nothing to show: choose at least one proposer, or a workload and tenant that have requests in common.")
    st.stop()

best = summary.slice(0, _HEADLINES).to_pylist()
for column, row in zip(st.columns(max(len(best), 2)), best, strict=False):
    with column.container(border=True, height="stretch"):
        st.metric(
            columns.literal(row["proposer"]),
            columns.written("tokens_per_step", row["tokens_per_step"]),
            help=columns.HELP["tokens_per_step"],
        )
        speed = row["speedup_over_none"]
        st.caption(
            f"tokens per step · coverage **{columns.written('coverage', row['coverage'])}** · "
            f"mean acceptance length **{columns.written('mean_acceptance_length', row['mean_acceptance_length'])}**"
            + (f" · **{columns.written('speedup_over_none', speed)}** the speed of none" if speed is not None else "")
        )

notes = [f":material/info: {columns.literal(warning)}" for warning in proposer_warnings(summary.to_pylist())]
for note in notes[:_HEADLINES]:
    st.caption(note)
if further := notes[_HEADLINES:]:  # a sweep has dozens, and the chart must not start below them
    with st.expander(f"{len(further)} more such note{'s' * (len(further) != 1)}"):
        for note in further:
            st.caption(note)
if any(r["coverage"] is not None and r["mean_acceptance_length"] is not None for r in points.to_pylist()):
    st.altair_chart(charts.coverage_chart(points, names), width="stretch", key="coverage_chart")
undefined = sorted(
    {r["proposer"] for r in points.to_pylist() if r["mean_acceptance_length"] is None and r["rounds"] == 0}
)
if undefined:
    listed = ", ".join(map(columns.literal, undefined))
    st.caption(f"No point where nothing was ever proposed (mean acceptance length is undefined): {listed}.")
unknown = sorted({r["proposer"] for r in points.to_pylist() if r["steps"] is None or r["rounds"] is None})
if unknown:
    listed = ", ".join(map(columns.literal, unknown))
    st.caption(f"No point where coverage is unknown (imported counts do not say steps or rounds): {listed}.")

st.subheader("Per proposer")
st.caption("Pooled: ratios of sums over all requests chosen. Hover a column's name for its formula.")
reused = ["prefix_cache_hit_tokens"] if any(summary["prefix_cache_hit_tokens"].to_pylist()) else []
extra = ["speedup_over_none", "us_per_emitted_token", *reused, "equal_outputs"]
columns.table(summary, ["proposer", *columns.RATIOS, *extra, *columns.COUNTS], key="proposer_table")
few = [row["proposer"] for row in summary.to_pylist() if few_sessions(row)]
with st.expander("95 % intervals, over sessions"):
    if few:
        st.caption(
            f":material/info: Few sessions, take as rough (under {FEW_SESSIONS}, or a few long ones rule): "
            + ", ".join(map(columns.literal, few))
        )
    columns.intervals(summary, key="interval_table")
with st.expander("Mean of the requests' own numbers"):
    st.caption("Long requests rule a pooled ratio; here each request counts once, where its number is defined.")
    columns.per_request(summary, key="per_request_table")

st.subheader("By workload")
columns.table(points, ["workload", "proposer", *columns.RATIOS, *columns.COUNTS], key="workload_table")

st.subheader("Why nothing was proposed")
misses = data.only(data.misses(run, concurrency, workload), "proposer", chosen)
if misses.num_rows:
    st.caption("All tenants. A bar ends at 1 − coverage.")
    st.altair_chart(charts.miss_chart(misses), width="stretch", key="miss_chart")
elif not unknown:
    st.caption("Every decode step of the proposers chosen proposed something.")
if unknown:
    st.caption("Imported counts say nothing of steps that proposed nothing.")
