"""Tiny models made from a seed, without download or training: one target and every kind of draft for it.

The target is mostly a map from a token to the next one (embedding rows are orthogonal, the head reads the map off
them), bent by two random attention layers. Every draft holds the bare map in the way of its kind. So each is right
where the context does not bend the map, and wrong where it does.
"""

import inspect
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY, HIDDEN, HEADS, HEAD_DIM, INNER = 48, 64, 2, 32, 64
LENGTH = 256
DEMO = Path(__file__).parents[2] / "examples" / "models"

_SIZES = dict(
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    vocab_size=VOCABULARY,
    max_position_embeddings=LENGTH,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    tie_word_embeddings=False,
    eos_token_id=0,
    bos_token_id=None,
    pad_token_id=0,
    dtype="float32",
)
_LLAMA = _SIZES | dict(head_dim=HEAD_DIM, attention_bias=False, mlp_bias=False, model_type="llama")


class Weights:
    """What all of them share, drawn in one order from one seed."""

    def __init__(self, bend: float = 1.1, sharp: float = 8.0) -> None:
        self.random = torch.Generator().manual_seed(0)
        orthogonal = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=self.random))[0]
        self.embedding = orthogonal[:VOCABULARY] * HIDDEN**0.5  # of length 1 per element, as after a norm
        cycle = 1 + torch.randperm(VOCABULARY - 1, generator=self.random)
        self.next = torch.zeros(VOCABULARY, dtype=torch.long)
        self.next[cycle] = cycle.roll(-1)  # token 0 ends a text; nothing leads to it
        self.next[0] = cycle[0]
        self.sharp = sharp
        self.layers = [self.layer(bend) for _ in range(2)]

    def layer(self, bend: float, inputs: int = HIDDEN) -> dict[str, torch.Tensor]:
        """A decoder layer; `bend` scales what it adds to the residual stream."""

        def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.randn(*shape, generator=self.random) * scale * shape[-1] ** -0.5

        out = {f"self_attn.{name}_proj.weight": draw(HIDDEN, inputs, scale=2) for name in "qkv"}
        out |= {f"mlp.{name}_proj.weight": draw(INNER, HIDDEN) for name in ("gate", "up")}
        out["self_attn.o_proj.weight"] = draw(HIDDEN, HIDDEN, scale=bend)
        out["mlp.down_proj.weight"] = draw(HIDDEN, INNER, scale=bend)
        return out | {f"{name}_layernorm.weight": torch.ones(HIDDEN) for name in ("input", "post_attention")}

    def head(self, ahead: int = 1) -> torch.Tensor:
        """[VOCABULARY, HIDDEN]: logit `sharp` for the token that is `ahead` steps along the map."""
        rows, then = torch.zeros(VOCABULARY, HIDDEN), torch.arange(VOCABULARY)
        for _ in range(ahead):
            then = self.next[then]
        return rows.index_add(0, then, self.embedding * self.sharp / HIDDEN)


def build(folder: Path, bend: float = 1.1, sharp: float = 8.0) -> dict[str, str]:
    """Write all models below `folder`; returns their folders by name.

    Names: target, mimo (the target's weights in a family that has MTP layers, and one of them), draft, soft (the draft
    less sure of itself), eagle, eagle3, medusa. `bend` is how much the context changes the target's next token, `sharp`
    the logit of the map's own.
    """
    w = Weights(bend, sharp)
    ends = {"model.embed_tokens.weight": w.embedding, "model.norm.weight": torch.ones(HIDDEN)}
    ends["lm_head.weight"] = w.head()
    body = ends | {f"model.layers.{i}.{k}": v for i, layer in enumerate(w.layers) for k, v in layer.items()}
    llama = _LLAMA | dict(architectures=["LlamaForCausalLM"])
    _save(folder / "target", llama | dict(num_hidden_layers=2), body)
    idle = w.layer(0.0)
    alone = ends | {f"model.layers.0.{k}": v for k, v in idle.items()}
    _save(folder / "draft", llama | dict(num_hidden_layers=1), alone)
    _save(folder / "soft", llama | dict(num_hidden_layers=1), alone | {"lm_head.weight": w.head() * 0.4})
    _mimo(folder / "mimo", body, idle)
    nothing = torch.zeros(HIDDEN, HIDDEN)
    eye = torch.eye(HIDDEN)
    eagle = {f"layers.0.{k}": v for k, v in idle.items() if not k.startswith("input")}  # EAGLE has no first norm
    eagle |= {"embed_tokens.weight": w.embedding, "fc.weight": torch.cat([eye, nothing], 1)}
    _save(folder / "eagle", llama | dict(num_hidden_layers=1), eagle)
    _eagle3(folder / "eagle3", w)
    heads = {f"lm_heads.{i}.weight": w.head(i + 2) for i in range(3)}
    heads |= {f"blocks.{i}.layers.0.weight": nothing for i in range(3)}
    medusa = dict(architectures=["MedusaModel"], model_type="medusa", hidden_size=HIDDEN, vocab_size=VOCABULARY)
    _save(folder / "medusa", medusa | dict(num_heads=3, num_hidden_layers=1, dtype="float32"), heads)
    return {path.name: str(path) for path in sorted(folder.iterdir())}


