"""`--map field=path`: which of the canonical trace's fields is found where in a row, for logs of no known format."""

import difflib
from collections.abc import Sequence
from typing import Any

from pipeline.ingest.generation import RowRefused, structured
from schemas.errors import InputError

CONTENT = ("prompt", "output", "messages", "prompt_token_ids", "output_token_ids", "prompt_tokens", "output_tokens")
"""Fields that say what was asked and put out: mapping one of them makes the row a plain one."""

FIELDS = (
    *CONTENT,
    *"request_id session_id turn sample tenant workload model arrival arrival_offset_us tail_token_ids".split(),
    *"finish_reason sampling tools".split(),
)

_INSTEAD = {
    "prompt": ("instruction", "messages", "conversations", "prompt_token_ids"),
    "output": ("completion", "response", "answer", "generated_text", "output_token_ids"),
    "messages": ("prompt", "instruction", "conversations", "prompt_token_ids"),
}
"""What a mapped field takes the place of."""

PLAIN = ("token-ids", "conversations", "text")
"""Formats a row can have whose content is mapped."""


class Mapping:
    """The mappings of one ingest, and which of them have found something yet."""

    def __init__(self, pairs: Sequence[str]):
        """Take `field=path` texts; a path is dotted, numbers are positions in lists.

        Raises:
            InputError: not of this form, or no such field (with the nearest one).
        """
        self._paths: dict[str, list[str]] = {}
        self.unfound: set[str] = set()
        for pair in pairs:
            field, _, path = pair.partition("=")
            if not path:
                raise InputError(f"--map {pair}: write it as field=path, for example --map output=response.text")
            if field not in FIELDS:
                near = difflib.get_close_matches(field, FIELDS, n=1, cutoff=0.0)
                raise InputError(f"--map {pair}: no field {field!r}; did you mean {near[0]!r}? ({', '.join(FIELDS)})")
            self._paths[field] = path.split(".")
            self.unfound.add(pair)
        self.plain = any(field in CONTENT for field in self._paths)

    def __bool__(self) -> bool:
        return bool(self._paths)

    def overlay(self, record: dict[str, Any]) -> dict[str, Any]:
        """The row with the mapped fields under their canonical names.

        Raises:
            RowRefused: a text on the way looks like JSON and is none.
        """
        found = {}
        for field, path in self._paths.items():
            value = record[".".join(path)] if ".".join(path) in record else _walk(record, path)
            if value is not None:
                found[field] = value
                self.unfound.discard(f"{field}={'.'.join(path)}")
        if not self.plain:
            return record | found
        dropped = {name for field in self._paths for name in _INSTEAD.get(field, ())}
        kept = {k: v for k, v in record.items() if k not in dropped}
        if "prompt_tokens" in found and not any(k in kept | found for k in ("prompt", "messages", "instruction")):
            kept["prompt_token_ids"] = None
        return kept | found


def _walk(value: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(value, str):
            try:
                value = structured(value, step)
            except RowRefused:
                return None
        if isinstance(value, list) and step.isdecimal():
            value = value[int(step)] if int(step) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value
