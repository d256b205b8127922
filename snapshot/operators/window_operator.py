"""Windows that are the same for all keys at work in one partition: which are open, which rows are late, what fires.

What always holds: a window [start, end) gives its results when time has come to its end, once more for each key that a
later row changes, and is gone when time is past its end by the allowed lateness. Which windows there are is what the
state says, so that nothing is to be done after a restore.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import numpy as np

from snapshot.frames import EARLIEST, LATEST
from snapshot.operators.window_assignment import assigned, late_rows
from snapshot.operators.window_kinds import Aligned
from snapshot.program.operator import OperatorContext
from snapshot.program.rows import Rows
from statebackend.states.namespaces import Window

LATE: Final = "late"
"""The side output for rows that come when all their windows are gone."""


class Contents(Protocol):
    """What is in the windows, and what becomes of it."""

    def windows(self) -> Iterable[Window]:
        """Those that have rows, as after a restore."""

    def add(self, window: Window, rows: Rows, again: bool) -> None:
        """Take rows into a window; with `again` it has given its results, and those of these rows' keys are new."""

    def fire(self, window: Window) -> None:
        """Emit the results of all keys of a window."""

    def drop(self, window: Window) -> None:
        """Forget a window."""

    def advance(self, watermark: int) -> None:
        """Event time is this for what follows."""

    def close(self) -> None:
        """The attempt is over."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """For how long a window takes rows after it gave its results, and whether those that come later are kept."""

    allowed: int
    side: bool


class WindowOperator:
    """Windows of a partition. `dropped` is how many late rows went nowhere."""

    def __init__(self, kind: Aligned, lateness: Lateness, contents: Contents, context: OperatorContext) -> None:
        self._kind, self._lateness, self._contents = kind, lateness, contents
        self._state, self._emit, self._clock = context.state, context.emit, context.clock
        self._now = context.watermark if kind.time == "event" else EARLIEST
        self._waiting: list[tuple[int, int]] = []
        """Heaps of (end, start): the windows that have still to give results, and those that have."""
        self._fired: list[tuple[int, int]] = []
        self._known: set[Window] | None = None
        self.dropped = 0
        self._state.advance(watermark=context.watermark)

    def rows(self, input: int, rows: Rows) -> None:
        """Take rows into their windows."""
        del input
        if self._kind.time == "processing":
            self._now = max(self._now, self._clock())
            rows = Rows(rows.batch, np.full(len(rows), self._now, dtype=np.int64))
        else:
            rows = self._in_time(rows)
        if not len(rows):
            return
        assert rows.times is not None
        for window, chosen in assigned(self._kind, rows.times):
            if window.end + self._lateness.allowed > self._now:
                self._opened(window)
                some = rows if chosen is None else rows.take(chosen)
                self._contents.add(window, some, again=window.end <= self._now)

    def _in_time(self, rows: Rows) -> Rows:
        """The rows that have a window left."""
        assert rows.times is not None
        gone = self._now - self._lateness.allowed
        if gone <= EARLIEST or not len(rows):
            return rows
        late = late_rows(self._kind, rows.times, gone)
        if late is None:
            return rows
        if self._lateness.side:
            self._emit(rows.where(late), LATE)
        else:
            self.dropped += int(np.count_nonzero(late))
        return rows.where(~late)

    def _windows(self) -> set[Window]:
        if self._known is None:
            self._known = set(self._contents.windows())
            for window in self._known:
                self._heap_for(window).append((window.end, window.start))
            heapify(self._waiting)
            heapify(self._fired)
        return self._known

    def _opened(self, window: Window) -> None:
        known = self._windows()
        if window not in known:
            known.add(window)
            heappush(self._heap_for(window), (window.end, window.start))

    def _heap_for(self, window: Window) -> list[tuple[int, int]]:
        # In processing time a window that was left is gone: one that should have ended while nobody ran has not fired.
        given = self._kind.time == "event" and window.end <= self._now
        return self._fired if given else self._waiting

    def watermark(self, timestamp: int) -> None:
        """Windows that end by then give their results; at the end of all input those of processing time do as well."""
        self._state.advance(watermark=timestamp)
        self._contents.advance(timestamp)
        if self._kind.time == "event" or timestamp == LATEST:
            self._advance(timestamp)

    def wakes_at(self) -> int | None:
        """When the next window of processing time ends."""
        if self._kind.time == "event":
            return None
        self._windows()
        return self._waiting[0][0] if self._waiting else None

    def wake(self, now: int) -> None:
        """Windows of processing time that end by then give their results."""
        self._state.advance(processing_time=now)
        if self._kind.time == "processing":
            self._advance(now)

    def _advance(self, now: int) -> None:
        known, allowed = self._windows(), self._lateness.allowed
        while self._waiting and self._waiting[0][0] <= now:
            end, start = heappop(self._waiting)
            self._contents.fire(Window(start, end))
            heappush(self._fired, (end, start))
            self._drop(known, now - allowed)
        self._drop(known, now - allowed)
        self._now = max(self._now, now)

    def _drop(self, known: set[Window], gone: int) -> None:
        while self._fired and self._fired[0][0] <= gone:
            end, start = heappop(self._fired)
            known.discard(Window(start, end))
            self._contents.drop(Window(start, end))

    def broadcast(self) -> bytes | None:
        """None."""
        return None

    def close(self) -> None:
        """The attempt is over."""
        self._contents.close()
