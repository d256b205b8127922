"""A file for what memory has no room for: it has no name, so it is gone with the process, or when nobody has it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkstemp
from typing import Final, TypeAlias

from statebackend.backends.rocksdb_tables import named_errors

_READ: Final = "read what memory had no room for"


class ScratchFile:
    """Bytes on the local disk, which are appended and then read from anywhere. What the disk refuses has a name."""

    def __init__(self, folder: Path | None = None) -> None:
        """A new one on the disk of this folder, or where the system keeps what is temporary."""
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
        """So many bytes from there on; fewer if the file ends."""
        with named_errors(_READ):
            return os.pread(self._fd, size, start)

    def read_each(self, sizes: Sequence[int], starts: Sequence[int]) -> list[bytes]:
        """So many bytes from each place."""
        fd, read = self._fd, os.pread
        with named_errors(_READ):
            return [read(fd, size, start) for size, start in zip(sizes, starts, strict=True)]


NewFile: TypeAlias = Callable[[], ScratchFile]
"""Makes a file where there is room for it."""
