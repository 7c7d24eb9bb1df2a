"""What a machine or a model runner of vLLM 0.32.0 cannot do with a proposer, said before an engine starts.

A pure function of settings and facts; imports no vLLM. Sources: `_get_v2_model_runner_unsupported_features` in
vllm/config/vllm.py, v1/sample/rejection_sampler.py (V1), v1/worker/gpu/spec_decode/rejection_sampler.py (V2),
utils/cpu_triton_utils.py (CPU build). What vLLM itself refuses in plain words is left to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

V1_ONLY = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
"""Methods that the V2 runner does not have."""


@dataclass(frozen=True)
class Platform:
    """Where the engine runs. device: vLLM's device type, "cpu", "cuda", … runner: "v1" or "v2"."""

    device: str
    runner: str


@dataclass(frozen=True)
class Refusal:
    """A setting that cannot work here: the setting, why, and what to do instead."""

    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.remedy}"


def refusals(speculative: Mapping | None, platform: Platform) -> list[Refusal]:
    """Everything about a proposer that this platform cannot do, or would leave out without a word.

    >>> str(refusals({"method": "ngram_gpu"}, Platform("cpu", "v1"))[0])[:46]
    'method = "ngram_gpu": it needs pinned memory, '

    Args:
        speculative: effective `speculative_config`; None = no speculation.
        platform: where it would run.

    Returns:
        Refusals, none when all can run. Sampling above temperature 0 is none of them: `cpu_sampler` mends what is
        wrong there.
    """
    if speculative is None:
        return []
    out = []
    method = speculative["method"]
    way = speculative.get("rejection_sample_method", "standard")
    if platform.runner == "v1":
        if way == "block":
            why = "only the V2 runner verifies in blocks; V1 verifies one by one and says nothing"
            out.append(Refusal('rejection_sample_method = "block"', why, 'set [engine] runner = "v2" on a GPU'))
        if method == "dspark":
            why = "only the V2 runner drafts with it"
            out.append(Refusal('method = "dspark"', why, 'set [engine] runner = "v2" on a GPU'))
        if platform.device == "cpu" and way == "synthetic":
            why = "vLLM's CPU build has no synthetic acceptance"
            out.append(Refusal('rejection_sample_method = "synthetic"', why, "run it on a GPU, or leave it out"))
        if platform.device == "cpu" and method == "ngram_gpu":
            why = "it needs pinned memory, which vLLM's CPU build has not"
            remedy = 'run it on a GPU, use "ngram" here, or replay it along a record ([engine] kind = "recorded")'
            out.append(Refusal('method = "ngram_gpu"', why, remedy))
        return out
    kinds = {"parallel_drafting": method not in ("dflash", "dspark"), "use_heterogeneous_vocab": True}
    lacking = [f'method = "{method}"'] if method in V1_ONLY else []
    lacking += [f"{key} = true" for key, lacks in kinds.items() if lacks and speculative.get(key)]
    return [Refusal(what, "the V2 runner does not have it", 'set [engine] runner = "v1"') for what in lacking]
