"""Text to token ids with the target's own tokenizer and chat template: batched, and in parallel inside the tokenizer.

Ids that the log holds are used as they are; text beside them is only compared. The result depends on the text alone,
not on batches, threads, zone or day.
"""

import functools
import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.ingest.generation import ID_RANGE, Generation, RowRefused
from pipeline.ingest.messages import is_empty
from schemas.errors import EnvironmentProblem, InputError

DIFFERS = "text and token ids disagree: the ids were used"
_NO_PROMPT = [{"role": "user", "content": ""}]


class Tokeniser:
    """The target's tokenizer: fills in the ids of generations, a batch at a time."""

    def __init__(self, model: str | Path):
        """Load the tokenizer of a model folder, or of a hub name through transformers.

        Raises:
            InputError: no tokenizer there; says what to pass.
            EnvironmentProblem: transformers is not installed.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise EnvironmentProblem("text needs a tokenizer library: pip install 'specreplay[text]'") from None
        folder = Path(model)
        if not folder.is_dir() and (folder.is_absolute() or str(model).startswith(".") or str(model).count("/") > 1):
            raise InputError(f"{model}: no such folder; pass --tokenizer with the target model's folder")
        if folder.is_dir() and not any((folder / n).is_file() for n in ("tokenizer.json", "tokenizer_config.json")):
            raise InputError(f"{model}: no tokenizer.json there; pass --tokenizer with the target model's folder")
        try:
            loaded = AutoTokenizer.from_pretrained(str(model), local_files_only=folder.is_dir())
        except Exception as error:
            raise InputError(
                f"{model}: no tokenizer can be loaded from it ({type(error).__name__}); "
                "pass --tokenizer with the target model's folder"
            ) from None
        self.model = str(model)
        self._tokenizer: Any = loaded
        self._ends = _end_ids(loaded, folder)
        self.vocabulary = _vocabulary(folder)
        """Size of the model's vocabulary, None where the folder does not say (a tokenizer may know fewer ids)."""
        self.fingerprint = _fingerprint(loaded)

    def text(self, ids: list[int]) -> str:
        """The ids as text, special tokens included."""
        return self._tokenizer.decode(ids)

    def fill(self, batch: list[Generation]) -> list[RowRefused | None]:
        """Fill in the missing ids of a batch; a refusal in the place of each that cannot be taken.

        The output is what the model had to say: the answer as the template renders it, up to and with the end token
        (without it when `finish_reason` is "length"). What follows the end token belongs to the next prompt.
        `prompt_text` and `output_text` are left holding the text that was tokenised.
        """
        refusals: list[RowRefused | None] = [None] * len(batch)
        prompts: dict[int, str] = {}
        outputs: dict[int, str] = {}
        for i, generation in enumerate(batch):
            try:
                self._check_ids(generation)
                before, after = self._texts(generation)
            except RowRefused as refused:
                refusals[i] = refused
                continue
            if before is not None:
                prompts[i] = before
            if after is not None:
                outputs[i] = after
        raw = {i for i in prompts if batch[i].messages is None}  # a completion gets the tokenizer's own first token
        encoded = {
            i: ids
            for group, special in (([i for i in prompts if i not in raw], False), (sorted(raw), True))
            for i, ids in zip(group, self._encode([prompts[i] for i in group], special), strict=True)
        }
        for i, ids in encoded.items():
            if batch[i].prompt_token_ids is None:
                if not ids:
                    refusals[i] = RowRefused("prompt", "empty; a prompt has at least one token")
                batch[i].prompt_token_ids = np.array(ids, np.int32)
                batch[i].extra.setdefault("token_ids", "tokenised")
            batch[i].prompt_text = prompts[i]
        for i, ids in zip(outputs, self._encode(list(outputs.values()), False), strict=True):
            self._take_output(batch[i], ids, outputs[i])
        return refusals

    def _check_ids(self, g: Generation) -> None:
        if self.vocabulary is None:
            return
        for name in ("prompt_token_ids", "output_token_ids", "tail_token_ids"):
            ids = getattr(g, name)
            if ids is not None and len(ids) and ids.max() >= self.vocabulary:
                at = int(np.argmax(ids >= self.vocabulary))
                raise RowRefused(
                    name, f"{ID_RANGE}; the vocabulary has {self.vocabulary}", f"position {at}: {int(ids[at])}"
                )

    def _texts(self, g: Generation) -> tuple[str | None, str | None]:
        """(prompt, output) as text, None for a side that needs no look."""
        if g.answer is not None and is_empty(g.answer):
            g.answer = None
            if g.output_token_ids is None:
                g.output_token_ids = np.empty(0, np.int32)
                g.extra.setdefault("token_ids", "tokenised")
        if g.output_text == "" and g.output_token_ids is None:
            g.output_text, g.output_token_ids = None, np.empty(0, np.int32)
            g.extra.setdefault("token_ids", "tokenised")
        if g.answer is None and g.messages is None:
            wanted = g.prompt_token_ids is None and g.prompt_text is not None
            return g.prompt_text if wanted else None, g.output_text
        render = functools.partial(self._render, tools=g.tools, arrival=g.arrival)
        before = render(g.messages or _NO_PROMPT, prompt=True)
        if g.answer is None:
            return before if g.messages is not None else None, g.output_text
        after = render([*(g.messages or _NO_PROMPT), g.answer], prompt=False)
        if not after.startswith(before):
            raise RowRefused("messages", "the chat template renders the answer otherwise than it continues the prompt")
        said = after[len(before) :]
        reasoning = g.answer.get("reasoning_content")
        if reasoning and reasoning.strip() not in said:
            g.notes.append("reasoning was logged and the chat template leaves it out: the output is not whole")
            g.extra["reasoning"] = "left out"
        if g.answer["content"].strip() not in said:
            g.notes.append("the chat template changes the answer's text")
            g.extra["template"] = "changes the text"
        return before if g.messages is not None else None, said

    def _render(self, messages: list[dict], *, tools: list[dict] | None, arrival: datetime | None, prompt: bool) -> str:
        def on_arrival(form: str) -> str:
            if arrival is None:
                raise RowRefused("arrival", "the chat template writes the date, and the row has no time")
            return arrival.strftime(form)

        if not self._tokenizer.chat_template:
            raise InputError(
                f"{self.model}: the tokenizer has no chat template, and the log holds chat messages; "
                "pass --tokenizer with the folder of a model that has one"
            )
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False, strftime_now=on_arrival
            )
        except RowRefused:
            raise
        except Exception as error:  # a template may raise anything; the row is at fault, not the run
            raise RowRefused("messages", "the chat template refuses it", type(error).__name__) from None

    def _encode(self, texts: list[str], special: bool) -> list[list[int]]:
        if not texts:
            return []
        try:
            return self._tokenizer(texts, add_special_tokens=special, return_attention_mask=False, verbose=False)[
                "input_ids"
            ]
        except (UnicodeEncodeError, TypeError):  # half a surrogate pair that came in by another way than JSON
            return [self._encode([t.encode("utf-8", "replace").decode()], special)[0] for t in texts]

    def _take_output(self, g: Generation, ids: list[int], text: str) -> None:
        rendered = g.answer is not None
        end = next((j for j, token in enumerate(ids) if token in self._ends), None) if rendered else None
        if end is not None:
            ids = ids[: end + (g.finish_reason != "length")]
        g.output_text = text
        if g.output_token_ids is None:
            g.output_token_ids = np.array(ids, np.int32)
            g.extra.setdefault("token_ids", "tokenised")
            return
        given = g.output_token_ids.tolist()
        inner = [token for token in given if token not in self._ends]
        if inner == [token for token in ids if token not in self._ends]:
            return
        told = g.answer["content"] if g.answer is not None else text
        if self._tokenizer.decode(inner, skip_special_tokens=False) != told:
            g.notes.append(DIFFERS)
            g.extra["text"] = "disagrees"


def needs(g: Generation) -> bool:
    """Whether a generation cannot be kept without a tokenizer."""
    prompt = g.prompt_token_ids is None and (g.messages is not None or g.prompt_text is not None)
    output = g.output_token_ids is None and (g.answer is not None or g.output_text is not None)
    return prompt or output


def _end_ids(tokenizer: Any, folder: Path) -> frozenset[int]:
    """Ids that end a turn: the tokenizer's, and those the model stops at (chat models often have another)."""
    ids: list[Any] = [tokenizer.eos_token_id]
    try:
        more = json.loads((folder / "generation_config.json").read_text("utf-8")).get("eos_token_id")
        ids += more if isinstance(more, list) else [more]
    except (OSError, ValueError, AttributeError):
        pass
    return frozenset(i for i in ids if isinstance(i, int))


def _vocabulary(folder: Path) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None


def _fingerprint(tokenizer: Any) -> str:
    """12 hex digits over what decides the ids: the tokenizer itself and the chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    made: Iterable[str] = (
        [backend.to_str()] if backend is not None else (f"{k} {v}" for k, v in sorted(tokenizer.get_vocab().items()))
    )
    digest = hashlib.sha256()
    for piece in (*made, str(tokenizer.chat_template)):
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:12]
