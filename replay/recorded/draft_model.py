"""A greedy draft model along recorded ids: one teacher-forced forward per sequence instead of one per candidate.

As long as candidates are accepted, the draft's own context *is* the recorded text. At a history of h tokens candidate
i (from 0) is the argmax of the logits at position h - 1 + i, read after `ids[: h + i]`; it is accepted if it and all
before it equal `ids[h + i]`. So with `agrees[p] = (argmax at p - 1 == ids[p])` the accepted length at h is the run of
agreement that starts at p = h, cut at k, for every h and k at once.

The draft runs in float32. Where its two best tokens are nearly tied, another dtype or kernel can choose the other one.
Knows nothing of drafts that sample, map vocabularies or draft in parallel: `engine.check` refuses them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from replay.recorded.walk import NO_LIMIT, PROPOSED, Limits, Progress, Sequence, walk
from replay.requests import Requests
from replay.steps import StepLog
from schemas.errors import EnvironmentProblem, InputError

BATCH_TOKENS = 8192
"""Tokens of one forward, padding included; a longer sequence is a batch of its own."""

HEAD_ROWS = 1024
"""Positions whose logits exist at once (times the vocabulary: 600 MB at 150,000 ids in float32)."""


def replay_draft_model(requests: Requests, config: dict, limits: Limits, progress: Progress | None) -> StepLog:
    """Replay with a greedy draft model.

    Args:
        requests: with recorded outputs.
        config: effective `speculative_config`; `model` is a folder, or a hub name in the local cache.
        limits: see `walk.Limits`; the draft's own maximal length narrows `drafter`.
        progress: told of each request whose forward is done.

    Raises:
        EnvironmentProblem: torch or transformers is not installed.
        InputError: no such model, an id beyond its vocabulary, or a max_model_len beyond its own.
    """
    model = load(config["model"])
    limits = Limits(limits.model, min(limits.drafter, _own_limit(model.config, config)))
    _check_vocabulary(requests, model, config["model"])
    runs = agreement_runs(model, requests, limits.drafter, progress)

    def look(sequence: Sequence, history: int) -> tuple[int, int, int]:
        run = runs[sequence.index]
        at = history - sequence.start - 1
        return k, int(run[at]) if at < len(run) else 0, PROPOSED

    k = config["num_speculative_tokens"]
    return walk(requests, k, limits, look)


def load(name: str) -> Any:
    """The draft as a transformers causal LM in float32, on the GPU if there is one; nothing is downloaded.

    Raises:
        EnvironmentProblem: torch or transformers is not installed.
        InputError: `name` is no model folder and no cached hub name.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError as error:
        raise EnvironmentProblem(
            f"recorded draft_model replay needs torch and transformers ({error}); install the extra [draft]"
        ) from None
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise InputError(f"model = {name!r}: the folder holds no config.json, so it is no model folder")
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # progress is told in requests, by the caller's bar
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError) as error:
        there = "cannot be loaded" if Path(name).is_dir() else "is neither a model folder nor a hub name in the cache"
        raise InputError(f"model = {name!r} {there} ({str(error).splitlines()[0]})") from None
    finally:
        if bars:
            logging.enable_progress_bar()
    if model.base_model is model or model.get_output_embeddings() is None:
        raise InputError(f"model = {name!r}: a {type(model).__name__} has no output head of its own to read")
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def agreement_runs(model: Any, requests: Requests, limit: int, progress: Progress | None = None) -> list[np.ndarray]:
    """For each request, how many recorded tokens in a row the draft's argmax equals.

    Returns:
        One int64 array per request: entry j counts from position prompt + 1 + j of prompt + output + tail on. It ends
        with the record or with position `limit`, whichever comes first; it is empty below two output tokens.
    """
    runs = [np.zeros(0, np.int64) for _ in range(len(requests))]
    sequences = [Sequence(requests, i) for i in range(len(requests))]
    walked = [s for s in sequences if s.end - s.start >= 2 and s.start < limit]
    if progress is not None and len(walked) < len(sequences):
        progress(len(sequences) - len(walked))
    for batch in _batches(walked):
        for sequence, agrees in zip(batch, _forward(model, batch, limit), strict=True):
            runs[sequence.index] = _run_lengths(agrees)
        if progress is not None:
            progress(len(batch))
    return runs


