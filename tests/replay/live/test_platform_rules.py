"""What a platform cannot do with a proposer, against vLLM's own list for the V2 runner."""

import pytest

from replay.live.platform_rules import V1_ONLY, Platform, refusals

NGRAM = {"method": "ngram", "num_speculative_tokens": 2}
DRAFT = {"method": "draft_model", "model": "m", "num_speculative_tokens": 2}
BLOCK = {"rejection_sample_method": "block"}
SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2}


@pytest.mark.parametrize(
    ("config", "cpu_v1", "cuda_v1", "cuda_v2"),
    [
        (None, [], [], []),
        (NGRAM, [], [], []),
        ({"method": "suffix"}, [], [], ["suffix"]),
        ({"method": "medusa", "model": "m"}, [], [], ["medusa"]),
        ({"method": "custom_class", "model": "m.C"}, [], [], ["custom_class"]),
        ({"method": "ngram_gpu"}, ["ngram_gpu"], [], []),
        ({"method": "dspark"}, ["dspark"], ["dspark"], []),
        (DRAFT | {"draft_sample_method": "probabilistic"}, [], [], []),
        (DRAFT | {"parallel_drafting": True}, [], [], ["parallel_drafting"]),
        (DRAFT | {"use_heterogeneous_vocab": True}, [], [], ["use_heterogeneous_vocab"]),
        ({"method": "dflash", "parallel_drafting": True}, [], [], []),
        (DRAFT | BLOCK, ["block"], ["block"], []),
        (DRAFT | SYNTHETIC, ["synthetic"], [], []),
        ({"method": "ngram_gpu"} | SYNTHETIC, ["synthetic", "ngram_gpu"], [], []),
    ],
)
def test_what_is_refused_where(config, cpu_v1, cuda_v1, cuda_v2):
    for platform, expected in (
        (Platform("cpu", "v1"), cpu_v1),
        (Platform("cuda", "v1"), cuda_v1),
        (Platform("cuda", "v2"), cuda_v2),
    ):
        found = refusals(config, platform)
        assert len(found) == len(expected)
        for one, word in zip(found, expected, strict=True):
            assert word in one.what and one.why and one.remedy and "\n" not in str(one)


@pytest.mark.live
def test_the_v2_runner_lacks_what_vllm_says():
    """vLLM's own check, asked about every method."""
    from types import SimpleNamespace

    vllm_config = pytest.importorskip("vllm.config.vllm")
    from schemas.methods import METHODS

    def lacks(**settings):
        speculative = {"parallel_drafting": False, "use_heterogeneous_vocab": False} | settings
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(**speculative),
            parallel_config=SimpleNamespace(
                distributed_executor_backend="mp", pipeline_parallel_size=1, use_ubatching=False
            ),
        )
        return vllm_config.VllmConfig._get_v2_model_runner_unsupported_features(config)

    for method in METHODS - {"none"}:
        for more in ({}, {"parallel_drafting": True}, {"use_heterogeneous_vocab": True}):
            ours = refusals({"method": method} | more, Platform("cuda", "v2"))
            assert len(ours) == len(lacks(method=method, **more)), (method, more)
    assert {m for m in METHODS - {"none"} if lacks(method=m)} == V1_ONLY
