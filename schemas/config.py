"""The replay config (TOML): what to replay, on which engine, with which proposers. Every field has a default that runs.

Paths are relative to the config file. A proposer's `config` holds vLLM's `speculative_config` keys, the engine section
vLLM's `EngineArgs` names, `sampling` vLLM's `SamplingParams` names: no translation layer.
"""

import math
import tomllib
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from schemas.errors import InputError
from schemas.history import History, histories
from schemas.sections import EngineSection, RunSection, Section, TraceSection
from schemas.speculative import HYPOTHETICAL, default_name, effective, expand, proposer_key, unknown_key


class Proposer(Section):
    """One proposer: a free name and vLLM's `speculative_config` (as vLLM fills it in), or a combination of such.

    A combination (`hypothetical = { … }`, see `schemas.speculative`) has method "hypothetical".
    """

    name: str
    config: dict[str, Any]
    key: str
    history: History | None = None
    """Whose earlier requests it copies from; None = the defaults, or a method without shared history."""

    @property
    def method(self) -> str:
        """vLLM's method, or "none"."""
        return self.config["method"]


class ReplayConfig(Section):
    """A whole config file, defaults filled in."""

    trace: TraceSection = TraceSection()
    engine: EngineSection = EngineSection()
    proposer: list[Proposer] = Field(default_factory=list)
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _check_names(self) -> "ReplayConfig":
        names = [p.name for p in self.proposer]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"two proposers are called {twice[0]!r}: give each a name of its own")
        return self

    @model_validator(mode="after")
    def _check_limits(self) -> "ReplayConfig":
        ours, theirs = self.trace.max_model_len, self.engine.engine_args.get("max_model_len")
        if theirs is not None and ours not in ("none", theirs):
            raise ValueError(f"[trace] max_model_len = {ours} and [engine] max_model_len = {theirs!r}: give one")
        return self

    @model_validator(mode="after")
    def _check_gate(self) -> "ReplayConfig":
        if self.engine.kind == "recorded":
            if self.run.min_equal_outputs is not None:
                raise ValueError('min_equal_outputs needs an engine, whose outputs it compares: [engine] kind = "vllm"')
            for key in ("devices", "hang_after_s"):
                if key in self.run.model_fields_set:
                    raise ValueError(f'{key} needs an engine: [engine] kind = "vllm"')
        return self


def load(path: Path) -> ReplayConfig:
    """Read and check a config file.

    Raises:
        InputError: no such file, no TOML, unknown key (with the nearest known one), or an impossible value; names
            file, section, key and value.
    """
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error.__class__.__name__})") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: not valid TOML: nested too deep") from None
    return parse(data, path)


def parse(data: dict[str, Any], path: Path) -> ReplayConfig:
    """Check a config given as a dict; `path` names it in errors and anchors relative paths.

    Raises:
        InputError: as `load`.
    """
    sections = {"trace": TraceSection, "run": RunSection}
    for key in data:
        if key not in ReplayConfig.model_fields:
            raise unknown_key(str(path), key, ReplayConfig.model_fields)
        if key != "proposer" and not isinstance(data[key], dict):
            raise InputError(f"{path}: {key} = {data[key]!r} must be a section: [{key}]")
    for section, model in sections.items():
        for key in data.get(section, {}):
            if key not in model.model_fields:
                _refuse_misplaced(path, section, key)
                raise unknown_key(f"{path}: [{section}]", key, model.model_fields)
    data = dict(data)
    engine = dict(data.get("engine", {}))
    _refuse_beyond_json({k: v for k, v in engine.items() if k not in _NUMBERS}, f"{path}: [engine]")
    if "model" in engine:
        engine["model"] = _anchored(engine["model"], path, f"{path}: [engine]")
    for key in engine:
        if key not in _ENGINE_ARGS or engine.get("kind") != "vllm":
            _refuse_misplaced(path, "engine", key)
    if engine.get("kind", "recorded") == "recorded" and (extra := set(engine) - set(EngineSection.model_fields)):
        raise unknown_key(f'{path}: [engine] kind = "recorded"', min(extra), EngineSection.model_fields)
    data["engine"] = engine
    data["proposer"] = _proposers(data.get("proposer", []), engine, path)
    if engine.get("kind", "recorded") == "recorded" and engine.get("dtype", "float32") not in ("float32", "bfloat16"):
        raise InputError(f"{path}: [engine] dtype = {engine['dtype']!r}: recorded replay has float32 and bfloat16")
    try:
        return ReplayConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        value = "" if first["type"] == "value_error" else f" = {first['input']!r}"
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{path}: {where}{value}: {message}".replace(": : ", ": ")) from None


_SECTIONS: dict[str, type[BaseModel]] = {"trace": TraceSection, "engine": EngineSection, "run": RunSection}
_ENGINE_ARGS = ("max_model_len", "seed")
"""Keys of other sections that vLLM's EngineArgs have too."""


