"""Imports point one way (dashboards → pipeline → replay → schemas), and heavy libraries stay where they belong."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ["schemas", "replay", "pipeline", "dashboards"]

# library: prefixes of the modules that may import it.
HEAVY = {
    "vllm": ["replay/live/"],
    "torch": [
        "replay/live/",
        *(f"replay/recorded/{name}.py" for name in ("draft_model", "draft_forward", "parallel_draft")),
    ],
    "transformers": [
        "replay/recorded/draft_model.py",
        "replay/recorded/vocabulary.py",
        "replay/preflight/templates.py",
        "pipeline/ingest/tokenise.py",
    ],
    "arctic_inference": [],
    "numba": ["replay/recorded/"],
    "duckdb": ["pipeline/views.py", "pipeline/rollups.py", "pipeline/export.py"],
    "deltalake": ["pipeline/export.py"],
    "streamlit": ["dashboards/"],
    "obstore": ["pipeline/"],
    "ray": [],
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module or "")
    return found


FILES = [f for room in ROOMS for f in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_direction(file):
    room = ROOMS.index(file.relative_to(ROOT).parts[0])
    above = set(ROOMS[room + 1 :])
    wrong = {name for name in imports(file) if name.split(".")[0] in above}
    assert not wrong, f"imports upwards: {wrong}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_heavy_libraries(file):
    path = file.relative_to(ROOT).as_posix()
    for name in imports(file):
        allowed = HEAVY.get(name.split(".")[0])
        assert allowed is None or path.startswith(tuple(allowed)), f"{path} must not import {name}"


def test_the_rooms_hold_what_is_declared():
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {f.parent.relative_to(ROOT).as_posix().replace("/", ".") for f in FILES if f.name == "__init__.py"}
    assert set(declared) == found
