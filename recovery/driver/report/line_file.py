"""A file to which whole lines are appended, on a disk that may be full, or out of order, for a while.

Invariant: no line is cut short but by a crash; lines are in their order; what the disk does not take waits in
memory, up to a limit, and is written with the next line that it takes. Nothing is raised once the file is open. A file
that is made is closed to other users, and no link is followed to one, lest another user has put it there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

_SYSTEM: Final = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""The folders in which only the system makes links, such as that of `/dev/stdout`."""
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_MODE: Final = 0o600
_MOST_WAITING: Final = 8 << 20
"""Bytes of lines that wait for room on the disk."""


class LineFile:
    """Open from now on until `close`. One thread at a time uses it.

    With `largest`, a file that would have more bytes is renamed, with `.1` at the end of its name in place of the one
    that has that, and a new one is begun. If more lines wait than there is memory for, they are left out; with
    `gaps=False` nothing is written any more then, so that what is there has no gap.
    """

    def __init__(
        self, path: Path, *, gaps: bool = True, most_waiting: int = _MOST_WAITING, largest: int | None = None
    ) -> None:
        self._path = path
        self._gaps = gaps
        self._largest = largest
        self._most_waiting = most_waiting
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._left_out = 0
        self._failing = False
        self._outgrown = False
        self._ended = False
        self._file: int | None = _open(path)
        self._is_regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        self._torn = False

    def write(self, line: str) -> str:
        """Append a line, which ends with its newline; return what to report of the disk now, mostly nothing."""
        if self._file is None or self._ended:
            return ""
        data = line.encode()
        self._waiting.append(data)
        self._bytes += len(data)
        said = ""
        try:
            while self._waiting:
                said = self._make_room(len(self._waiting[0])) or said
                self._append(self._file, self._waiting[0])
                self._bytes -= len(self._waiting.popleft())
        except OSError as error:
            return self._failed(error)
        return self._works() or said

    def close(self) -> None:
        """Close the file, and drop the lines that still wait; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _make_room(self, size: int) -> str:
        """Begin a new file, if the line would make this one too large."""
        assert self._file is not None
        here = os.fstat(self._file)
        if self._largest is None or not self._is_regular or here.st_size + size <= self._largest or not here.st_size:
            return ""
        try:
            with suppress(FileNotFoundError):
                if os.path.samestat(here, self._path.lstat()):  # else another process has begun a new one
                    self._path.replace(f"{self._path}.1")
            new = _open(self._path)
            with suppress(OSError):
                os.fchmod(new, stat.S_IMODE(here.st_mode))
        except OSError as error:
            first, self._outgrown = not self._outgrown, True
            return f"{self._path} is to be replaced by a new file, and cannot be, so it grows on: {error}" * first
        os.close(self._file)
        self._file, self._outgrown = new, False
        return ""

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


def _open(path: Path) -> int:
    """Open the file for appending; raise `OSError` if another user may have put there what the path names."""
    if path.parent in _SYSTEM:
        return os.open(path, _FLAGS, _MODE)
    try:
        file = os.open(path, _FLAGS | os.O_NOFOLLOW, _MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a link, which is not followed; name the file itself", str(path)) from None
        raise
    found = os.fstat(file)
    if found.st_uid not in (os.geteuid(), 0):
        why = f"it belongs to user {found.st_uid}"
    elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        why = "it has another name as well, so it may be another file than was meant"
    else:
        return file
    os.close(file)
    raise OSError(errno.EPERM, f"{why}; name another one", str(path))
