"""Tokenizers of target and draft: loaded, and their chat templates compared on dialogues of our own.

A live replay sends ids that the target's template made. A draft that was trained on another framing reads a text it
does not know. Knows tokenizers, not traces.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from replay.preflight.findings import Finding
from replay.preflight.folder import Model
from replay.preflight.vocabularies import shown
from schemas.errors import EnvironmentProblem, InputError

_CALL = {"type": "function", "function": {"name": "lookup", "arguments": {"city": "Basel"}}}

DIALOGUES: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "What is 2 + 2?"}],
    "system prompt": [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Which colour has snow?"},
    ],
    "several turns": [
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The Rhine."},
        {"role": "user", "content": "And another:\n\n    one in Asia"},
    ],
    "tool call": [
        {"role": "user", "content": "How warm is it in Basel?"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "name": "lookup", "content": '{"celsius": 21}'},
    ],
}
"""What both templates render, with the words that open an answer."""

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class Words:
    """A model's tokenizer. `tokenizer` is transformers' own object."""

    model: Model
    tokenizer: Any

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token → id, added and special tokens included."""
        return dict(self.tokenizer.get_vocab())

    @property
    def special(self) -> dict[str, int | None]:
        """bos_token, eos_token, pad_token, unk_token → id; None = has none."""
        return {key: getattr(self.tokenizer, f"{key}_id", None) for key in _SPECIAL}

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an output, of tokenizer, config.json and generation_config.json together."""
        own = self.special["eos_token"]
        return self.model.end_ids | (frozenset() if own is None else {own})


def words(model: Model) -> Words:
    """Load a model's tokenizer as vLLM does.

    Raises:
        EnvironmentProblem: transformers is not installed.
        InputError: there is no tokenizer; one line.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise EnvironmentProblem("tokenizers need transformers: pip install 'specreplay[text]'") from None
    source = str(model.folder or model.name)
    if model.folder is not None and not [*model.folder.glob("tokenizer*"), *model.folder.glob("vocab*")]:
        raise InputError(f"{model.name!r} holds no tokenizer")  # transformers would make an empty one
    try:
        return Words(model, AutoTokenizer.from_pretrained(source, local_files_only=True))
    except Exception as error:  # a tokenizer's own code may raise anything
        said = (str(error).splitlines() or [""])[0][:200]
        raise InputError(f"no tokenizer can be loaded from {model.name!r} ({type(error).__name__}: {said})") from None


def templates(proposer: str, target: Words, draft: Words, *, by_ids: bool) -> list[Finding]:
    """Compare what the two chat templates make of `DIALOGUES`: ids of one vocabulary, or text where there are two."""
    if not draft.tokenizer.chat_template:
        said = "the draft has none: it reads what the target's template makes"
        return [Finding("chat template", proposer, "ok", said)]
    if not target.tokenizer.chat_template:
        return [Finding("chat template", proposer, "ok", "the target has none, so the draft's is never used")]
    equal, unlike = 0, []
    for name, dialogue in DIALOGUES.items():
        ours, theirs = (_rendered(side, dialogue, by_ids) for side in (target, draft))
        if ours == theirs:
            equal += 1
        else:
            unlike.append(f"{name!r} differs {_difference(ours, theirs)}")
    if not unlike:
        said = f"{equal} of {len(DIALOGUES)} sample dialogues give the same {'ids' if by_ids else 'text'}"
        return [Finding("chat template", proposer, "ok", said)]
    said = f"{len(unlike)} of {len(DIALOGUES)} sample dialogues differ: {unlike[0]}"
    remedy = "the draft was taught another framing than it will read; expect a lower acceptance at each start"
    return [Finding("chat template", proposer, "warning", said, remedy)]


def _rendered(side: Words, dialogue: list[dict[str, Any]], by_ids: bool) -> list[str] | None:
    """The pieces to compare: tokens with their ids, or characters; None when the template refuses the dialogue."""
    try:
        text = side.tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
    except Exception:  # a template may raise anything
        return None
    if not by_ids:
        return list(text)
    ids = side.tokenizer.encode(text, add_special_tokens=False)
    return [f"{id_} {shown(str(side.tokenizer.convert_ids_to_tokens(id_)))}" for id_ in ids]


def _difference(ours: list[str] | None, theirs: list[str] | None) -> str:
    if ours is None or theirs is None:
        return f"(the {'target' if ours is None else 'draft'}'s template refuses it)"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    said = [_piece(pieces, at) for pieces in (ours, theirs)]
    return f"at position {at}: {said[0]} in the target, {said[1]} in the draft"


def _piece(pieces: list[str], at: int) -> str:
    if at >= len(pieces):
        return "the end"
    return pieces[at] if len(pieces[at]) > 1 else shown("".join(pieces[at : at + 12]))
