"""Bytes by hand and by the safetensors library against the files-only estimate, and the ledger in words."""

import json
import math

import pytest
from model_folders import DEMO, copy

from replay.preflight.folder import Model, model
from replay.preflight.ledger import estimate, memory, parse_size, per_token, size
from replay.preflight.lengths import Lengths, rope
from schemas.errors import InputError

np = pytest.importorskip("numpy")
LENGTHS = Lengths(np.array([100, 200, 700]), np.array([50, 50, 50]))
TARGET, DRAFT = (model(str(DEMO / name)) for name in ("target", "draft"))


def made(**config) -> Model:
    out = Model("m", None)
    out.__dict__["config"] = config
    return out


@pytest.mark.parametrize("name", ["target", "draft"])
def test_weights_by_the_librarys_own_reading(name):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    tensors = load_file(DEMO / name / "model.safetensors").values()
    found = model(str(DEMO / name))
    assert found.weight_bytes(None) == sum(t.numel() * t.element_size() for t in tensors)
    assert found.weight_bytes(4) == sum(t.numel() for t in tensors) * 4
    assert all(t.dtype == torch.bfloat16 for t in tensors)


def test_a_quantised_checkpoint_counts_as_stored(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    folder = copy(tmp_path / "q", quantization_config={"quant_method": "gptq"})
    tensors = {
        "a.qweight": torch.zeros(16, 8, dtype=torch.int32),
        "a.scales": torch.zeros(4, 8, dtype=torch.float16),
        "b.weight": torch.zeros(8, 8, dtype=torch.float8_e4m3fn),
    }
    save_file(tensors, folder / "model-00001-of-00002.safetensors")
    save_file({"c.weight": torch.zeros(10, dtype=torch.bfloat16)}, folder / "model-00002-of-00002.safetensors")
    found = model(str(folder))
    assert found.quantised and found.weight_bytes(4) == 16 * 8 * 4 + 4 * 8 * 2 + 8 * 8 + 10 * 2


@pytest.mark.parametrize(
    ("config", "dtype", "expected"),
    [
        # layers × (key and value) × KV heads × head size × bytes
        (
            dict(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_size=4096),
            "bfloat16",
            131072,
        ),
        (dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=64), "float32", 2 * 2 * 4 * 16 * 4),
        (
            dict(num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, hidden_size=64, head_dim=128),
            "float16",
            3 * 2 * 128 * 2,
        ),
        # MLA keeps one latent vector, for DeepSeek-V3 (512 + 64) × 61 layers
        (
            dict(
                num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64, num_attention_heads=128, hidden_size=7168
            ),
            "bfloat16",
            70272,
        ),
        # one attention layer in four
        (
            dict(
                num_hidden_layers=4,
                layer_types=["linear_attention"] * 3 + ["full_attention"],
                num_attention_heads=4,
                hidden_size=64,
            ),
            "bfloat16",
            2 * 4 * 16 * 2,
        ),
        (dict(hidden_size=64), "bfloat16", None),
    ],
)
def test_kv_bytes_per_token(config, dtype, expected):
    assert per_token(made(**config), dtype) == expected


def test_the_estimate_adds_up():
    device = 200 * 2**20
    found = estimate(TARGET, DRAFT, LENGTHS.typical(), dtype="float32", candidates=4, device_memory=device)
    target = 4 * 2 * 3 * 64 * 4
    draft = 2 * 2 * 2 * 64 * 4
    assert found["kv_bytes_per_token"] == {"target": target, "draft": draft} == {"target": 6144, "draft": 2048}
    weights = sum(
        math.prod(entry["shape"]) * 4
        for name in ("target", "draft")
        for entry in _entries(DEMO / name / "model.safetensors")
    )
    assert sum(found["weights"].values()) == weights
    tokens = (int(device * 0.92) - weights) // (target + draft)
    assert found["kv_cache_tokens"] == tokens
    assert found["fits"]["max"] == tokens // (750 + 4)


def _entries(file):
    raw = file.read_bytes()
    return [e for k, e in json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).items() if k != "__metadata__"]


def test_what_is_unknown_is_said():
    assert "fits" not in estimate(TARGET, DRAFT, {}, dtype=None, candidates=4, device_memory=None)
    found = estimate(TARGET, made(), {}, dtype=None, candidates=4, device_memory=None)
    (line,) = memory("mine", found, None, LENGTHS, None)
    assert line.level == "warning" and "'m' is not on this machine" in line.found


def entry(**of_a) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [2]} | of_a}).encode()


