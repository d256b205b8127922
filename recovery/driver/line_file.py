"""A file to which whole lines are appended, on a disk that may be full, or out of order, for a while.

What always holds: no line is cut short but by a crash; lines are in their order; what the disk does not take waits in
memory, up to a limit, and is written with the next line that it takes. Nothing is raised once the file is open.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from pathlib import Path
from typing import Final

_MOST_WAITING: Final = 8 << 20
"""Bytes of lines that wait for room on the disk."""


class LineFile:
    """Open from now on until `close`. One thread at a time uses it.

    If more lines wait than there is memory for, they are left out; with `gaps=False` nothing is written any more then,
    so that what is there has no gap.
    """

    def __init__(self, path: Path, *, gaps: bool = True, most_waiting: int = _MOST_WAITING) -> None:
        self._path = path
        self._gaps = gaps
        self._most_waiting = most_waiting
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._left_out = 0
        self._failing = False
        self._ended = False
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._is_regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        self._torn = False

    def write(self, line: str) -> str:
        """Append a line, which ends with its newline. What is to be said of the disk now; mostly nothing."""
        if self._file is None or self._ended:
            return ""
        data = line.encode()
        self._waiting.append(data)
        self._bytes += len(data)
        try:
            while self._waiting:
                self._append(self._file, self._waiting[0])
                self._bytes -= len(self._waiting.popleft())
        except OSError as error:
            return self._failed(error)
        return self._works()

    def close(self) -> None:
        """Nothing follows; what still waits is dropped. May be said twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, file: int, line: bytes) -> None:
        start = os.fstat(file).st_size if self._is_regular else 0
        rest = memoryview(b"\n" + line if self._torn else line)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            if self._is_regular:
                os.ftruncate(file, start)
            else:
                self._torn = self._torn or len(rest) < len(line)
            raise
        self._torn = False

    def _failed(self, error: OSError) -> str:
        first, self._failing = not self._failing, True
        if self._bytes > self._most_waiting:
            self._left_out += len(self._waiting)
            self._waiting.clear()
            self._bytes = 0
            if not self._gaps:
                self._ended = True
                return f"{self._path} ends here: the disk has taken nothing for too long: {error}"
        return f"{self._path} takes no line, which is tried again with the next: {error}" if first else ""

    def _works(self) -> str:
        if not self._failing:
            return ""
        self._failing, left_out, self._left_out = False, self._left_out, 0
        missing = f"; {left_out} lines are missing" if left_out else ", and nothing is missing"
        return f"{self._path} takes lines again{missing}"
