"""One line in a terminal that says how a run stands, written anew again and again.

Invariant: nothing is written outside of a terminal, and the line is ended before anything else may be printed. A
terminal that is gone, or takes nothing more, ends the line and never the job.
"""

from __future__ import annotations

from typing import Final, Protocol

from recovery.driver.report.status import RunStatus
from statebackend import means
from statebackend.readable import one_line

_EVERY: Final = 0.25


class Terminal(Protocol):
    """A place where lines are written, such as `sys.stderr`."""

    def write(self, text: str, /) -> object:
        """Write the text."""

    def flush(self) -> object:
        """Make what was written visible."""

    def isatty(self) -> bool:
        """True if a person sees what is written, as it is written."""


class ProgressLine:
    """Shows a run's status. Nothing at all unless `terminal` is one, or `always`."""

    def __init__(self, terminal: Terminal | None, *, always: bool = False) -> None:
        self._terminal = terminal if terminal is not None and (always or _is_watched(terminal)) else None
        self._width = 0
        self._shown_at = 0.0
        self._rows = 0
        self._rate = 0.0

    def show(self, status: RunStatus) -> None:
        """Write the line anew, unless that was done just now."""
        now = means.monotonic()
        if self._terminal is None or now - self._shown_at < _EVERY:
            return
        rows = max(status.rows_in.values(), default=0)
        if rows > self._rows and self._shown_at:
            self._rate = (rows - self._rows) / (now - self._shown_at)
        self._rows, self._shown_at = rows, now
        text = line_of(status, self._rate)
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def make_room(self) -> None:
        """Clear the line, so that other output has a line of its own."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width, self._shown_at = 0, 0.0

    def end(self, status: RunStatus) -> None:
        """Show the run's last status, and end the line."""
        self._shown_at = 0.0
        self.show(status)
        self._write("\n")

    def _write(self, text: str) -> None:
        if self._terminal is None:
            return
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # its reader is gone, it is closed, or it cannot show the name of the job
            self._terminal = None


def _is_watched(terminal: Terminal) -> bool:
    try:
        return terminal.isatty()
    except (OSError, ValueError):
        return False


def line_of(status: RunStatus, rate: float) -> str:
    """Return the run's status in one line."""
    there = sum(partition is not None for partition in status.workers.values())
    parts = [f"{status.job}: {status.state.value}", f"{there}/{status.parallelism} partitions"]
    if status.epochs:
        newest = status.epochs[-1]
        parts.append(f"epoch {newest.epoch} in {newest.since_trigger_ms:.0f} ms")
    if rate:
        parts.append(f"{_short(rate)} rows/s")
    if status.abandoned_in_a_row:
        count = status.abandoned_in_a_row
        parts.append(f"{count} epoch{'s' if count > 1 else ''} abandoned since")
    if status.restarts:
        parts.append("1 restart" if status.restarts == 1 else f"{status.restarts} restarts")
    return one_line(" | ".join(parts))


def _short(number: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"
