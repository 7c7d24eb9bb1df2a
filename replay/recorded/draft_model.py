"""A greedy draft model along recorded ids: its settings and limits, and forwards shared between settings.

Three kinds: one that reads its own candidates (`draft_forward`), one that reads mask tokens in their place
(`parallel_draft`), and either of them with a vocabulary of its own (`vocabulary`). Knows nothing of drafts that
sample: `engine.check` refuses them.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from replay.preflight.folder import model as files_of
from replay.recorded.draft_forward import Draft, agreement_runs, greedy_candidates
from replay.recorded.parallel_draft import candidates_of, mask_token, parallel_runs
from replay.recorded.vocabulary import between
from replay.recorded.walk import (
    NO_LIMIT,
    PROPOSED,
    Limits,
    Progress,
    Sequence,
    drafts_on_v2,
    scheduled_ahead,
    walk,
)
from replay.requests import Requests
from replay.steps import StepLog
from schemas.errors import EnvironmentProblem, InputError
from schemas.models import fingerprint

DTYPES = ("float32", "bfloat16")

Look = Callable[[Sequence, int], tuple[int, int, int]]
"""See `walk.walk`."""

_KEPT_BYTES = 1 << 26
_kept: OrderedDict[bytes, list[np.ndarray]] = OrderedDict()
"""Runs of agreement of the last replays, two bytes per output token: another k over the same requests reads nothing."""


def replay_draft_model(
    requests: Requests,
    config: dict,
    limits: Limits,
    progress: Progress | None,
    dtype: str = "float32",
    target: str | None = None,
) -> StepLog:
    """Replay with a greedy draft model. Replays that differ in num_speculative_tokens alone share one forward.

    Args:
        requests: with recorded outputs.
        config: effective `speculative_config`; `model` is a folder, or a hub name in the local cache.
        limits: see `walk.Limits`; the draft's own maximal length narrows `drafter`.
        progress: told of each request whose forward is done.
        dtype: what the draft computes in: "float32" or "bfloat16". vLLM takes the target's.
        target: folder of the target, whose tokenizer `use_heterogeneous_vocab` needs.

    Raises:
        EnvironmentProblem: torch or transformers is not installed.
        InputError: no such model, an id beyond its vocabulary, or a max_model_len beyond its own.
    """
    look, limits = draft_look(requests, config, limits, progress, dtype, target)
    return walk(requests, config["num_speculative_tokens"], limits, look)


def replay_v2(
    requests: Requests,
    config: dict,
    limits: Limits,
    progress: Progress | None,
    dtype: str = "float32",
    target: str | None = None,
) -> StepLog:
    """Replay as the V2 runner drafts (vllm/v1/worker/gpu/spec_decode/standalone_ar); arguments as above.

    It asks the draft in every step, past the draft's own maximal length too: no zeros in place of candidates. Drafts
    that it does not have run on V1 instead.
    """
    if not drafts_on_v2(config, "v2"):
        return replay_draft_model(requests, config, limits, progress, dtype, target)
    look, _ = draft_look(requests, config, limits, progress, dtype, target)
    k = config["num_speculative_tokens"]
    return walk(requests, k, Limits(limits.model), look, asynchronous=scheduled_ahead(config, "v2"))


def draft_look(
    requests: Requests, config: dict, limits: Limits, progress: Progress | None, dtype: str, target: str | None
) -> tuple[Look, Limits]:
    """The proposer as `walk` asks it, and the limits narrowed by the draft's own; arguments as above."""
    name, k = config["model"], config["num_speculative_tokens"]
    draft, own = _draft(requests, config, dtype, target)
    foreign = config.get("use_heterogeneous_vocab")
    what = [fingerprint(name), dtype, foreign and fingerprint(str(target))]
    if config.get("parallel_drafting"):
        mask = mask_token(draft.model.config, name)
        # A limit cuts these runs where masks would stand past it, so it belongs to them; so does k.
        reach = min(limits.drafter, own)
        runs = _shared(
            [*what, k, reach], requests, progress, lambda: parallel_runs(draft, mask, k, requests, reach, progress)
        )
    else:
        reach = _own_limit(draft.model.config, {"model": name})
        runs = _shared([*what, reach], requests, progress, lambda: agreement_runs(draft, requests, reach, progress))

    def look(sequence: Sequence, history: int) -> tuple[int, int, int]:
        run = runs[sequence.index]
        at = history - sequence.start - 1
        return k, int(run[at]) if at < len(run) else 0, PROPOSED

    return look, Limits(limits.model, min(limits.drafter, own))


