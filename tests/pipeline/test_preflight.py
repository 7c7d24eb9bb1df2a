"""The preflight as a command and before a replay: what it says, what it ends, what it leaves in the plan."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_traces import NGRAM, config, rows, table

from pipeline.plan import plan
from pipeline.preflight import before_replay, exit_code, preflight, show
from pipeline.run import replay
from pipeline.warehouse import Warehouse
from replay.preflight.findings import Finding
from schemas.errors import InputError

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "models"
DRAFT = {"method": "draft_model", "model": str(MODELS / "draft"), "num_speculative_tokens": 4}
LIVE = {"kind": "vllm", "model": str(MODELS / "target"), "concurrency": 2, "sampling": {"max_tokens": 24}}
BIASED = {"logit_bias": {"5": 2.0}}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """Twelve requests, three of which ask for a logit bias."""
    house = Warehouse(tmp_path_factory.mktemp("preflight") / "wh")
    made = rows(12)
    for row in made:
        row |= {"sampling": json.dumps(BIASED)} if row["request_id"] in ("r3", "r4", "r9") else {}
    house.write_trace("small", [table(made)])
    return house


def checks(findings: list[Finding], *keys: str) -> list[tuple]:
    return [tuple(getattr(finding, key) for key in keys) for finding in findings]


@pytest.mark.live
def test_a_refusal_ends_a_replay_before_an_engine_starts(warehouse):
    with pytest.raises(InputError) as error:
        replay(config(NGRAM, engine=LIVE), warehouse)
    line = str(error.value)
    assert line.startswith("requests: proposer 'ngram 2-4 k3': 3 of 12 requests (such as 'r3'): ")
    assert "logit_bias" in line and "\n" not in line
    assert warehouse.find_run(plan(config(NGRAM, engine=LIVE), warehouse).run) is None


@pytest.mark.live
def test_warnings_are_told_and_kept(warehouse):
    """Without speculation the bias is fine; a limit of 40 tokens cuts some of the outputs."""
    limited = config({}, engine=LIVE, trace={"max_model_len": 41})
    planned, told = plan(limited, warehouse), []
    kept = before_replay(planned, warehouse, told.append)
    over = sum(row["prompt_tokens"] + 24 > 41 for row in rows(12))
    assert 0 < over < 12
    assert checks(told, "check", "proposer", "level") == [("context", None, "warning")]
    assert kept == [told[0].as_dict()] and kept[0]["figures"]["over"] == over
    json.dumps(kept)


def test_a_recorded_config_is_checked_by_its_files(warehouse):
    recorded = config(DRAFT, NGRAM, engine={"model": str(MODELS / "target")})
    found = preflight(recorded, warehouse, device_memory=2**30)
    assert exit_code(found) == 0
    name = "draft_model k4"
    assert checks(found, "check", "proposer", "level") == [
        ("requests", None, "warning"),
        ("context", None, "ok"),
        ("memory", None, "ok"),
        ("vocabulary", name, "ok"),
        ("special tokens", name, "ok"),
        ("chat template", name, "ok"),
        ("context", name, "ok"),
        ("memory", name, "ok"),
    ]
    with_output = [row for row in rows(12) if row["output_token_ids"] is not None]
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in with_output)
    assert found[1].figures["longest"] == longest
    draft = found[-1].figures
    assert draft["kv_bytes_per_token"] == {"target": 3072, "draft": 1024}  # bfloat16, as the checkpoints are
    assert draft["fits"]["max"] == draft["kv_cache_tokens"] // (longest + 4)


def test_a_download_that_broke_off(warehouse, tmp_path):
    for who in ("target", "draft"):
        shutil.copytree(MODELS / who, tmp_path / who)
        file = tmp_path / who / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    draft = DRAFT | {"model": str(tmp_path / "draft")}
    recorded = preflight(config(draft, engine={"model": str(tmp_path / "target")}), warehouse)
    # recorded replay loads the draft and never the target
    assert [(f.proposer, f.level) for f in recorded if f.check == "weights"] == [("draft_model k4", "refusal")]
    live = preflight(config(draft, engine={"kind": "vllm", "model": str(tmp_path / "target")}), warehouse)
    said = [(f.proposer, f.found) for f in live if f.check == "weights"]
    cut = [f"{str(tmp_path / who)!r}: model.safetensors is cut, or no safetensors file" for who in ("target", "draft")]
    assert said == [(None, cut[0]), ("draft_model k4", cut[1])]
    assert exit_code(live) == exit_code(recorded) == 2


def test_a_draft_without_a_target_is_not_compared(warehouse):
    found = preflight(config(DRAFT), warehouse)
    assert ("vocabulary", "warning") in checks(found, "check", "level")


def test_lookups_have_nothing_to_compare(warehouse):
    (bias, *_) = found = preflight(config(NGRAM, trace={"workload": ["edit"]}), warehouse)
    assert exit_code(found) == 0 and bias.level in ("ok", "warning")


def test_the_table_fits_its_width(warehouse, capsys):
    recorded = config(DRAFT, engine={"model": str(MODELS / "target")})
    planned = plan(recorded, warehouse)
    long = Finding("vocabulary", "a\x1b[31m" + "x" * 200, "refusal", "word " * 60, "do " * 50)
    show(planned, [*preflight(recorded, warehouse, device_memory=2**30), long])
    said = capsys.readouterr().out
    assert max(len(line) for line in said.splitlines()) <= 100
    assert "\x1b" not in said
    assert "1 refusal, 1 warning" in said and "draft_model k4" in said and "a token" in said


def test_a_device_that_is_too_small_is_a_table_too(warehouse, capsys):
    planned = plan(config(DRAFT, engine={"model": str(MODELS / "target")}), warehouse)
    found = preflight(planned.config, warehouse, device_memory=80)  # a unit forgotten
    assert exit_code(found) == 2
    show(planned, found)
    said = " ".join(capsys.readouterr().out.split())
    assert "more than 92% of the device's 80 B" in said and "2 refusals" in said


def specreplay(*args: object, before: str = "") -> subprocess.CompletedProcess:
    code = f"{before}\nimport sys\nfrom pipeline.cli import main\nsys.argv = ['specreplay', *sys.argv[1:]]\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def written(folder: Path, engine: str, proposer: str) -> Path:
    file = folder / "config.toml"
    file.write_text(f'[trace]\nname = "small"\n[engine]\n{engine}\n[[proposer]]\nconfig = {proposer}\n')
    return file


WITHOUT = """
import importlib.abc, importlib.metadata, sys
GONE = {names!r}
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
version = importlib.metadata.version
def hidden(name):
    if name.replace("-", "_").removesuffix("_cpu") in GONE:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = hidden
