"""Generations to rows of the canonical trace. Knows no file format and no tokenizer."""

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa

from pipeline.ingest.generation import MAX_ID, Generation, RowRefused
from schemas.tables import TRACE, TRACE_WITH_TEXT

_IDS = ("prompt_token_ids", "output_token_ids", "tail_token_ids")


OURS = frozenset("token_ids reasoning template text hash_ids_fit new_tokens decoding_steps accepted".split())
"""What `extra` may hold when names are hashed: what ingest itself put there."""


def lengths(g: Generation) -> tuple[int, int | None]:
    """(prompt tokens, output tokens or None for a prompt alone), from the ids or as logged.

    Raises:
        RowRefused: the prompt's length is not known, or there is neither a prompt nor an output.
    """
    g.logged_prompt_tokens, g.logged_output_tokens = _size(g.logged_prompt_tokens), _size(g.logged_output_tokens)
    prompt = len(g.prompt_token_ids) if g.prompt_token_ids is not None else g.logged_prompt_tokens
    output = len(g.output_token_ids) if g.output_token_ids is not None else g.logged_output_tokens
    if prompt is None:
        raise RowRefused("prompt", "not in the log, and neither is its length")
    if g.prompt_token_ids is None and output is None:
        raise RowRefused("output", "not in the log, and neither are its length or the prompt")
    return prompt, output


def _size(value: object) -> int | None:
    """A length as logged; what is none is as good as not logged."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ID
    return value if fits else None


def kind(g: Generation, output: int | None) -> str:
    """What a request holds, as it is counted apart."""
    if output == 0:
        return "no output tokens (never replayed)"
    if g.output_token_ids is None:
        return "lengths only" if output is not None else "prompt only"
    return "replayable" if g.prompt_token_ids is not None else "output without its prompt"


def weight(g: Generation) -> int:
    """Characters that are to be tokenised, roughly; history is shared between the turns of a session."""
    texts = [m["content"] for m in g.messages or ()] + [g.prompt_text or "", g.output_text or ""]
    ids = sum(len(i) for i in (g.prompt_token_ids, g.output_token_ids) if i is not None)
    return sum(map(len, texts)) + 4 * ids


def digest(g: Generation) -> int:
    """64 bits over what was asked and put out: two rows with one name and one digest are one generation told twice."""
    state = hashlib.blake2b(digest_size=8)
    for name in _IDS:
        ids = getattr(g, name)
        state.update(b"-" if ids is None else len(ids).to_bytes(4) + ids.tobytes())
    if g.prompt_token_ids is None or g.output_token_ids is None:
        state.update(repr((g.logged_prompt_tokens, g.logged_output_tokens)).encode())
    return int.from_bytes(state.digest())


def hasher(key: str | None) -> Callable[[str, str | None], str | None]:
    """A function (kind of name, name) → name as it is kept: the name itself, or its keyed hash (32 hex digits)."""
    if key is None:
        return lambda kind, name: name
    return lambda kind, name: (
        None
        if name is None
        else hmac.new(key.encode(), f"{kind}\0{name}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:32]
    )


def table(
    rows: Sequence[tuple[Generation, str, int]],
    tokenizer: str | None,
    keep_text: bool,
    hashed: Callable[[str, str | None], str | None],
) -> pa.Table:
    """Rows of the canonical trace.

    Args:
        rows: (generation, file, row) with its ids or lengths filled in and its time placed.
        tokenizer: fingerprint, for rows whose ids it made.
        keep_text: add `prompt_text` and `output_text`.
        hashed: see `hasher`.
    """
    generations = [g for g, _, _ in rows]
    sizes = [lengths(g) for g in generations]
    made = [g.extra.get("token_ids") == "tokenised" for g in generations]
    columns: dict[str, list | pa.Array] = {
        "request_id": [hashed("request", g.request_id) for g in generations],
        "session_id": [hashed("session", g.session_id) for g in generations],
        "tenant": [hashed("tenant", g.tenant) for g in generations],
        "prompt_tokens": [prompt for prompt, _ in sizes],
        "output_tokens": [output for _, output in sizes],
        "sampling": [_json(g.sampling) if g.sampling else None for g in generations],
        "tokenizer": [g.tokenizer or (tokenizer if m else None) for g, m in zip(generations, made, strict=True)],
        "source_file": [file for _, file, _ in rows],
        "source_row": [row for _, _, row in rows],
        "extra": [_json(_extra(g)) for g in generations],
    }
    columns |= {name: _lists([getattr(g, name) for g in generations]) for name in _IDS}
    schema = TRACE_WITH_TEXT if keep_text else TRACE
    for field in schema:
        if field.name not in columns:
            columns[field.name] = [getattr(g, field.name) for g in generations]
    return pa.table([_array(columns[f.name], f.type) for f in schema], schema=schema)


def _extra(g: Generation) -> dict:
    """What the source held besides; lengths as logged stay where the ids say otherwise."""
    whose = "none" if g.prompt_token_ids is None and g.output_token_ids is None else "given"
    extra = {"token_ids": whose} | g.extra
    for side, ids in (("prompt", g.prompt_token_ids), ("output", g.output_token_ids)):
        logged = getattr(g, f"logged_{side}_tokens")
        if ids is not None and logged is not None and logged != len(ids):
            extra[f"logged_{side}_tokens"] = logged
    return extra


def _json(value: dict) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, default=_plain)


def _plain(value: object) -> object:
    """Numpy's numbers and arrays (from Parquet) as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(type(value).__name__)


def _array(values: list | pa.Array, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _lists(columns: list[np.ndarray | None]) -> pa.ListArray:
    offsets = np.zeros(len(columns) + 1, np.int32)
    np.cumsum([0 if ids is None else len(ids) for ids in columns], out=offsets[1:])
    there = [ids for ids in columns if ids is not None]
    flat = np.concatenate(there) if there else np.empty(0, np.int32)
    missing = pa.array([ids is None for ids in columns])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, pa.int32()), mask=missing)
