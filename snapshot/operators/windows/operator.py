"""Windows that are the same for all keys at work in one partition: which are open, which rows are late, what fires.

Invariant: a window [start, end) gives its results when time has come to its end, once more for each key that a
later row changes, and is gone when time is past its end by the allowed lateness. Which windows there are, and to what
time each key group has come, is what the state says, so that nothing is to be done after a restore.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import numpy as np

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.operator import Input, Operator, OperatorContext
from snapshot.operators.rows import Rows, keys_in
from snapshot.operators.windows.keys import Already, Firing, GroupTimes, Key, PartlyGiven
from snapshot.operators.windows.kinds import Aligned, assigned, late_rows
from statebackend.keys.columns import KeyColumn
from statebackend.states.namespaces import Window
from statebackend.tables.table import Table

LATE: Final = "late"
"""The side output for rows that come when all their windows are gone."""


class Contents(Protocol):
    """The content of windows, and its fate."""

    @property
    def table(self) -> Table:
        """Return the table of the windows' keys, each window's in its namespace."""

    def windows(self) -> Iterable[Window]:
        """Return the windows that have rows, as after a restore."""

    def add(self, window: Window, rows: Rows, again: bool) -> KeyColumn:
        """Take rows into a window, and return their keys.

        With `again` the window has given its results; it then gives those of these rows' keys anew.
        """

    def keys(self, window: Window) -> KeyColumn:
        """Return all keys of a window."""

    def fire(self, window: Window, already: Already | None, given: Collection[Key]) -> Firing:
        """Emit the results of all keys of a window but those that `already` is true for, and those that were `given`.

        It stops where `overdue` says so, between two calls of the user's function; all rows of the calls so far are
        emitted then.
        """

    def drop(self, window: Window) -> None:
        """Forget a window."""

    def advance(self, watermark: int) -> None:
        """Move event time to this watermark for what follows."""

    def close(self) -> None:
        """Release what is held, as the attempt is over."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """For how long a window takes rows after it gave its results, and whether those that come later are kept."""

    allowed: int
    side: bool


class WindowOperator(Operator):
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
        self._partly: PartlyGiven | None = None
        self._firing: tuple[Window, Firing] | None = None
        """The window that gives its results just now."""
        self.late = 0
        self._state.advance(watermark=context.watermark)

    def rows(self, input: int, rows: Rows) -> None:
        """Take rows into their windows."""
        del input
        groups, partly = self._opened()
        if self._kind.time == "processing":
            self._now = max(self._now, self._clock())
            self._take(Rows(rows.batch, np.full(len(rows), self._now, dtype=np.int64)), self._now)
        elif not partly and not groups.ahead(self._now):
            self._take(self._in_time(rows, self._now), self._now)
        else:
            keys = self._state.keys(keys_in(rows.batch, self._keys))
            times = partly.reached(keys, groups.of(keys, self._now))
            for now in np.unique(times).tolist():
                self._take(self._in_time(rows.where(times == now), now), now)

    def _take(self, rows: Rows, now: int) -> None:
        """Take rows of keys whose time is `now`."""
        if not len(rows):
            return
        assert rows.times is not None
        groups, _ = self._opened()
        for window, chosen in assigned(self._kind, rows.times):
            if window.end + self._lateness.allowed > now:
                self._expect(window)
                again = window.end <= now
                keys = self._contents.add(window, rows if chosen is None else rows.take(chosen), again)
                if again:
                    groups.gave(keys, now)
                elif self._firing is not None and self._firing[0] == window:
                    self._firing = None  # it may have more keys now

    def _in_time(self, rows: Rows, now: int) -> Rows:
        """Return the rows that have a window left, if their keys are at the time `now`; the others are late."""
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

    def _opened(self) -> tuple[GroupTimes, PartlyGiven]:
        """Read the state when it is first needed, not when it is opened."""
        if self._groups is None or self._partly is None:
            self._groups = GroupTimes(self._contents.table, self._context)
            self._partly = PartlyGiven(self._contents.table, self._context.key_type)
            self._known = set(self._contents.windows())
            for window in self._known:
                self._heap_for(window).append((window.end, window.start))
            heapify(self._waiting)
            heapify(self._fired)
        return self._groups, self._partly

    def _expect(self, window: Window) -> None:
        if window not in self._known:
            self._known.add(window)
            heappush(self._heap_for(window), (window.end, window.start))

    def _heap_for(self, window: Window) -> list[tuple[int, int]]:
        # In processing time a window that was left is gone: one that should have ended while nobody ran has not fired.
        given = self._kind.time == "event" and window.end <= self._now
        return self._fired if given else self._waiting

    def watermark(self, timestamp: int) -> bool:
        """Give the results of windows that end by then; at the end of event time also those of processing time.

        Returns False if `overdue` came before all had given them.
        """
        self._state.advance(watermark=timestamp)
        self._contents.advance(timestamp)
        if self._kind.time == "event":
            return self._advance(timestamp)
        return timestamp < LATEST or self._advance(timestamp)  # the clock goes on, so that is not now

    def wakes_at(self) -> int | None:
        """Return the end of the next window of processing time; None if there is none."""
        if self._kind.time == "event":
            return None
        self._opened()
        return self._waiting[0][0] if self._waiting else None

    def wake(self, now: int) -> None:
        """Give the results of windows of processing time that end by then."""
        self._state.advance(processing_time=now)
        if self._kind.time == "processing":
            self._advance(now)
            self._now = max(self._now, now)

    def _advance(self, now: int) -> bool:
        """Fire what ends by now, window by window, until `overdue`; return True if none of them is left.

        Event time comes to the end of each.
        """
        self._opened()
        while self._waiting and self._waiting[0][0] <= now:
            end, start = self._waiting[0]
            if not self._fire(Window(start, end)):
                return False
            heappop(self._waiting)
            heappush(self._fired, (end, start))
            if not (self._waiting and self._waiting[0][0] <= end):
                self._reach(end)
                if self._waiting and self._waiting[0][0] <= now and self._context.overdue():
                    return False
        self._reach(now)
        return True

    def _fire(self, window: Window) -> bool:
        """Give the results of a window that have not been given; return True if none is left."""
        groups, partly = self._opened()
        if self._firing is None or self._firing[0] != window:
            self._firing = window, self._contents.fire(window, groups.already(window.end), partly.of(window))
        given = next(self._firing[1], None)
        if given is not None:
            partly.add(window, given)
            return False
        self._firing = None
        partly.over(window)
        if self._kind.time == "event" and not groups.complete:
            groups.gave(self._contents.keys(window), window.end)
        return True

    def _reach(self, now: int) -> None:
        """Move event time to `now` when all windows up to it have given their results; drop those that are gone."""
        if self._kind.time == "event":
            self._now = max(self._now, now)
        self._drop(now - self._lateness.allowed)

    def _drop(self, gone: int) -> None:
        while self._fired and self._fired[0][0] <= gone:
            end, start = heappop(self._fired)
            self._known.discard(Window(start, end))
            self._contents.drop(Window(start, end))

    def before_cut(self) -> None:
        """Write down the times of key groups, and the keys whose results were given."""
        if self._groups is not None and self._partly is not None:
            self._partly.before_cut()
            self._groups.before_cut(self._now)

    def close(self) -> None:
        """Close the contents, as the attempt is over."""
        self._contents.close()