def _refuse_misplaced(path: Path, section: str, key: str) -> None:
    """Say where a key belongs that stands in a section which does not know it."""
    if key in _SECTIONS[section].model_fields:
        return
    for other, model in _SECTIONS.items():
        if key in model.model_fields:
            raise InputError(f"{path}: [{section}] {key}: belongs into [{other}]")


_NUMBERS = ("concurrency", "speed")
"""Keys of [engine] whose own rules say what numbers they may be."""
_PROPOSER_KEYS = ("name", "config", "history", "hypothetical")


def _proposers(entries: Any, engine: dict, path: Path) -> list[dict]:
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise InputError(f"{path}: proposers are written as [[proposer]] sections")
    live = engine.get("kind") == "vllm"
    runner = engine.get("runner", "v1")
    out = []
    for i, entry in enumerate(entries):
        where = f"{path}: proposer {entry.get('name', i + 1)!r}"
        for key in entry:
            if key not in _PROPOSER_KEYS:
                raise unknown_key(where, key, _PROPOSER_KEYS)
        _check_name(entry.get("name"), where)
        _refuse_beyond_json({key: value for key, value in entry.items() if key != "history"}, where)
        if "hypothetical" in entry:
            grid = expand(_combination(entry, live, path, where))
        else:
            raw = entry.get("config", {})
            if not isinstance(raw, dict):
                raise InputError(f'{where}: config = {raw!r} must be a table, for example {{ method = "ngram" }}')
            raw = _with_model(raw, path, where)
            if raw.get("method") == HYPOTHETICAL:
                raise InputError(f"{where}: write a combination as hypothetical = {{ of = [ … ] }}, without config")
            grid = expand(raw)
        if not grid:
            raise InputError(f"{where}: a list with nothing in it makes a grid of no proposers")
        every = [effective(settings, where) for settings in grid]
        pairs = [(full, history) for full in every for history in histories(entry.get("history"), full, live, where)]
        for full, history in pairs:
            base = entry.get("name")
            own = default_name(full) + (history.words if history else "")
            name = own if base is None else base if len(pairs) == 1 else f"{base} · {own}"
            if full["method"] == HYPOTHETICAL and HYPOTHETICAL not in name:
                name += f" ({HYPOTHETICAL})"  # the name stands in every result
            key = proposer_key(full, runner)
            out.append({"name": name, "config": full, "key": history.key(key) if history else key, "history": history})
    baseline = {"method": "none"}
    if live and not any(p["config"] == baseline for p in out):
        out.insert(0, {"name": "none", "config": baseline, "key": proposer_key(baseline, runner)})
    return out


def _combination(entry: dict, live: bool, path: Path, where: str) -> dict:
    if "config" in entry:
        raise InputError(f"{where}: has config and hypothetical; a proposer has one of them")
    if live:
        raise InputError(f'{where}: no engine offers a hypothetical combination; it needs [engine] kind = "recorded"')
    raw = entry["hypothetical"]
    if not isinstance(raw, dict):
        raise InputError(f"{where}: hypothetical = {raw!r} must be a table, for example {{ of = [ … ] }}")
    for key in ("method", "num_speculative_tokens"):
        if key in raw:
            raise InputError(f"{where}: {key} belongs to the proposers in `of`")
    of = raw.get("of")
    if isinstance(of, list):
        raw = raw | {"of": [_with_model(member, path, where) if isinstance(member, dict) else member for member in of]}
    return {"method": HYPOTHETICAL} | raw


def _refuse_beyond_json(value: Any, where: str) -> None:
    """Settings travel and are kept as JSON, which has no dates and no inf or nan; no setting of vLLM needs one."""
    if isinstance(value, date | time):
        raise InputError(f"{where} = {value} is a date or a time; write text in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where} = {value} must be a finite number")
    nested = value.items() if isinstance(value, dict) else enumerate(value, 1) if isinstance(value, list) else ()
    for key, inner in nested:
        _refuse_beyond_json(inner, f"{where}: {key}")


def _check_name(name: Any, where: str) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InputError(f"{where}: name = {name!r} must be one line of printable text")


def _with_model(settings: dict, path: Path, where: str) -> dict:
    if "model" in settings and settings.get("method") != "custom_class":
        model = settings["model"]
        models = [_anchored(m, path, where) for m in (model if isinstance(model, list) else [model])]
        return settings | {"model": models if isinstance(model, list) else models[0]}
    return dict(settings)


def _anchored(model: Any, path: Path, where: str) -> str:
    """A folder beside the config file; anything else (an absolute path, a hub name) stays as written."""
    if not isinstance(model, str) or not model:
        raise InputError(f"{where}: model = {model!r} must be a folder or the name of a model")
    beside = path.parent / model
    return str(beside.resolve()) if beside.exists() else model
