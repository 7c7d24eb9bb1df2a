"""What vLLM's CPU build leaves out, put back so that it can be tried here: asynchronous scheduling, and the V2 runner.

Both go in by vLLM's and Triton's own entry points, from a folder on the engine's PYTHONPATH. The CPU platform only
switches asynchronous scheduling off; a plugin keeps it on. The V2 runner's kernels need Triton; its interpreter runs
them without a GPU. Triton is not installed with this project: SPECREPLAY_TEST_TRITON names a folder that holds it
(`pip install --no-deps --target FOLDER triton`), or it is importable.
"""

import importlib.util
import os
from pathlib import Path

import pytest

_PLUGIN = """
def register():
    from vllm.platforms.cpu import CpuPlatform

    if hasattr(CpuPlatform, "without_async"):
        return
    CpuPlatform.without_async = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, config):
        wanted = config.scheduler_config.async_scheduling
        cls.without_async(cls, config)
        config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
"""
_COMPILER = """
from triton.backends.compiler import BaseBackend


class Interpreted(BaseBackend):
    supports_target = staticmethod(lambda target: target.backend == "cpu")
    hash = parse_options = add_stages = load_dialects = get_module_map = lambda self, *args: None


Interpreted.__abstractmethods__ = frozenset()
"""
_DRIVER = """
from triton.backends.driver import DriverBase


class NoDriver(DriverBase):
    is_active = staticmethod(lambda: False)


NoDriver.__abstractmethods__ = frozenset()
"""


def keep_async(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Engines started from here on schedule asynchronously unless told otherwise."""
    (folder / "keep_async.py").write_text(_PLUGIN)
    _declare(folder, "keep-async", "vllm.general_plugins", "keep_async = keep_async:register")
    _add(patch, folder)


def interpret_v2(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Engines started from here on may use the V2 runner; skips the test where there is no Triton."""
    given = os.environ.get("SPECREPLAY_TEST_TRITON")
    if given:
        patch.syspath_prepend(given)
        _add(patch, Path(given))
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton here: SPECREPLAY_TEST_TRITON names a folder that holds it")
    package = folder / "interpreted_triton"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "compiler.py").write_text(_COMPILER)
    (package / "driver.py").write_text(_DRIVER)
    _declare(folder, "interpreted-triton", "triton.backends", "cpu = interpreted_triton")
    _add(patch, folder)
    patch.setenv("TRITON_INTERPRET", "1")


def _declare(folder: Path, name: str, group: str, entry: str) -> None:
    info = folder / f"{name.replace('-', '_')}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


def _add(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("PYTHONPATH", os.pathsep.join(p for p in (str(folder), os.environ.get("PYTHONPATH")) if p))
