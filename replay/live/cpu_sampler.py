"""What vLLM's CPU build does wrong above temperature 0, mended: verification, and the generators of cut prompts.

`mend` replaces a faulty function, once it has tried it out. What is wrong (vLLM 0.32.0,
utils/cpu_triton_utils.py:_expand_kernel_impl): the compiled function writes into an int64 copy of its output, so that
`rejection_sampler.expand_batch_to_tokens` returns uninitialised memory for any other type: for temperature and top_p
(float32) and top_k (int32). Verification then divides by junk. The replacement says the same in one line of torch.

`spare_generators`: a chunk of a prompt puts out nothing, yet is sampled for, and then the runner turns the sequence's
generator back (v1/worker/gpu_model_runner.py:_bookkeeping_sync). torch's CPU generators cannot be turned back: the
engine dies of the first seeded prompt that is prefilled in two parts.

Runs in vLLM's worker, after the model is loaded; knows nothing of logs.
"""

from collections.abc import Callable
from typing import Any

from schemas.errors import EnvironmentProblem

FAULTY = ("0.32.0",)
"""Versions of vLLM whose CPU build is known to be wrong, and where the replacement was tested."""

WHAT = "vllm.v1.sample.rejection_sampler.expand_batch_to_tokens"


def expand_batch_to_tokens(x, cu_num_tokens, num_tokens: int, replace_from: int = 0, replace_to: int = 0):
    """One value per token from one value per sequence, as vLLM's function of this name is meant to.

    Args:
        x: [batch] tensor of any type.
        cu_num_tokens: [batch] whole numbers: tokens of this sequence and of all before it.
        num_tokens: the last of them.
        replace_from, replace_to: values equal to the first become the second.

    Returns:
        [num_tokens] tensor of x's type.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


def mend() -> str | None:
    """See that one value per sequence becomes one per token, and replace vLLM's function where it does not.

    Returns:
        What was replaced, for the manifest; None where vLLM's own is right.

    Raises:
        EnvironmentProblem: it is wrong in a version that nobody has looked into.
    """
    import vllm
    from vllm.v1.sample import rejection_sampler

    name = WHAT.rsplit(".", 1)[1]
    if getattr(rejection_sampler, name) is expand_batch_to_tokens:
        return WHAT
    if right(rejection_sampler.expand_batch_to_tokens):
        return None
    if vllm.__version__.split("+")[0] not in FAULTY:
        raise EnvironmentProblem(
            f"vLLM {vllm.__version__} verifies candidates wrongly above temperature 0 here ({WHAT} returns other "
            "values than it is given), in a way that is not known; set [engine] sampling = { temperature = 0 }"
        )
    setattr(rejection_sampler, name, expand_batch_to_tokens)
    if not right(rejection_sampler.expand_batch_to_tokens):
        raise EnvironmentProblem("one value per token from one per sequence goes wrong even in torch itself here")
    return WHAT


def spare_generators(runner: Any) -> None:
    """Lay the generators of sequences whose sample is thrown away aside while a batch is sampled.

    They then stand where they stood, which is what turning them back is for.

    Args:
        runner: vLLM's V1 model runner; its `sample_tokens` is wrapped.
    """
    sample = runner.sample_tokens

    def sample_tokens(*args, **kwargs):
        batch = runner.input_batch
        thrown_away = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        aside = {row: batch.generators.pop(row) for row in thrown_away if row in batch.generators}
        try:
            return sample(*args, **kwargs)
        finally:
            batch.generators.update(aside)

    runner.sample_tokens = sample_tokens


def right(expand: Callable) -> bool:
    """Try a function like `expand_batch_to_tokens` on values that lie nowhere in memory in the order asked for."""
    import torch

    for dtype in (torch.float32, torch.int32):
        values = (torch.rand(4) * 1000 + 1).to(dtype)
        values[2] = 0
        ends = torch.tensor([2, 5, 6, 9], dtype=torch.int32)
        got = expand(values, ends, 9, replace_from=0, replace_to=7)
        wanted = [v or 7 for v, n in zip(values.tolist(), (2, 3, 1, 3), strict=True) for _ in range(n)]
        if got.tolist() != wanted:
            return False
    return True