def draft_candidates(
    requests: Requests, config: dict, histories: list[int], limit: int, dtype: str, target: str | None
) -> list[list[int]]:
    """The candidates at some histories of one request, in the target's ids.

    Args:
        requests: the one request, with its recorded output.
        config: effective `speculative_config`.
        histories: outputs put out before each step looked at, 1 at least.
        limit: the longest sequence the drafter may read, in tokens; a parallel draft says nothing beyond it.
        dtype, target: as for `replay_draft_model`.
    """
    k = config["num_speculative_tokens"]
    draft, own = _draft(requests, config, dtype, target)
    sequence = Sequence(requests, 0)
    if not histories:
        return []
    if not config.get("parallel_drafting"):
        return greedy_candidates(draft, [sequence.ids[: sequence.start + h] for h in histories], k).tolist()
    (rows,) = candidates_of(draft, mask_token(draft.model.config, config["model"]), k, [sequence], min(limit, own))
    return [rows[h - 1].tolist() if h <= len(rows) else [] for h in histories]


def _draft(requests: Requests, config: dict, dtype: str, target: str | None) -> tuple[Draft, int]:
    """The draft, loaded and fit for these requests, and how long a history it can take."""
    name = config["model"]
    model = load(name, dtype)
    own = _own_limit(model.config, config)
    foreign = config.get("use_heterogeneous_vocab")
    vocabulary = between(str(target), name) if foreign else None
    if not foreign:
        _check_size(target, model.config, name)
    size = model.get_input_embeddings().num_embeddings if vocabulary is None else len(vocabulary.to_draft)
    _check_ids(requests, size, str(target) if foreign else name)
    return Draft(model, vocabulary), own


def _shared(
    what: list, requests: Requests, progress: Progress | None, make: Callable[[], list[np.ndarray]]
) -> list[np.ndarray]:
    """The runs that `make` gives, or those it gave before for the same draft and ids."""
    digest = hashlib.blake2b(repr(what).encode())
    for tokens in (requests.prompts, requests.outputs, requests.tails):
        digest.update(np.ascontiguousarray(tokens.offsets).data)
        digest.update(np.ascontiguousarray(tokens.flat).data)
    key = digest.digest()
    if key not in _kept:
        _kept[key] = make()
    elif progress is not None:
        progress(len(requests))
    _kept.move_to_end(key)
    runs = _kept[key]
    while sum(run.nbytes for held in _kept.values() for run in held) > _KEPT_BYTES:
        _kept.popitem(last=False)
    return runs


def load(name: str, dtype: str = "float32") -> Any:
    """The draft as a transformers causal LM, on the GPU if there is one; nothing is downloaded.

    The last model loaded is kept.

    Raises:
        EnvironmentProblem: torch or transformers is not installed.
        InputError: `name` is no model folder and no cached hub name, or `dtype` is none of DTYPES.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype = {dtype!r}: a recorded draft model runs in {' or '.join(DTYPES)}")
    return _load(name, dtype, fingerprint(name))


@lru_cache(maxsize=1)
def _load(name: str, dtype: str, files: str) -> Any:
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
        model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype), local_files_only=True)
    except (OSError, ValueError) as error:
        there = "cannot be loaded" if Path(name).is_dir() else "is neither a model folder nor a hub name in the cache"
        raise InputError(f"model = {name!r} {there} ({str(error).splitlines()[0]})") from None
    finally:
        if bars:
            logging.enable_progress_bar()
    if model.base_model is model or model.get_output_embeddings() is None:
        raise InputError(f"model = {name!r}: a {type(model).__name__} has no output head of its own to read")
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _check_size(target: str | None, config: Any, name: str) -> None:
    """Refuse a draft whose vocabulary is of another size than the target's, as vLLM does, where the target is here."""
    size = None if target is None else files_of(target).vocab_size
    own = config.get_text_config().vocab_size
    if size is not None and size != own:
        raise InputError(
            f"model = {name!r} has {own} ids, the target {target!r} {size}: set use_heterogeneous_vocab = true"
        )


def _check_ids(requests: Requests, size: int, name: str) -> None:
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
        try:
            said = json.loads(tokenizer.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            raise InputError(f"{tokenizer}: cannot be read as JSON") from None
        longest = said.get("model_max_length") if isinstance(said, dict) else None
        own = min(own, longest) if isinstance(longest, int | float) and longest > 0 else own
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("linear", "dynamic"):
        own *= rope.get("factor") or 1
    asked = config.get("max_model_len")
    if asked is not None and asked > own:
        raise InputError(f"max_model_len = {asked} is more than {config['model']!r} can take ({own})")
    return int(own if asked is None else asked)