def _mimo(folder: Path, body: dict, idle: dict) -> None:
    """MiMo is Qwen2 with MTP layers: Llama with biases of 0 in query, key and value."""
    weights = dict(body)
    mtp = {f"model.mtp_layers.0.{k}": v for k, v in idle.items()}
    for name in [k for k in (weights | mtp) if "self_attn" in k and "o_proj" not in k]:
        (weights if name in weights else mtp)[name.replace(".weight", ".bias")] = torch.zeros(HIDDEN)
    for name in ("token", "hidden", "final"):
        mtp[f"model.mtp_layers.0.{name}_layernorm.weight"] = torch.ones(HIDDEN)
    eye, nothing = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    mtp["model.mtp_layers.0.input_proj.weight"] = torch.cat([nothing, eye], 1)  # [hidden state, embedding]
    family = dict(architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=1)
    auto = {"AutoConfig": "configuration_mimo.MiMoConfig"}
    _save(folder, _SIZES | family | dict(num_hidden_layers=2, auto_map=auto), weights | mtp)
    (folder / "configuration_mimo.py").write_text(_MIMO_CONFIG)


_MIMO_CONFIG = """from transformers import Qwen2Config


class MiMoConfig(Qwen2Config):
    model_type = "mimo"
    num_nextn_predict_layers: int = 1
"""


def _eagle3(folder: Path, w: Weights) -> None:
    """Knows two tokens of three. The embedding reaches the head through attention: with keys equal to queries, a
    position attends to its own token.
    """
    eye, nothing = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    layer = w.layer(0.0)
    layer |= {f"self_attn.{name}_proj.weight": torch.cat([eye * 2, nothing], 1) for name in "qkv"}
    layer["self_attn.o_proj.weight"] = eye * 4
    known = torch.tensor([t for t in range(VOCABULARY) if t % 3])
    weights = {f"midlayer.{k}": v for k, v in layer.items()} | {
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "fc.weight": torch.zeros(HIDDEN, HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "embed_tokens.weight": w.embedding,
        "lm_head.weight": w.head()[known],
        "d2t": known - torch.arange(len(known)),
        "t2d": torch.isin(torch.arange(VOCABULARY), known),
    }
    family = dict(architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=1, draft_vocab_size=len(known))
    layers = dict(eagle_aux_hidden_state_layer_ids=[1], num_aux_hidden_states=1)
    # Else the step before would weigh as much as this one.
    _save(folder, _LLAMA | family | layers | dict(norm_before_residual=True), weights)


def _save(folder: Path, config: dict, weights: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {k: v.contiguous().clone() for k, v in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def random_draft(folder: Path, *, positions: int, **config) -> Path:
    """A random Qwen3 of 40 tokens, whose greedy text is varied; `config` is added to its config.json."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, head_dim=16)
    made = transformers.Qwen3Config(
        **sizes,
        num_key_value_heads=1,
        vocab_size=40,
        max_position_embeddings=positions,
        initializer_range=0.4,
        tie_word_embeddings=False,
        **config,
    )
    transformers.Qwen3ForCausalLM(made).save_pretrained(folder)
    return folder


def foreign_draft(folder: Path, size: int = 600) -> Path:
    """The demo draft's weights under a small byte-level BPE made here: tokens the demo draft knows keep their
    embedding, others get a random one.
    """
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
    draft = transformers.Qwen3ForCausalLM.from_pretrained(DEMO / "draft", dtype=torch.float32)
    known = transformers.AutoTokenizer.from_pretrained(DEMO / "draft").get_vocab()
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
