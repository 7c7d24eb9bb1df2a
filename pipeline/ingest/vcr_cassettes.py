"""VCR cassettes (YAML or JSON): recorded HTTP interactions, of which each call of a model is one generation.

Bodies are text, bytes or gzip; the prompt is in the request, the answer may be a stream of events.
"""

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

from pipeline.ingest import openai_pairs
from pipeline.ingest.generation import Generation, RowRefused


def matches(record: dict[str, Any]) -> bool:
    """Whether a row is of this format."""
    return isinstance(record.get("interactions"), list)


def generations(record: dict[str, Any], fallback_id: str) -> Iterator[Generation | RowRefused]:
    """The generations of a cassette, in order; interactions that are no call of a model are refused one by one."""
    for i, interaction in enumerate(record["interactions"]):
        where = f"interactions[{i}]"
        if not isinstance(interaction, dict):
            yield RowRefused(where, "not an interaction")
            continue
        try:
            pair = _pair(interaction)
            if not openai_pairs.matches(pair):
                raise RowRefused(where, "not a call of a model in OpenAI's shape")
            yield from openai_pairs.generations(pair, f"{fallback_id}/{i}")
        except RowRefused as refused:
            yield RowRefused(f"{where}.{refused.column}", refused.reason, refused.detail)


def _pair(interaction: dict[str, Any]) -> dict[str, Any]:
    request, response = interaction.get("request") or {}, interaction.get("response") or {}
    status = response.get("status", response.get("status_code"))
    headers = response.get("headers") or {}
    date = next((v for k, v in headers.items() if str(k).lower() == "date"), None)
    return {
        "request": _text(request.get("body")),
        "response": _text(response.get("body", response.get("content"))),
        "status": status.get("code") if isinstance(status, dict) else status,
        "date": date[0] if isinstance(date, list) and date else date,
    }


def _text(body: Any) -> Any:
    if isinstance(body, dict):
        body = body.get("string", body.get("base64_string", body))
    if isinstance(body, str) and body[:2] == "\x1f\x8b":
        body = body.encode("latin-1", "replace")
    if isinstance(body, bytes):
        try:
            body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
            return body.decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            raise RowRefused("body", "cannot be decompressed or is no text") from None
    return body
