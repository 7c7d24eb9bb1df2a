"""vLLM's own n-gram function, imported once per session (it loads all of vLLM)."""

import pytest


@pytest.fixture(scope="session")
def find():
    module = pytest.importorskip("vllm.v1.spec_decode.ngram_proposer", reason="the oracle is vLLM itself")
    return module._find_longest_matched_ngram_and_propose_tokens
