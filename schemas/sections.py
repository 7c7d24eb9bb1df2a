"""Three sections of the replay config: [trace], [engine], [run]. Values are taken as TOML has them, never converted.

Knows what one section may hold; what they say together is checked in `schemas.config`.
"""

import re
from datetime import date, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """What every section is: known keys only, frozen, of the type that is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TraceSection(Section):
    """Which requests are replayed."""

    name: str = "demo"
    workload: list[str] = []
    """Only these workloads; empty = all."""
    tenant: list[str] = []
    """Only these tenants; empty = all; "(none)" = rows that name none."""
    date_from: date | None = None
    """First day (UTC, by arrival)."""
    date_to: date | None = None
    """Last day, included."""
    sample: float = Field(1.0, gt=0, le=1)
    """Fraction of sessions, taken whole."""
    seed: int = 0
    max_model_len: int | Literal["none"] = "none"
    """Length limit of prompt + output that the proposers see; the live engine takes the model's own if "none"."""

    @field_validator("date_from", "date_to", mode="before")
    @classmethod
    def _check_day(cls, value: Any) -> date | None:
        if value is None or (isinstance(value, date) and not isinstance(value, datetime)):
            return value
        try:
            return date.fromisoformat(value)
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is no day; write it as 2026-11-24") from None

    @field_validator("max_model_len", mode="before")
    @classmethod
    def _check_limit(cls, value: Any) -> int | str:
        if value == "none" or (type(value) is int and 1 <= value < 2**31):
            return value
        raise ValueError(f'max_model_len = {value!r} must be a whole number from 1, or "none"')


class EngineSection(BaseModel):
    """The engine. Keys besides those named here are vLLM `EngineArgs` (only for kind = "vllm")."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: Literal["recorded", "vllm"] = "recorded"
    runner: Literal["v1", "v2"] = "v1"
    """Which model runner's rules hold (they differ for n-gram)."""
    model: str | None = None
    """Target model: folder or hub name. Recorded replay uses it only to tell exact from proxy."""
    dtype: str | None = None
    """What models compute in: live as vLLM's `EngineArgs` has it; recorded "float32" (the default) or "bfloat16", for a
    draft model, which in vLLM takes the target's."""
    concurrency: int | tuple[int, ...] = 8
    """Sequences in flight at once (live); of several, each is a run of the engine of its own."""
    pace: Literal["closed", "arrival"] = "closed"
    """When a request is sent (live): once another has finished, or when it arrived, by the trace."""
    speed: float = Field(1.0, ge=1e-3, le=1e6, allow_inf_nan=False)
    """How many times faster than recorded requests arrive (pace = "arrival"); 0.001 to 1,000,000."""
    sampling: dict[str, Any] = {}
    """SamplingParams that override the trace's own (live)."""

    @field_validator("concurrency", mode="before")
    @classmethod
    def _check_concurrency(cls, value: Any) -> int | tuple[int, ...]:
        given = value if isinstance(value, list | tuple) else [value]
        if not given:
            raise ValueError("concurrency = []: give a number or a list of numbers, for example [1, 8]")
        for one in given:
            if isinstance(one, bool) or not isinstance(one, int) or not 1 <= one < 2**31:
                raise ValueError(f"concurrency = {one!r} must be a whole number from 1")
        if len(set(given)) < len(given):
            raise ValueError(f"concurrency = {list(given)!r}: each value once")
        return given[0] if len(given) == 1 else tuple(given)

    @model_validator(mode="after")
    def _check_pace(self) -> "EngineSection":
        if self.kind == "recorded":
            if self.pace == "arrival":
                raise ValueError('pace = "arrival" needs an engine: kind = "vllm"')
            for key in (
                "concurrency",
                "sampling",
            ):  # a setting that is passed over would pass for one that was followed
                if key in self.model_fields_set:
                    raise ValueError(f'{key} needs an engine: kind = "vllm"')
        if self.pace == "closed" and self.speed != 1:
            raise ValueError(f'speed = {self.speed!r} needs pace = "arrival": without arrivals nothing is faster')
        return self

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Every concurrency to run, as given."""
        return self.concurrency if isinstance(self.concurrency, tuple) else (self.concurrency,)

    def at(self, concurrency: int) -> "EngineSection":
        """The same engine with this concurrency alone."""
        return self.model_copy(update={"concurrency": concurrency})

    @property
    def engine_args(self) -> dict[str, Any]:
        """The EngineArgs given, without the keys that are ours."""
        return dict(self.model_extra or {}) | ({} if self.dtype is None else {"dtype": self.dtype})


_DEVICE = re.compile(r"\w[\w./:-]*", re.ASCII)
"""A number, or what nvidia-smi calls a GPU or a part of one."""


class RunSection(Section):
    """How the work is spread."""

    executor: Literal["local"] = "local"
    workers: int = Field(2, ge=1)
    """Processes (recorded)."""
    shard_size: int = Field(256, ge=1)
    """Requests per shard, sessions never split (recorded)."""
    devices: tuple[str, ...] = ()
    """One engine at a time on each entry (live): GPUs as CUDA_VISIBLE_DEVICES names them ("0", or "0,1" for one engine
    on two), cores on vLLM's CPU build. Empty = one engine, which sees everything."""
    hang_after_s: float = Field(600.0, ge=0.1, le=1e6, allow_inf_nan=False)
    """An engine that completes no iteration for so many seconds is ended and its unit failed (live); 0.1 to 1,000,000.
    """
    min_equal_outputs: float | None = Field(None, ge=0, le=1)
    """Gate (live): exit code 10 when a smaller share of a proposer's greedy outputs equals those of none."""

    @field_validator("devices", mode="before")
    @classmethod
    def _check_devices(cls, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f'devices = {value!r} must be a list, for example ["0", "1"]')
        entries = [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in value]
        parts: list[str] = []
        for entry in entries:
            if not isinstance(entry, str) or not all(_DEVICE.fullmatch(part.strip()) for part in entry.split(",")):
                raise ValueError(f'devices: {entry!r} must name devices, for example "0" or "0,1"')
            parts += [part.strip() for part in entry.split(",")]
        if twice := sorted({part for part in parts if parts.count(part) > 1}):
            raise ValueError(f"devices: {twice[0]!r} is named twice; an engine needs it to itself")
        return tuple(",".join(part.strip() for part in entry.split(",")) for entry in entries)
