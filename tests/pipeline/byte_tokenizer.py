"""A tokenizer whose ids can be written down by hand: one id per byte, 256 and 257 begin and end a turn."""

import json
from pathlib import Path

START, END = 256, 257

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'user' and m.content == 'raise' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def ids(text: str) -> list[int]:
    """What the tokenizer makes of a text, by hand."""
    out: list[int] = []
    for i, part in enumerate(text.replace("<|im_end|>", "<|im_start|>\0").split("<|im_start|>")):
        if i:
            out.append(END if part.startswith("\0") else START)
        out += part.removeprefix("\0").encode()
    return out


def chat(*turns: tuple[str, str]) -> str:
    """Turns as the template writes them, ready for the assistant to speak."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def save(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Write the tokenizer (and a config of 300 ids) as a model folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    vocab = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": 64}
    if template:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 300, "model_type": "llama"}))
    return folder
