"""The replacement for the CPU build's faulty function, and when it is put in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.live.cpu_sampler import WHAT, expand_batch_to_tokens, mend, right
from schemas.errors import EnvironmentProblem

torch = pytest.importorskip("torch")


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int32, torch.int64]),
    data=st.data(),
)
def test_each_value_is_repeated_for_its_tokens(counts, dtype, data):
    values = data.draw(st.lists(st.integers(0, 9), min_size=len(counts), max_size=len(counts)))
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    got = expand_batch_to_tokens(torch.tensor(values, dtype=dtype), ends, sum(counts), replace_from=3, replace_to=8)
    assert got.dtype == dtype
    assert got.tolist() == [8 if v == 3 else v for v, n in zip(values, counts, strict=True) for _ in range(n)]


@pytest.fixture
def sampler(monkeypatch):
    """vLLM's module, with its function replaced by whatever a test puts in."""
    module = pytest.importorskip("vllm.v1.sample.rejection_sampler")
    monkeypatch.setattr(module, "expand_batch_to_tokens", module.expand_batch_to_tokens)
    return module


def zeros(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    return x.new_zeros(num_tokens)


def no_replacement(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    return expand_batch_to_tokens(x, cu_num_tokens, num_tokens, -1, -1)


def rightly(*args, **more):
    return expand_batch_to_tokens(*args, **more)


def test_only_a_right_function_passes():
    assert right(rightly) and not right(zeros) and not right(no_replacement)


def test_a_faulty_function_is_replaced_once_and_named(sampler):
    sampler.expand_batch_to_tokens = zeros
    assert mend() == WHAT == mend() and sampler.expand_batch_to_tokens is expand_batch_to_tokens
    assert f"{sampler.__name__}.expand_batch_to_tokens" == WHAT


def test_a_right_function_stays(sampler):
    sampler.expand_batch_to_tokens = rightly
    assert mend() is None and sampler.expand_batch_to_tokens is rightly


def test_a_fault_in_another_version_is_refused(sampler, monkeypatch):
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.33.1+cpu")
    sampler.expand_batch_to_tokens = zeros
    with pytest.raises(EnvironmentProblem, match=r"vLLM 0\.33\.1\+cpu verifies candidates wrongly"):
        mend()
    assert sampler.expand_batch_to_tokens is zeros