"""


def without(*names: str) -> str:
    return WITHOUT.replace("{names!r}", repr(set(names)))


def test_a_laptop_without_vllm(warehouse, tmp_path):
    draft = f'{{ method = "draft_model", model = "{MODELS / "draft"}", num_speculative_tokens = 4 }}'
    file = written(tmp_path, f'kind = "vllm"\nmodel = "{MODELS / "target"}"', draft)
    done = specreplay("preflight", file, "--json", "--warehouse", warehouse.root, before=without("vllm"))
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert {frozenset(line) - {"figures"} for line in found} == {
        frozenset({"check", "proposer", "level", "found", "remedy"})
    }
    levels = {(line["check"], line["proposer"]): line["level"] for line in found}
    assert levels[("environment", None)] == "refusal"
    assert levels[("vocabulary", "draft_model k4")] == levels[("memory", "draft_model k4")] == "ok"
    assert levels[("requests", None)] == "warning"  # three ask for a logit bias


@pytest.mark.live
@pytest.mark.slow
def test_suffix_needs_arctic_inference(warehouse, tmp_path):
    file = written(tmp_path, f'kind = "vllm"\nmodel = "{MODELS / "target"}"', '{ method = "suffix" }')
    done = specreplay("replay", file, "--warehouse", warehouse.root, before=without("arctic_inference"))
    assert done.returncode == 4, done.stderr
    assert "arctic-inference is not installed" in done.stderr and done.stderr.count("\n") == 1


def test_nothing_is_read_for_a_size_that_is_none(warehouse, tmp_path):
    file = written(tmp_path, "", '{ method = "ngram", num_speculative_tokens = 2 }')
    done = specreplay("preflight", file, "--device-memory", "lots", "--warehouse", warehouse.root)
    assert (done.returncode, done.stderr) == (
        2,
        "specreplay: --device-memory 'lots' is no size; write it as 80GiB or 24GB\n",
    )
