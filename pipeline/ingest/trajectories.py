"""Agent trajectories, one per row: tau-bench (`traj` with `task_id` and `trial`) and SWE-agent (`history`).

Every assistant message is one generation. SWE-agent's `trajectory` tells the answers of `history` a second time and is
not read. Names are made of the file and the task, since trials of one task come again in every file.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.ingest.conversations import of_session
from pipeline.ingest.generation import Generation, RowRefused, labels, text_field
from pipeline.ingest.messages import tools


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return isinstance(record.get("traj"), list) or (
        isinstance(record.get("history"), list) and any(k in record for k in ("trajectory", "environment", "info"))
    )


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """One generation per assistant message, in order.

    Raises:
        RowRefused: a message is malformed, or nothing was generated.
    """
    history = record.get("traj", record.get("history"))
    file = fallback_id.rsplit(":", 1)[0]
    task, trial = text_field(record, "task_id", "instance_id"), text_field(record, "trial")
    session = text_field(record, "session_id")
    if session is None:
        session = fallback_id if task is None else f"{file}:{task}" + (f"-{trial}" if trial else "")
    if isinstance(history, list) and any(isinstance(m, dict) and m.get("is_demo") for m in history):
        history = [m for m in history if not (isinstance(m, dict) and m.get("is_demo"))]
    yield from of_session(history, session, labels(record), offered=tools(record.get("tools")))
