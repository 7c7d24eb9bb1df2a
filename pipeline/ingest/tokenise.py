"""Chat messages to token ids with the target's own tokenizer and chat template, from a local folder."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.ingest.generation import Generation, RowRefused
from schemas.errors import EnvironmentProblem, InputError


def fingerprint(folder: Path) -> str:
    """12 hex digits over tokenizer.json and the chat template: which tokenizer made the ids."""
    digest = hashlib.sha256()
    for name in ("tokenizer.json", "chat_template.jinja", "tokenizer_config.json"):
        file = folder / name
        digest.update(name.encode() + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()[:12]


def tokeniser(folder: Path) -> Callable[[Generation], None]:
    """A function that fills in a generation's `prompt_token_ids` and `output_token_ids` from its messages.

    The output is what the model had to say: the answer as the template renders it, up to and with the end token
    (without it when `finish_reason` is "length"). What follows the end token belongs to the next prompt.

    Raises:
        InputError: no tokenizer or no chat template in the folder.
        EnvironmentProblem: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise EnvironmentProblem("text needs a tokenizer library: pip install 'specreplay[text]'") from None
    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"{folder}: no tokenizer.json there; pass --tokenizer with the target model's folder")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.chat_template:
        raise InputError(f"{folder}: the tokenizer has no chat template, and the log holds chat messages")
    end = tokenizer.eos_token_id

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def render(messages: list[dict], tools: list[dict] | None, prompt: bool) -> str:
        return tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, tokenize=False)

    def fill(generation: Generation) -> None:
        messages, answer = generation.messages or [], generation.answer
        try:
            before = render(messages, generation.tools, prompt=True)
            after = render([*messages, answer], generation.tools, prompt=False)
        except Exception as error:  # a template may raise anything; the row is at fault, not the run
            raise RowRefused("messages", f"the chat template refuses it ({type(error).__name__})") from None
        if not after.startswith(before):
            raise RowRefused("messages", "the chat template renders the answer otherwise than it continues the prompt")
        output = encode(after[len(before) :])
        if end in output:
            output = output[: output.index(end) + (generation.finish_reason != "length")]
        generation.prompt_token_ids, generation.output_token_ids = encode(before), output

    return fill
