"""The V2 rule against vLLM's Triton kernels themselves, launched as NgramGPUSpeculator launches them."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_ngram_padded import config, kernels

from replay.recorded.ngram_padded import propose


def drafts(speculator_class, histories, min_n, max_n, k, device, max_model_len=200):
    """k candidates per history from one call of the class's `propose`."""
    import torch

    n = len(histories)
    tokens = torch.zeros((n, max_model_len), dtype=torch.int32, device=device)
    for i, history in enumerate(histories):
        tokens[i, : len(history)] = torch.tensor(history, dtype=torch.int32)
    lengths = torch.tensor([len(h) for h in histories], dtype=torch.int32, device=device)
    last = torch.tensor([[h[-1]] for h in histories], dtype=torch.int64, device=device)
    speculative = SimpleNamespace(prompt_lookup_min=min_n, prompt_lookup_max=max_n, num_speculative_tokens=k)
    speculator = speculator_class(
        SimpleNamespace(
            speculative_config=speculative,
            scheduler_config=SimpleNamespace(max_num_seqs=n),
            model_config=SimpleNamespace(max_model_len=max_model_len),
        ),
        torch.device(device),
        SimpleNamespace(all_token_ids=SimpleNamespace(gpu=tokens), total_len=SimpleNamespace(gpu=lengths)),
    )
    batch = SimpleNamespace(num_reqs=n, idx_mapping=torch.arange(n, device=device))
    sampled, none = torch.ones(n, dtype=torch.int32, device=device), torch.zeros(n, dtype=torch.int32, device=device)
    given = speculator.propose(batch, None, None, None, None, sampled, none, last, None, None, None)
    return given.tolist()


def random_histories(seed, count=64, longest=150):
    """Few symbols, periods and copies, so that windows of every length match, often more than once."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        piece = rng.integers(0, rng.integers(1, 5), rng.integers(1, 40))
        parts = [piece if rng.random() < 0.5 else rng.integers(0, 4, rng.integers(1, 20)) for _ in range(6)]
        out.append(np.concatenate(parts)[: rng.integers(1, longest)].tolist())
    return out


def check(speculator_class, device, seeds):
    for seed in seeds:
        histories = random_histories(seed)
        for windows in [(1, 1, 1), (2, 4, 5), (1, 5, 3), (3, 3, 8), (5, 9, 4)]:
            given = drafts(speculator_class, histories, *windows, device)
            for history, ids in zip(histories, given, strict=True):
                assert ids == kernels(history, *windows)[0] == propose(history, config(*windows))[0].tolist()


@pytest.mark.gpu
def test_every_proposal_is_the_kernels_own():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator

    check(NgramGPUSpeculator, "cuda", range(8))
