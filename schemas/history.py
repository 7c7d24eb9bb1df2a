"""Whose earlier requests a proposer may copy from: `history = { … }` of a proposer in the config.

Only for methods that keep a history across requests (suffix), in recorded replay. Knows settings, names and keys; how
requests are dealt out to servers stands in `pipeline.history`.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from schemas.errors import InputError
from schemas.speculative import expand, unknown_key


class Days(BaseModel):
    """Days of the replayed trace (UTC, by arrival), both included; None = no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    from_: date | None = Field(None, alias="from")
    to: date | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "Days":
        if self.from_ is None and self.to is None:
            raise ValueError("needs from, to or both")
        if self.from_ and self.to and self.from_ > self.to:
            raise ValueError(f"from {self.from_} is after to {self.to}")
        return self

    def __str__(self) -> str:
        if self.to is None:
            return f"since {self.from_}"
        return f"until {self.to}" if self.from_ is None else f"{self.from_} to {self.to}"


class History(BaseModel):
    """Scope of history, spread over serving replicas, and what was served before. The defaults are a lone vLLM."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: Literal["global", "tenant", "none"] = "global"
    """Who shares a tree of earlier outputs: all requests, those of one tenant, or nobody (there is none)."""
    replicas: int = Field(1, ge=1, lt=2**31)
    """Servers that the requests are spread over, each with trees of its own."""
    routing: Literal["session", "round_robin"] = "session"
    """session: a session's requests (or a request without one) all go where a hash of its id says; round_robin: each
    request to the next server, in arrival order."""
    warm_with: str | Days | None = None
    """Served first and not counted: another trace, or earlier days of the same. None = the servers start empty."""

    @property
    def words(self) -> str:
        """What to add to a proposer's default name, "" for the defaults.

        >>> History(scope="tenant", replicas=4, warm_with="last-week").words
        ' · tenant · 4 replicas · warm last-week'
        """
        parts = [] if self.scope == "global" else ["no history" if self.scope == "none" else self.scope]
        if self.replicas > 1:
            parts.append(f"{self.replicas} replicas" + (" round robin" if self.routing == "round_robin" else ""))
        if self.warm_with is not None:
            parts.append(f"warm {self.warm_with}")
        return "".join(f" · {part}" for part in parts)

    def key(self, proposer_key: str) -> str:
        """A proposer's key with its history in it, 12 hex digits."""
        return hashlib.sha256((proposer_key + json.dumps(self.as_dict(), sort_keys=True)).encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return self.model_dump(mode="json", by_alias=True)


def histories(given: Any, settings: Mapping, live: bool, where: str) -> list[History | None]:
    """What `history = given` asks for, a list value being a grid; None = the defaults, with which nothing changes.

    Settings that make no difference are the defaults, so that a grid holds each case once: a scope of nobody has no
    replicas and nothing to warm, one replica has no routing.

    Args:
        given: from the config file; None = not there.
        settings: effective settings of the proposer.
        live: whether an engine generates afresh.
        where: what to call it in errors.

    Raises:
        InputError: unknown key (with the nearest known one), impossible value, or a proposer without shared history.
    """
    if given is None:
        return [None]
    if not isinstance(given, dict):
        raise InputError(f'{where}: history = {given!r} must be a table, for example {{ scope = "tenant" }}')
    for key in given:
        if key not in History.model_fields:
            raise unknown_key(f"{where}: history", key, History.model_fields)
    if live:
        raise InputError(
            f'{where}: history is for kind = "recorded": a live engine keeps its own, over all requests it is sent'
        )
    if (method := settings["method"]) != "suffix":
        raise InputError(
            f"{where}: history needs a method that learns from earlier requests (suffix); {method} does not"
        )
    if not settings["suffix_decoding_max_cached_requests"]:
        raise InputError(f"{where}: with suffix_decoding_max_cached_requests = 0 there is no history")
    found: dict[History, None] = {}
    for one in expand(given):
        try:
            history = History.model_validate(one)
        except ValidationError as error:
            # a table for warm_with is meant as days, not as the name of a trace
            first = next((e for e in error.errors() if e["loc"][1:2] != ("str",)), error.errors()[0])
            key = first["loc"][0] if first["loc"] else ""
            message = first["msg"].removeprefix("Value error, ")
            raise InputError(f"{where}: history.{key} = {one.get(key)!r}: {message}") from None
        found[_simplest(history)] = None
    return [None if history == History() else history for history in found]


def _simplest(history: History) -> History:
    if history.scope == "none":
        return History(scope="none")
    return history.model_copy(update={"routing": "session"}) if history.replicas == 1 else history
