"""The ledger that vLLM is asked for, against an engine that was really started, and against arithmetic by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_folders import DEMO

pytestmark = pytest.mark.live

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HERE = Path(__file__).parent
K, BLOCKS, LIMIT = 3, 20, 200
HEADS = ("eagle", "eagle3", "medusa")


def spec(model: str, speculative: dict | None = None, ledger: dict | None = None, limit: int = LIMIT, **args) -> dict:
    return {
        "model": model,
        "engine_args": {"skip_tokenizer_init": True} | args,
        "speculative": speculative and speculative | {"num_speculative_tokens": K},
        "proposer": "mine",
        "sampling": {},
        "concurrency": 2,
        "max_model_len": limit,
        "tail_tokens": 0,
        "ledger": ledger or {},
    }


def run(what: str, specs: list[dict], folder: Path) -> list[dict]:
    file = folder / f"{what}.json"
    file.write_text(json.dumps(specs))
    paths = [str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "engine_memory.py"), what, str(file)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def saved(folder: Path, config, architecture: str) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"architectures": [architecture]}))
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def models(folder) -> dict[str, str]:
    from tests.replay.tiny_models import build

    return build(folder / "models")


@pytest.fixture(scope="module")
def specs(models, folder) -> dict[str, dict]:
    blocks = {"num_gpu_blocks_override": BLOCKS}
    out = {name: spec(models["target"], {"method": name, "model": models[name]}, **blocks) for name in HEADS}
    out["mtp"] = spec(models["mimo"], {"method": "mtp"}, **blocks, trust_remote_code=True)
    own = {"method": "custom_class", "model": "tests.replay.live.continuing_proposer.Continuing"}
    out["class"] = spec(models["target"], own, **blocks)
    demo = {"method": "draft_model", "model": str(DEMO / "draft")}
    out["demo"] = spec(str(DEMO / "target"), demo, **blocks)
    gigabyte = {"device_memory": 2**30, "lengths": {"short": 100, "long": 1000}}
    sizes = dict(vocab_size=2048, hidden_size=64, intermediate_size=128, max_position_embeddings=1024, dtype="float32")
    gqa = transformers.Qwen3Config(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32, **sizes
    )
    grouped = saved(folder / "gqa", gqa, "Qwen3ForCausalLM")
    args = {"dtype": "bfloat16", "block_size": 16}
    out["gqa"] = spec(grouped, None, gigabyte, 1024, **args)
    out["gqa on two"] = spec(grouped, None, gigabyte | {"devices": 2}, 1024, **args)
    out["gqa fp8"] = spec(grouped, None, gigabyte, 1024, **args, kv_cache_dtype="fp8")
    out["gqa tight"] = spec(grouped, None, gigabyte | {"device_memory": 1_500_000}, 1024, **args)
    latent = transformers.DeepseekV3Config(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=512,
        qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=8, n_group=2, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=1, moe_intermediate_size=32, **sizes,
    )  # fmt: skip
    out["mla"] = spec(saved(folder / "mla", latent, "DeepseekV3ForCausalLM"), None, gigabyte, 1024, **args)
    return out


@pytest.fixture(scope="module")
def ledgers(specs, folder) -> dict[str, dict]:
    return dict(zip(specs, run("ask", list(specs.values()), folder), strict=True))


def agree(ledger: dict, engine: dict) -> None:
    assert ledger["weights"] == {"target": engine["target"], "draft": engine["draft"]}
    for key in ("kv_cache_bytes", "blocks", "kv_cache_tokens"):
        assert ledger[key] == engine[key], key
    assert ledger["blocks"] == BLOCKS and ledger["budget_from"] == "config"


@pytest.mark.slow
def test_a_head_with_a_vocabulary_of_its_own(specs, ledgers, folder):
    """EAGLE-3: its embedding is the target's, byte for byte, and shared; its output is its own."""
    (engine,) = run("start", [specs["eagle3"]], folder)
    agree(ledgers["eagle3"], engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle", "medusa", "mtp", "demo"])
def test_every_other_kind_of_draft(specs, ledgers, folder, name):
    (engine,) = run("start", [specs[name]], folder)
    agree(ledgers[name], engine)


def test_heads_by_hand(ledgers):
    layer = {"target": 2 * 2 * 2 * 32 * 4, "draft": 2 * 2 * 32 * 4}  # layers × two × heads × size × bytes
    for name in ("eagle", "eagle3", "mtp"):
        assert ledgers[name]["kv_bytes_per_token"] == layer
    assert ledgers["medusa"]["kv_bytes_per_token"] == {"target": 1024, "draft": 0}
    assert ledgers["medusa"]["weights"]["draft"] == 3 * (64 * 64 + 64 * 64) * 4  # three blocks and padded outputs
    assert ledgers["class"]["kv_bytes_per_token"] == {"target": layer["target"], "draft": 0}  # holds what it likes
    assert ledgers["class"]["weights"] == {"target": ledgers["medusa"]["weights"]["target"], "draft": 0}
    assert ledgers["demo"]["kv_bytes_per_token"] == {"target": 6144, "draft": 2048}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gqa", 3 * 2 * 2 * 32 * 2),
        ("gqa on two", 3 * 2 * 1 * 32 * 2),  # each device has one of the two KV heads
        ("gqa fp8", 3 * 2 * 2 * 32),
        ("mla", 3 * (512 + 64) * 2),
    ],
)
def test_kv_bytes_per_token(ledgers, name, expected):
    assert ledgers[name]["kv_bytes_per_token"] == {"target": expected, "draft": 0}


def test_a_device_that_is_not_here(ledgers):
    found = ledgers["gqa"]
    room = -(-(2**30) * 92 // 100) - found["weights"]["target"] - found["tables"]
    each = 16 * 3 * 2 * 2 * 32 * 2
    assert found["blocks"] == room // each
    assert found["kv_cache_tokens"] == found["blocks"] * 16  # 1,024 is a multiple of 16
    # 100 tokens take 7 blocks, 1,000 take 63; one block is vLLM's own
    assert found["fits"] == {"short": (found["blocks"] - 1) // 7, "long": (found["blocks"] - 1) // 63}
    assert ledgers["gqa on two"]["weights"]["target"] == found["weights"]["target"] // 2


def test_no_room_for_one_request(ledgers):
    assert "too little for one request of max_model_len = 1,024" in ledgers["gqa tight"]["refused"]
    assert "fits" not in ledgers["gqa tight"]
