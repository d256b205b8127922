"""A file for what memory has no room for, and a folder for a backend: neither outlives the process.

Invariant: the file has no name, so it is gone with the process, or when nothing refers to it; the folder is new
when a backend begins, removed when it ends, and never used again after a crash.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkstemp
from typing import Final, TypeAlias

from statebackend.backends.backend import BackendError
from statebackend.backends.rocksdb_tables import named_errors

_READ: Final = "read what memory had no room for"


class ScratchFile:
    """Bytes on the local disk, which are appended and then read from anywhere. What the disk refuses has a name."""

    def __init__(self, folder: Path | None = None) -> None:
        """Make a new file on the disk of this folder, or where the system keeps temporary files."""
        with named_errors("make a file for what memory has no room for"):
            self._fd, path = mkstemp(dir=folder)
            weakref.finalize(self, os.close, self._fd)
            Path(path).unlink()

    def append(self, data: bytes) -> None:
        """Write at the end."""
        left = memoryview(data)
        with named_errors("write what memory has no room for"):
            while left:
                left = left[os.write(self._fd, left) :]

    def read(self, size: int, start: int) -> bytes:
        """Return `size` bytes from `start` on; fewer if the file ends."""
        with named_errors(_READ):
            return os.pread(self._fd, size, start)

    def read_each(self, sizes: Sequence[int], starts: Sequence[int]) -> list[bytes]:
        """Return the bytes from each start on, as many as its size."""
        fd, read = self._fd, os.pread
        with named_errors(_READ):
            return [read(fd, size, start) for size, start in zip(sizes, starts, strict=True)]


NewFile: TypeAlias = Callable[[], ScratchFile]
"""Makes a file where there is room for it."""


def make_fresh(folder: Path) -> None:
    """Make the folder, or take an empty one; raise `BackendError` if it has anything in it."""
    with named_errors(f"make {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BackendError(
                f"{folder} is not empty. A backend is never opened a second time, as it could not tell what a crash "
                f"left in it: delete the folder, or give another one"
            )


def remove(folder: Path) -> None:
    """Remove the folder; files that cannot be removed stay, for the clean-up that also follows crashes."""
    rmtree(folder, ignore_errors=True)
