"""Requests for the live tests, made from Python's own library: code to go on with, edits, chats with a known end.

Models: examples/models, or the folder in SPECREPLAY_TEST_MODELS.
"""

import argparse
import contextlib
import inspect
import json
import os
import textwrap
from collections.abc import Generator, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from replay.live import launch
from replay.live.record import ROW_FIELDS
from replay.recorded.candidates import candidates
from replay.requests import Requests, Tokens
from replay.steps import StepLog
from schemas.config import EngineSection, Proposer
from schemas.speculative import effective, proposer_key
from schemas.tables import MISS_REASONS

MODELS = Path(os.environ.get("SPECREPLAY_TEST_MODELS") or Path(__file__).parents[3] / "examples" / "models")
TARGET, DRAFT = str(MODELS / "target"), str(MODELS / "draft")
MODULES = (textwrap, json, argparse, inspect)

NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 12}
DRAFT_MODEL = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 3}


def proposer(config: dict, name: str | None = None) -> Proposer:
    full = effective(config)
    return Proposer(name=name or full["method"], config=full, key=proposer_key(full, "v1"))


def engine(concurrency: int, **args) -> EngineSection:
    return EngineSection.model_validate({"kind": "vllm", "model": TARGET, "concurrency": concurrency} | args)


def encode(text: str) -> list[int]:
    return Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json")).encode(text).ids


def prompts(count: int, longest: int) -> list[list[int]]:
    """`count` prompts of at most `longest` tokens: a third each of code to go on with, edits and chats."""
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    pieces = []
    for module in MODULES:
        lines = inspect.getsource(module).splitlines(keepends=True)
        pieces += ["".join(lines[i : i + 12]) for i in range(0, len(lines) - 12, 12)]
    out: list[list[int]] = []
    for i, piece in enumerate(pieces * (count // len(pieces) + 1)):
        head, ids = piece[: len(piece) // 3], tokenizer.encode(piece).ids
        if i % 3 == 0:
            made = ids
        elif i % 3 == 1:
            made = tokenizer.encode(piece + "\n\n# The same again:\n" + head).ids
        else:
            code = f"def {_word(piece)}(x):\n    return x + {i}"
            turn = f"<|im_start|>user\n{code}<|im_end|>\n<|im_start|>assistant\n"
            made = tokenizer.encode((turn + f"```python\n{code}\n```<|im_end|>\n") * 3 + turn).ids
        out.append(made[-longest:])
        if len(out) == count:
            return out
    raise AssertionError(f"the library is too short for {count} prompts")


def _word(piece: str) -> str:
    return next((w for w in piece.split() if w.isidentifier()), "f")


def requests(prompts: list[list[int]], max_tokens: list[int]) -> Requests:
    """Prompt-only requests; `max_tokens` bounds each output."""
    return Requests.from_lists(prompts, [[0] * n for n in max_tokens])


def with_sampling(made: Requests, sampling: list[dict]) -> Requests:
    """The same requests with sampling settings of their own."""
    at = made.meta.schema.get_field_index("sampling")
    column = pa.array([json.dumps(s) for s in sampling], pa.string())
    return Requests(made.prompts, made.outputs, made.tails, made.meta.set_column(at, "sampling", column))


@contextlib.contextmanager
def kept(folder: Path) -> Generator[None]:
    """What the engine's process leaves behind stays in `folder`: it alone holds the candidate ids."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch.tempfile, "TemporaryDirectory", lambda **_: contextlib.nullcontext(str(folder)))
        yield


def verified(folder: Path) -> dict[tuple[int, int], list[int]]:
    """The candidate ids that the engine verified, by request and engine iteration."""
    with np.load(folder / "result.npz") as file:
        rows, ids = file["rows"], file["draft_ids"]
    slot, iteration, drafted = (rows[:, ROW_FIELDS.index(name)] for name in ("slot", "iteration", "drafted"))
    parts = np.split(ids, np.cumsum(drafted)[:-1])
    return {(int(s), int(i)): part.tolist() for s, i, part in zip(slot, iteration, parts, strict=True)}


def captured(made: Requests, result) -> Requests:
    """A capture's result as the trace a recorded replay walks."""
    lists = [[t[i].tolist() for i in range(len(t))] for t in (made.prompts, result.outputs, result.tails)]
    return Requests.from_lists(*lists)


def with_outputs(made: Requests, result, indices: list[int]) -> Requests:
    """Some of the requests with what the engine put out for them, and past the end what its last step threw away."""
    some = made.take(indices)
    outputs, cuts = ([part[i].tolist() for i in indices] for part in (result.outputs, result.cuts))
    return Requests(some.prompts, Tokens.of(outputs), Tokens.of(cuts), some.meta)


def steps_of(log: StepLog, request: int) -> dict[str, list[int]]:
    """A request's steps as lists, and the tokens put out before each (`history`)."""
    mine = log.request == request
    columns = {name: getattr(log, name)[mine] for name in ("drafted", "filler", "engine_step", "emitted")}
    columns["history"] = 1 + np.cumsum(columns["emitted"]) - columns["emitted"]
    return {name: column.tolist() for name, column in columns.items()}


def found_again(result, made: Requests, config: dict, verified: dict, indices: Iterable[int], limit: int = 200) -> int:
    """Assert that each step's candidates, found again from the ids, are those verified; returns how many there were.

    For suffix the engine must have served one sequence at a time. Placeholders are nobody's candidates.
    """
    checked = 0
    for i in indices:
        log = steps_of(result.log, i)
        before = with_outputs(made, result, list(range(i))) if config["method"] == "suffix" and i else None
        found = candidates(
            with_outputs(made, result, [i]), log["history"], config,
            max_model_len=limit, target=TARGET, served_before=before,
        )  # fmt: skip
        for said, drafted, filler, iteration in zip(
            found, log["drafted"], log["filler"], log["engine_step"], strict=True
        ):
            if not filler:
                assert said[:drafted] == verified[i, iteration]
                checked += drafted
    return checked


COMPARED = ("request", "step", "drafted", "filler", "accepted", "overrun", "miss_reason")


def differences(live: StepLog, recorded: StepLog) -> list[str]:
    """Decode steps that differ, each as one line; empty when the logs are equal in every compared column."""
    tables = [np.stack([getattr(log, name).astype(np.int64) for name in COMPARED], axis=1) for log in (live, recorded)]
    a, b = ({tuple(row[:2]): tuple(row[2:]) for row in table.tolist()} for table in tables)
    return [
        f"request, step {key}: live {a.get(key)}, recorded {b.get(key)}"
        for key in sorted(a | b)
        if a.get(key) != b.get(key)
    ]


def kinds(log: StepLog, finish_reason: list[str]) -> dict[str, int]:
    """How many steps of each kind the parity set must hold."""
    proposed = log.drafted - log.filler
    real = log.filler == 0
    ended = np.array([reason == "stop" for reason in finish_reason])[log.request]
    reason = np.array([r or "" for r in MISS_REASONS])[log.miss_reason]
    return {
        "rounds": int((proposed > 0).sum()),
        "misses": int((reason == "no_match").sum()),
        "full rejections": int((real & (proposed > 0) & (log.accepted == 0)).sum()),
        "full acceptances": int((real & (proposed > 0) & (log.accepted == proposed)).sum()),
        "overruns at an end": int((ended & (log.overrun > 0)).sum()),
        "overruns at max_tokens": int((~ended & (log.overrun > 0)).sum()),
        "length-limit clips": int(((log.filler > 0) | (reason == "length_limit")).sum()),
    }
