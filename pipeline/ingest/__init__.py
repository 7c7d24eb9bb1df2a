"""From a team's log to a canonical trace: one file per log format, found by content and not by name.

A format module has `matches(record) -> bool` and `generations(record, fallback_id) -> Iterator[Generation]`; adding a
format is one file and one line in `FORMATS`.
"""

from pipeline.ingest import conversations, token_ids

FORMATS = {"token_ids": token_ids, "conversations": conversations}
"""Tried in this order; recorded ids win over text."""
