"""A draft with a vocabulary of its own: the demo draft's weights under a small byte-level BPE made here."""

import inspect
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MODELS = Path(__file__).parents[2] / "examples" / "models"
TARGET = MODELS / "target"


def make(folder: Path, size: int = 600) -> Path:
    """Write tokenizer, config and weights: tokens the demo draft knows keep its embedding, others get a random one."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<pad>", "<unk>", "<|im_end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([inspect.getsource(m) for m in (json, inspect)], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<|im_end|>")
    fast.save_pretrained(folder)
    draft = transformers.Qwen3ForCausalLM.from_pretrained(MODELS / "draft", dtype=torch.float32)
    known = transformers.AutoTokenizer.from_pretrained(MODELS / "draft").get_vocab()
    old = draft.get_input_embeddings().weight.detach()
    rows = old[torch.from_numpy(np.random.default_rng(0).integers(0, len(old), size))].clone()
    for token, id_ in fast.get_vocab().items():
        if token in known:
            rows[id_] = old[known[token]]
    draft.resize_token_embeddings(size)
    draft.get_input_embeddings().weight.data.copy_(rows)
    draft.config.eos_token_id = fast.eos_token_id
    draft.save_pretrained(folder)
    return folder
