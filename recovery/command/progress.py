"""A line that shows how far long work has come, on the standard error of a terminal; nothing anywhere else.

What always holds: it never mixes with a result, and is gone when the work is done or fails.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Final, Self, TextIO

_EVERY: Final = 0.1
_WIDTH: Final = 24


class Progress:
    """How much of a `total` is done; any thread may say more. `unit` is "bytes", or what is counted: "files", "rows".

    A total of 0 is not known: then only what is done is shown.
    """

    def __init__(self, what: str, total: int, unit: str = "bytes", stream: TextIO | None = None) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._shows = self._stream.isatty()
        self._done = 0
        self._shown_at = -_EVERY
        self._lock = threading.Lock()

    def more(self, amount: int) -> None:
        """So much more is done."""
        with self._lock:
            self._done += amount
            now = time.monotonic()
            if self._shows and now - self._shown_at >= _EVERY:
                self._shown_at = now
                self._stream.write(f"\r\x1b[K{self.line()}")
                self._stream.flush()

    def line(self) -> str:
        """What is shown now."""
        if self._total <= 0:
            return f"{self._what}: {amount(self._done, self._unit)}"
        part = min(self._done / self._total, 1.0)
        bar = "#" * round(part * _WIDTH)
        done, total = amount(self._done, self._unit), amount(self._total, self._unit)
        return f"{self._what} [{bar:<{_WIDTH}}] {part:4.0%} {done} of {total}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shows:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def amount(number: int, unit: str = "bytes") -> str:
    """So many bytes, or other things, for people."""
    if unit != "bytes":
        return f"{number:,} {unit}"
    if number < 1000:
        return f"{number} bytes"
    value = float(number)
    for name in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5 or name == "GB":
            break
    return f"{value:.3g} {name}" if value < 999.5 else f"{value:,.0f} {name}"