def _batches(sequences: list[Sequence]) -> Iterator[list[Sequence]]:
    batch: list[Sequence] = []
    for sequence in sorted(sequences, key=lambda s: len(s.ids)):  # like lengths together: little padding
        if batch and (len(batch) + 1) * len(sequence.ids) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch


def _forward(model: Any, batch: list[Sequence], limit: int) -> list[np.ndarray]:
    """Per sequence whether argmax agrees with the record, at positions prompt + 1 up to its end or `limit`."""
    import torch

    device = model.device
    ends = [min(len(s.ids) - 1, limit) for s in batch]  # the last id is compared, never read
    rows = torch.zeros(len(batch), max(ends), dtype=torch.long)
    for row, sequence, end in zip(rows, batch, ends, strict=True):
        row[:end] = torch.from_numpy(sequence.ids[:end].astype(np.int64))
    with torch.inference_mode():
        # Padding stands on the right, where causal attention keeps it from what is read. The head runs on output
        # positions only: prompts are long and logits are wide.
        hidden = model.base_model(rows.to(device), use_cache=False).last_hidden_state
        read = torch.cat([h[s.start : end] for h, s, end in zip(hidden, batch, ends, strict=True)])
        head = model.get_output_embeddings()
        best = torch.cat([head(part).argmax(-1) for part in read.split(HEAD_ROWS)]).cpu().numpy()
    cuts = np.cumsum([end - s.start for s, end in zip(batch, ends, strict=True)])[:-1]
    told = [s.ids[s.start + 1 : end + 1] for s, end in zip(batch, ends, strict=True)]
    return [a == b for a, b in zip(np.split(best, cuts), told, strict=True)]


def _run_lengths(agrees: np.ndarray) -> np.ndarray:
    """How many True follow in a row from each place on.

    >>> _run_lengths(np.array([True, True, False, True])).tolist()
    [2, 1, 0, 1]
    """
    at = np.arange(len(agrees))
    stops = np.where(agrees, len(agrees), at)
    return np.minimum.accumulate(stops[::-1])[::-1] - at


def _check_vocabulary(requests: Requests, model: Any, name: str) -> None:
    size = model.get_input_embeddings().num_embeddings
    for tokens in (requests.prompts, requests.outputs, requests.tails):
        if len(tokens.flat) and tokens.flat.max() >= size:
            at = int(np.argmax(tokens.flat >= size))
            i = int(np.searchsorted(tokens.offsets, at, side="right")) - 1
            request = requests.meta.column("request_id")[i].as_py()
            raise InputError(f"request {request!r} holds id {tokens.flat[at]}; {name!r} knows ids below {size}")


def _own_limit(model_config: Any, config: dict) -> int:
    """How long a history the draft can take, as vLLM derives it: config.json, tokenizer_config.json, RoPE factor."""
    text = model_config.get_text_config()
    keys = "max_position_embeddings n_positions max_seq_len seq_length model_max_length max_sequence_length".split()
    own = min((v for key in keys if (v := getattr(text, key, None)) is not None), default=NO_LIMIT)
    tokenizer = Path(config["model"]) / "tokenizer_config.json"
    if tokenizer.is_file():
        own = min(own, json.loads(tokenizer.read_text("utf-8")).get("model_max_length") or own)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("linear", "dynamic"):
        own *= rope.get("factor") or 1
    asked = config.get("max_model_len")
    if asked is not None and asked > own:
        raise InputError(f"max_model_len = {asked} is more than {config['model']!r} can take ({own})")
    return int(own if asked is None else asked)
