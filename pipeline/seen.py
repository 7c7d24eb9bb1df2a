"""Which 64-bit keys have come before, and with what value: 16 bytes each, however many there are."""

import hashlib

import numpy as np

_MERGE = 1 << 16


def key(text: str | bytes) -> int:
    """A 64-bit key of a name (two of ten million names are alike with a chance of 1 in 400,000)."""
    return int.from_bytes(hashlib.blake2b(text.encode() if isinstance(text, str) else text, digest_size=8).digest())


class Seen:
    """A map from 64-bit key to 64-bit value that only grows."""

    def __init__(self) -> None:
        self._new: dict[int, int] = {}
        self._keys = np.empty(0, np.uint64)
        self._values = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self._keys) + len(self._new)

    def setdefault(self, key: int, value: int = 0) -> int | None:
        """The value this key came with first, or None where it is new (and now has this value)."""
        first = self._new.get(key)
        if first is not None:
            return first
        at = int(np.searchsorted(self._keys, np.uint64(key)))
        if at < len(self._keys) and self._keys[at] == key:
            return int(self._values[at])
        self._new[key] = value
        if len(self._new) >= _MERGE:
            keys = np.concatenate([self._keys, np.fromiter(self._new.keys(), np.uint64, len(self._new))])
            values = np.concatenate([self._values, np.fromiter(self._new.values(), np.uint64, len(self._new))])
            order = np.argsort(keys, kind="stable")
            self._keys, self._values, self._new = keys[order], values[order], {}
        return None


class KeySet:
    """A growing set of 64-bit keys, 8 bytes each, added and looked up by the array."""

    def __init__(self) -> None:
        self._levels: list[np.ndarray] = []

    def __len__(self) -> int:
        """Keys held; one that was added at different times may count more than once."""
        return sum(map(len, self._levels))

    def contains(self, keys: np.ndarray) -> np.ndarray:
        """Which of `keys` (uint64) have been added, as bool."""
        found = np.zeros(len(keys), bool)
        for level in self._levels:
            found |= level[np.minimum(np.searchsorted(level, keys), len(level) - 1)] == keys
        return found

    def update(self, keys: np.ndarray) -> None:
        """Add `keys` (uint64). Sorted levels of falling size keep both this and look-ups cheap."""
        new = np.unique(keys)
        while self._levels and len(self._levels[-1]) <= 2 * len(new):
            new = np.union1d(self._levels.pop(), new)
        if len(new):
            self._levels.append(new)
