"""What a model's files say of it: config, end tokens, sizes and types of its weights. Reads headers, never weights.

Knows folders and, where the hub's files are in the local cache, hub names. Imports no torch.
"""

import json
import math
import struct
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes per element by the names that safetensors headers use."""

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that vLLM turns into the engine's dtype when it loads an unquantised model."""

_MOST = 2**53
"""No number of anything in a model comes near it."""

_HEADER_LIMIT = 100_000_000
"""Bytes; the format's own limit on a header."""


@dataclass(frozen=True)
class Model:
    """A model by its files. `folder` is None when nothing of it is on this machine."""

    name: str
    folder: Path | None

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, {} if there is none."""
        return self._json("config.json")

    @cached_property
    def text(self) -> dict[str, Any]:
        """The part of the config that describes the language model."""
        inner = self.config.get("text_config")
        return self.config | inner if isinstance(inner, dict) else self.config

    def count(self, key: str) -> int | None:
        """A number of layers, heads, positions, … by the config; None where it says no whole number from 1."""
        value = self.text.get(key)
        return value if type(value) is int and 1 <= value < _MOST else None

    @property
    def vocab_size(self) -> int | None:
        """Rows of the model's output, padding included."""
        return self.count("vocab_size")

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an output by config.json and generation_config.json."""
        found: set[int] = set()
        for source in (self.text, self._json("generation_config.json")):
            value = source.get("eos_token_id")
            found |= {i for i in (value if isinstance(value, list) else [value]) if type(i) is int}
        return frozenset(found)

    @cached_property
    def weights(self) -> dict[str, int]:
        """Elements by stored type ("BF16", "I32", …), from the headers of the safetensors files; {} without any."""
        out: Counter[str] = Counter()
        for file in () if self.folder is None else sorted(self.folder.glob("*.safetensors")):
            for tensor in header(file).values():
                out[tensor["dtype"]] += math.prod(tensor["shape"])
        return dict(out)

    @cached_property
    def damaged(self) -> list[str]:
        """Names of the weight files that are cut, or no safetensors (a download that broke off, a Git LFS pointer)."""
        files = () if self.folder is None else sorted(self.folder.glob("model*.safetensors"))
        return [file.name for file in files if not _is_whole(file)]

    @property
    def quantised(self) -> bool:
        """Whether the checkpoint is stored quantised."""
        return "quantization_config" in self.config

    def weight_bytes(self, dtype_bytes: int | None) -> int | None:
        """Bytes of the weights in memory: floats of an unquantised model in the engine's dtype, all else as stored.

        Args:
            dtype_bytes: bytes per element of the engine's dtype; None = as stored.

        Returns:
            None when there is no safetensors file.
        """
        if not self.weights:
            return None
        each = dict(DTYPE_BYTES)
        if dtype_bytes is not None and not self.quantised:
            each |= dict.fromkeys(FLOATS, dtype_bytes)
        return sum(count * each.get(stored, 1) for stored, count in self.weights.items())

    def _json(self, name: str) -> dict[str, Any]:
        if self.folder is None:
            return {}
        try:
            found = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def model(name: str) -> Model:
    """The model of a folder, or of a hub name whose files are in the local cache."""
    folder = Path(name)
    if folder.is_dir():
        return Model(name, folder)
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return Model(name, None)
    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no hub name
        found = None
    return Model(name, Path(found).parent if isinstance(found, str) else None)


def header(file: Path) -> dict[str, dict[str, Any]]:
    """{tensor name: {dtype, shape, …}} of a safetensors file; {} if it is none, or damaged."""
    try:
        with file.open("rb") as source:
            (size,) = struct.unpack("<Q", source.read(8))
            found = json.loads(source.read(size)) if size <= _HEADER_LIMIT else {}
    except (OSError, ValueError, RecursionError, struct.error):
        return {}
    entries = (
        {name: entry for name, entry in found.items() if name != "__metadata__"} if isinstance(found, dict) else {}
    )
    return entries if all(map(_is_tensor, entries.values())) else {}


def _is_whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    try:
        ends = [entry["data_offsets"][1] for entry in header(file).values()]
        with file.open("rb") as source:
            (size,) = struct.unpack("<Q", source.read(8))
        return bool(ends) and 8 + size + max(ends) == file.stat().st_size
    except (OSError, LookupError, TypeError, struct.error):
        return False


def _is_tensor(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape = entry.get("shape")
    return isinstance(shape, list) and all(type(n) is int and 0 <= n < _MOST for n in shape)
