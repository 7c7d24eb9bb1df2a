"""Folders with prompts that a killed replay could not remove: the next one removes them.

A folder in use is locked, and the kernel lets go of a lock with its owner: no process id that could be another's by
now, or of another container. Knows nothing of what is in a folder.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "specreplay-engine-"
"""Of the folders' names, in the temporary folder; `tempfile` adds eight characters, and lets nobody else in."""

YOUNG_S = 10.0
"""A folder without a lock is left alone for so long: its owner may be about to lock it."""


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Nobody sweeps the folder until the end, or until this process has died."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: `sweep` cannot lock there either
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def sweep() -> None:
    """Remove this user's folders in the temporary folder that nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + 8 * "?"):
        with suppress(OSError):  # someone else's, or just removed
            _remove(folder)


def _remove(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(handle)
        mine = (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.getuid(), 0o700)
        if mine and time.time() - found.st_mtime > YOUNG_S:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
