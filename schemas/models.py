"""Identity of a model folder: the same on every machine that holds the same files."""

import hashlib
from pathlib import Path

_SAMPLES, _SAMPLE_BYTES = 16, 65536


def fingerprint(model: str) -> str:
    """12 hex digits for a model folder: names and sizes of its files, config.json whole, weights sampled.

    A name that is no folder here (a hub name) stands for itself. Sampling 16 blocks of 64 KiB per file keeps a
    140 GB checkpoint as cheap as a small one.
    """
    folder = Path(model)
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if not file.is_file() or file.suffix not in (".json", ".safetensors", ".bin", ".jinja", ".model"):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as f:
            for i in range(_SAMPLES):
                f.seek(max(0, (size - _SAMPLE_BYTES) * i // (_SAMPLES - 1)))
                digest.update(f.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]
