"""The demo models: Qwen3 of a few layers, with a copying circuit to start from, and their optimizer."""

import math

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

VOCAB, END_OF_TEXT, IM_END = 2048, 0, 2
SIZES = {
    "target": dict(hidden_size=192, intermediate_size=448, num_hidden_layers=4, num_attention_heads=3),
    "draft": dict(hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_attention_heads=2),
}


def build(name):
    """A fresh float32 model of the given size, "target" or "draft"."""
    config = Qwen3Config(
        vocab_size=VOCAB,
        head_dim=64,
        num_key_value_heads=SIZES[name]["num_attention_heads"],
        max_position_embeddings=2048,
        rope_theta=1e6,
        tie_word_embeddings=True,
        attention_bias=False,
        eos_token_id=IM_END,
        bos_token_id=None,
        pad_token_id=END_OF_TEXT,
        attn_implementation="sdpa",
        **SIZES[name],
    )
    model = Qwen3ForCausalLM(config)
    for key, p in model.named_parameters():
        if p.ndim == 2:
            gain = 0.05 if "o_proj" in key or "down_proj" in key else 0.5
            torch.nn.init.normal_(p, std=0.02 if "embed" in key else gain / math.sqrt(p.shape[1]))
    copying_init(model)
    model.generation_config = GenerationConfig(
        eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT, do_sample=False
    )
    return model


@torch.no_grad()
def copying_init(model):
    """Start with an induction circuit, because one does not form in so short a training.

    Layer 0: head j always looks j + 1 tokens back and writes that token to its own part of the residual
    stream. Layer 1: head j looks for a place whose last j + 1 tokens are the current ones, and votes for
    the token found there. Everything stays trainable.
    """
    c = model.config
    d, heads = c.head_dim, c.num_attention_heads
    n = min(48, (c.hidden_size - 1) // (heads + 1))  # width of each part
    half = d // 2
    angle = (1e6 ** (-torch.arange(half).float() / half))[:4]  # the fastest rotary pairs tell neighbours apart
    parts = torch.zeros((heads + 1) * n, c.hidden_size)
    parts[:, 1:] = torch.linalg.qr(torch.randn(c.hidden_size - 1, (heads + 1) * n))[0].T
    parts = list(parts.split(n))  # [0]: the token itself, [j + 1]: the token j + 1 back
    model.model.embed_tokens.weight[:, 0] = 0.08  # a constant: lets a query ask for a place
    look, match = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    look.q_norm.weight.fill_(3)  # sharpens the look back
    match.q_norm.weight.fill_(2.5)
    slow = torch.arange(half // 2, half)
    slow = torch.cat((slow, slow + half))  # rotary dimensions that barely turn: they carry content
    for j in range(heads):
        at = slice(j * d, (j + 1) * d)
        for attn, gain in ((look, 0.05), (match, 0.2 * (j + 1))):
            attn.q_proj.weight[at] *= 0.05
            attn.k_proj.weight[at] *= 0.05
            attn.v_proj.weight[at] = 0
            attn.v_proj.weight[j * d : j * d + n] = parts[0]
            attn.o_proj.weight[:, at] = 0
            attn.o_proj.weight[:, j * d : j * d + n] = gain * (parts[j + 1] if attn is look else parts[0]).T
        look.q_proj.weight[j * d : j * d + 4, 0] = 1
        look.k_proj.weight[j * d : j * d + 4, 0] = torch.cos((j + 1) * angle)
        look.k_proj.weight[j * d + half : j * d + half + 4, 0] = torch.sin((j + 1) * angle)
        size = len(slow) // (j + 1)
        for i in range(j + 1):
            dims = slow[i * size : (i + 1) * size] + j * d
            match.q_proj.weight[dims] += parts[i][:size]
            match.k_proj.weight[dims] += parts[i + 1][:size]


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (Newton-Schulz), batched over matrices of one shape."""

    def __init__(self, params, lr, momentum=0.95, decay=0.05):
        super().__init__(list(params), dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                shapes.setdefault(tuple(p.shape), []).append(p)
            for (rows, columns), params in shapes.items():
                updates = []
                for p in params:
                    m = self.state[p].setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(m, group["momentum"]))
                x = torch.stack(updates)
                x = x.mT if rows > columns else x
                x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
                for _ in range(5):
                    s = x @ x.mT
                    x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
                x = x.mT if rows > columns else x
                for p, u in zip(params, x, strict=True):
                    p.mul_(1 - group["lr"] * group["decay"])
                    p.add_(u, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)
