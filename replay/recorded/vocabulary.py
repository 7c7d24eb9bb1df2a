"""A draft with another vocabulary than the target's: the token-level intersection (TLI), as vLLM 0.32.0 maps it.

Follows vllm/v1/spec_decode/vocab_mapping.py. A token both tokenizers know (same string, the mark of a leading space
made equal) has an id in both; all others are read as the draft's unknown token, and never proposed. Knows two
tokenizers; knows no model weights and no records.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import EnvironmentProblem, InputError

_MARKS = ("\u0120", "\u2581")
"""Of a leading space, where a tokenizer does not show its own: byte-level BPE, SentencePiece."""


@dataclass(frozen=True)
class Vocabulary:
    """How two vocabularies meet.

    `to_draft`: int64 per target id, the draft's id or its unknown token. `to_target`: int64 per draft id, the target's
    id or its unknown token. `shared`: bool per draft id, whether the target knows the token: only these are proposed.
    """

    to_draft: np.ndarray
    to_target: np.ndarray
    shared: np.ndarray


def between(target: str, draft: str) -> Vocabulary:
    """The mapping between two model folders (or hub names in the local cache), with config and tokenizer each.

    Raises:
        EnvironmentProblem: transformers is not installed.
        InputError: a folder holds no tokenizer, or a tokenizer has neither an unknown nor an end token.
    """
    known, size = zip(*(_tokenizer(name) for name in (target, draft)), strict=True)
    unknown = [_unknown(tokenizer, name) for tokenizer, name in zip(known, (target, draft), strict=True)]
    target_ids, draft_ids = (_by_text(tokenizer) for tokenizer in known)
    to_draft, to_target = (np.full(n, -1, np.int64) for n in size)
    for text in target_ids.keys() & draft_ids.keys():
        t, d = target_ids[text], draft_ids[text]
        if t < size[0] and d < size[1]:
            to_draft[t], to_target[d] = d, t
    shared = to_target >= 0
    return Vocabulary(np.where(to_draft < 0, unknown[1], to_draft), np.where(shared, to_target, unknown[0]), shared)


def _tokenizer(name: str) -> tuple[Any, int]:
    """The tokenizer, and how many ids the model's config counts."""
    try:
        from transformers import AutoConfig, AutoTokenizer
    except ImportError as error:
        raise EnvironmentProblem(
            f"mapping vocabularies needs transformers ({error}); install the extra [draft]"
        ) from None
    folder = Path(name)
    if folder.is_dir() and not [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        # transformers would make an empty tokenizer of the config alone
        raise InputError(f"use_heterogeneous_vocab: {name!r} holds no tokenizer")
    try:
        config = AutoConfig.from_pretrained(name, local_files_only=True)
        return AutoTokenizer.from_pretrained(name, local_files_only=True), config.get_text_config().vocab_size
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"use_heterogeneous_vocab: no tokenizer and config in {name!r} ({str(error).splitlines()[0]})"
        ) from None


def _unknown(tokenizer: Any, name: str) -> int:
    for key in ("unk_token_id", "eos_token_id"):
        if (token := getattr(tokenizer, key, None)) is not None:
            return token
    raise InputError(f"use_heterogeneous_vocab: the tokenizer of {name!r} has neither an unknown nor an end token")


def _by_text(tokenizer: Any) -> dict[str, int]:
    """{token with a leading space as a space: id}; of two that look alike the first counts, as vLLM counts them."""
    marks = _space_marks(tokenizer)
    out: dict[str, int] = {}
    for token, id_ in tokenizer.get_vocab().items():
        mark = next((m for m in marks if token.startswith(m)), None)
        out.setdefault(token if mark is None else " " + token[len(mark) :], id_)
    return out


def _space_marks(tokenizer: Any) -> tuple[str, ...]:
    ids = tokenizer.encode(" a", add_special_tokens=False)
    token = tokenizer.convert_ids_to_tokens(ids[0]) if ids else None
    if isinstance(token, str) and len(token) > 1 and token.endswith("a") and token[0] not in (" ", "\t"):
        return (token[:-1],)
    return _MARKS
