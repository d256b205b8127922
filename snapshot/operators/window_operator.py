"""Windows that are the same for all keys at work in one partition: which are open, which rows are late, what fires.

What always holds: a window [start, end) gives its results when time has come to its end, once more for each key that a
later row changes, and is gone when time is past its end by the allowed lateness. Which windows there are, and to what
time each key group has come, is what the state says, so that nothing is to be done after a restore.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import numpy as np

from snapshot.frames import EARLIEST, LATEST
from snapshot.operators.group_times import Already, GroupTimes
from snapshot.operators.window_assignment import assigned, late_rows
from snapshot.operators.window_kinds import Aligned
from snapshot.program.operator import Input, OperatorContext
from snapshot.program.rows import Rows, keys_in
from statebackend.keys.columns import KeyColumn
from statebackend.states.namespaces import Window
from statebackend.tables.table import Table

LATE: Final = "late"
"""The side output for rows that come when all their windows are gone."""


class Contents(Protocol):
    """What is in the windows, and what becomes of it."""

    @property
    def table(self) -> Table:
        """That has the windows' keys, each window's in its namespace."""

    def windows(self) -> Iterable[Window]:
        """Those that have rows, as after a restore."""

    def add(self, window: Window, rows: Rows, again: bool) -> KeyColumn:
        """Take rows into a window; with `again` it has given its results, and those of these rows' keys are new.

        Says the rows' keys.
        """

    def fire(self, window: Window, already: Already | None) -> KeyColumn:
        """Emit the results of all keys of a window but those that `already` says. Says all keys of the window."""

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
    """Windows of a partition. `late` is how many rows came too late, to whatever became of them."""

    def __init__(
        self, kind: Aligned, lateness: Lateness, contents: Contents, input: Input, context: OperatorContext
    ) -> None:
        self._kind, self._lateness, self._contents, self._keys = kind, lateness, contents, input.keys
        self._context = context
        self._state, self._emit, self._clock = context.state, context.emit, context.clock
        self._now = context.watermark if kind.time == "event" else EARLIEST
        self._waiting: list[tuple[int, int]] = []
        """Heaps of (end, start): the windows that have still to give results, and those that have."""
        self._fired: list[tuple[int, int]] = []
        self._known: set[Window] = set()
        self._groups: GroupTimes | None = None
        self.late = 0
        self._state.advance(watermark=context.watermark)

    def rows(self, input: int, rows: Rows) -> None:
        """Take rows into their windows."""
        del input
        groups = self._opened_groups()
        if self._kind.time == "processing":
            self._now = max(self._now, self._clock())
            self._take(Rows(rows.batch, np.full(len(rows), self._now, dtype=np.int64)), self._now)
        elif not groups.ahead(self._now):
            self._take(self._in_time(rows, self._now), self._now)
        else:
            times = groups.of(self._state.keys(keys_in(rows.batch, self._keys)), self._now)
            for now in np.unique(times).tolist():
                self._take(self._in_time(rows.where(times == now), now), now)

    def _take(self, rows: Rows, now: int) -> None:
        """Take rows for whose keys it is now."""
        if not len(rows):
            return
        assert rows.times is not None
        for window, chosen in assigned(self._kind, rows.times):
            if window.end + self._lateness.allowed > now:
                self._opened(window)
                again = window.end <= now
                keys = self._contents.add(window, rows if chosen is None else rows.take(chosen), again)
                if again:
                    self._opened_groups().gave(keys, now)

    def _in_time(self, rows: Rows, now: int) -> Rows:
        """The rows that have a window left, if it is now for their keys."""
        assert rows.times is not None
        gone = now - self._lateness.allowed
        if gone <= EARLIEST or not len(rows):
            return rows
        late = late_rows(self._kind, rows.times, gone)
        if late is None:
            return rows
        self.late += int(np.count_nonzero(late))
        if self._lateness.side:
            self._emit(rows.where(late), LATE)
        return rows.where(~late)

    def _opened_groups(self) -> GroupTimes:
        """The state is read when it is first needed, not when it is opened."""
        if self._groups is None:
            self._groups = GroupTimes(self._contents.table, self._context)
            self._known = set(self._contents.windows())
            for window in self._known:
                self._heap_for(window).append((window.end, window.start))
            heapify(self._waiting)
            heapify(self._fired)
        return self._groups

    def _opened(self, window: Window) -> None:
        if window not in self._known:
            self._known.add(window)
            heappush(self._heap_for(window), (window.end, window.start))

    def _heap_for(self, window: Window) -> list[tuple[int, int]]:
        # In processing time a window that was left is gone: one that should have ended while nobody ran has not fired.
        given = self._kind.time == "event" and window.end <= self._now
        return self._fired if given else self._waiting

    def watermark(self, timestamp: int) -> None:
        """Windows that end by then give their results; at the end of event time those of processing time do as well."""
        self._state.advance(watermark=timestamp)
        self._contents.advance(timestamp)
        if self._kind.time == "event":
            self._advance(timestamp)
            self._now = max(self._now, timestamp)
        elif timestamp == LATEST:  # the clock goes on, so that is not now
            self._advance(timestamp)

    def wakes_at(self) -> int | None:
        """When the next window of processing time ends."""
        if self._kind.time == "event":
            return None
        self._opened_groups()
        return self._waiting[0][0] if self._waiting else None

    def wake(self, now: int) -> None:
        """Windows of processing time that end by then give their results."""
        self._state.advance(processing_time=now)
        if self._kind.time == "processing":
            self._advance(now)
            self._now = max(self._now, now)

    def _advance(self, now: int) -> None:
        groups, allowed = self._opened_groups(), self._lateness.allowed
        while self._waiting and self._waiting[0][0] <= now:
            end, start = heappop(self._waiting)
            keys = self._contents.fire(Window(start, end), groups.already(end))
            if self._kind.time == "event":
                groups.gave(keys, end)
            heappush(self._fired, (end, start))
            self._drop(now - allowed)
        self._drop(now - allowed)

    def _drop(self, gone: int) -> None:
        while self._fired and self._fired[0][0] <= gone:
            end, start = heappop(self._fired)
            self._known.discard(Window(start, end))
            self._contents.drop(Window(start, end))

    def before_cut(self) -> None:
        """The times of key groups are kept."""
        if self._groups is not None:
            self._groups.before_cut(self._now)

    def broadcast(self) -> bytes | None:
        """None."""
        return None

    def close(self) -> None:
        """The attempt is over."""
        self._contents.close()