@pytest.mark.parametrize(
    "header",
    [b"", b"[1]", b"5", b"null", b"[" * 100_000, b'{"a": 5}', b'{"a": {"dtype": "F32"}}', entry(shape="x"),
     entry(shape=[-1]), entry(shape=[True]), entry(shape=[10**30]), entry(dtype=None), entry(dtype=[1])],
    ids=lambda header: header[:20].decode(),
)  # fmt: skip
def test_weights_that_cannot_be_read(tmp_path, header):
    folder = copy(tmp_path / "m")
    file = folder / "model.safetensors"
    for data in (len(header).to_bytes(8, "little") + header, (2**63).to_bytes(8, "little") + header, header[:5]):
        file.write_bytes(data)
        found = estimate(model(str(folder)), None, {}, dtype=None, candidates=0, device_memory=None)
        assert found["unknown"] == f"{str(folder)!r} has no safetensors files that can be read"
    file.write_bytes(len(entry()).to_bytes(8, "little") + entry())
    assert model(str(folder)).weights == {"F32": 2}


def test_weights_that_are_cut(tmp_path):
    folder = copy(tmp_path / "m")
    file = folder / "model.safetensors"
    whole = (DEMO / "target" / file.name).read_bytes()
    file.write_bytes(whole)
    assert model(str(folder)).damaged == []  # as the safetensors library wrote it
    for data in (
        whole[:-1],
        whole + b"x",
        whole[:100],
        whole[:5],
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
    ):
        file.write_bytes(data)
        assert model(str(folder)).damaged == ["model.safetensors"]
    file.unlink()
    assert model(str(folder)).damaged == model("no/such-model").damaged == []


@pytest.mark.parametrize("data", ["", "[1]", "{", "[" * 100_000, b"\xff\xfe"])
def test_a_config_that_cannot_be_read(tmp_path, data):
    folder = copy(tmp_path / "m")
    (folder / "config.json").write_bytes(data if isinstance(data, bytes) else data.encode())
    found = estimate(model(str(folder)), None, {}, dtype=None, candidates=0, device_memory=None)
    assert found["unknown"] == f"{str(folder)!r} has no config.json that can be read"


@pytest.mark.parametrize("value", ["x", True, 0, -2, 1.5, [1], 10**30])
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim"]
)
def test_sizes_that_are_none_are_no_sizes(tmp_path, key, value):
    folder = copy(tmp_path / "m", **{key: value})
    found = estimate(model(str(folder)), None, {}, dtype=None, candidates=0, device_memory=2**30)
    assert found["unknown"] == f"config.json of {str(folder)!r} does not tell layers, heads and sizes as whole numbers"


def test_other_values_that_make_no_sense_are_passed_over():
    shape = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=64)
    assert per_token(made(**shape, layer_types=[1, "full_attention"]), "float16") == 2 * 1 * 4 * 16 * 2
    for key in ("vocab_size", "max_position_embeddings", "sliding_window", "kv_lora_rank"):
        assert [made(**{key: v}).count(key) for v in (True, -1, 0, "9", 1e400, 9)] == [None] * 5 + [9]
    assert made(eos_token_id=[2, True, "a", None]).end_ids == {2}
    for settings in ([1], "yarn", 5, {"factor": None}):
        assert rope(made(rope_parameters=settings)) == "RoPE default"


def test_weights_that_do_not_fit():
    found = estimate(TARGET, None, LENGTHS.typical(), dtype="float32", candidates=0, device_memory=1_000_000)
    (line,) = memory(None, found, None, LENGTHS, None)
    assert line.level == "refusal" and "7.7 MiB, more than 92% of the device's 976.6 KiB" in line.found


@pytest.mark.parametrize(
    ("before", "now", "level"), [(8, 8, "ok"), (8, 7, "warning"), (7, 6, "ok"), (20, 12, "ok"), (9, 0, "warning")]
)
@pytest.mark.parametrize("whence", ["device", "config", "specreplay"])
def test_a_draft_that_makes_too_few_requests_fit(before, now, level, whence):
    def figures(fit: int, tokens: int) -> dict:
        fits = dict.fromkeys(("mean", "p50", "p95", "max"), fit)
        return {
            "weights": {"target": 100, "draft": 0 if fit == before else 10},
            "kv_bytes_per_token": {"target": 4, "draft": 2},
            "budget_from": whence,
            "kv_cache_tokens": tokens,
            "kv_cache_bytes": 6 * tokens,
            "fits": fits,
        }

    (line,) = memory("mine", figures(now, 75), figures(before, 100), LENGTHS, 8)
    assert line.level == ("ok" if whence == "specreplay" else level)  # we size a cache for what is in flight
    assert whence != "device" or "75 tokens instead of 100 (-25.0%)" in line.found


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80GiB", 80 * 2**30), (" 24 GB ", 24 * 10**9), ("1.5MiB", 3 * 2**19), ("4096", 4096), ("7KiB", 7168)],
)
def test_sizes_are_read(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "80G", "-1GiB", "0", "1e9", "80 gib", "nan", "9" * 400, "\uff11GiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="--device-memory"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (3 * 2**19, "1.5 MiB"), (2**45, "32.0 TiB")]
)
def test_sizes_are_written(count, said):
    assert size(count) == said
