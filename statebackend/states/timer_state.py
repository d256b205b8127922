"""Timers: calls that a key asked for, at times of one kind, fired in the order of these times with that key set.

Invariant: a timer is a row, so it is cut, restored and rescaled with the rest of the state; a key has in a
namespace at most one timer at a time; and only the next few timers of each key group are kept in memory besides.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from statebackend import entries
from statebackend.backends.row_store import RowStore
from statebackend.entries import HEAD_SIZE, StateId
from statebackend.errors import ProgramError
from statebackend.ids import KeyGroup
from statebackend.states.declarations import Declaration, Place
from statebackend.states.key_context import KeyContext
from statebackend.states.schema import StateKind, StateSpec
from statebackend.states.ttl import TimeKind

_REMEMBERED: Final = 1 << 16
_FEWEST: Final = 16
_MOST: Final = 1024
_EARLIEST: Final = -(1 << 63)
_LATEST: Final = (1 << 63) - 1
_TIME_SIZE: Final = 8


class TimerTimeError(ProgramError, ValueError):
    """A timer for a time that does not fit in 64 bits."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that has come due. `key` are the key's canonical bytes, None for the null key."""

    time: int
    key: bytes | None
    namespace: bytes
    group: KeyGroup


class _Window:
    """The next timers of one key group, as what their names end with: time, key, namespace."""

    __slots__ = ("head", "known_to", "next")

    def __init__(self, head: bytes) -> None:
        self.head = head
        """The beginning of the names of the group's timers."""
        self.next: list[bytes] = []
        self.known_to: bytes | None = b""
        """Every timer up to this one is in `next`; None if all timers are."""

    def knows(self, end: bytes) -> bool:
        return self.known_to is None or end <= self.known_to


class TimerService:
    """The event-time timers of an operator in a partition, or the processing-time timers. For one thread.

    It begins with those that are in the rows, so nothing need be done after a restore.
    """

    def __init__(self, context: KeyContext, rows: RowStore, state: StateId) -> None:
        self._context = context
        self._rows = rows
        self._state = state
        self._room = max(_FEWEST, min(_REMEMBERED // len(context.groups), _MOST))
        self.forget()

    def forget(self) -> None:
        """Begin anew with the timers that are in the rows now."""
        groups = self._context.groups
        self._windows = {group: _Window(entries.head(group, self._state, entries.TIMER)) for group in groups}
        self._short: set[KeyGroup] = set(groups)
        """Groups whose next timer may be in the rows alone."""
        self._heads: list[tuple[bytes, KeyGroup]] = []
        """A heap of the first timer of every other group; some entries are of timers that are not first any more."""

    def register(self, time: int) -> None:
        """Have the current key called at this time in the current namespace: once, however often it is registered."""
        window, end, group = self._place(time)
        if window.knows(end):
            at = bisect_left(window.next, end)
            if at < len(window.next) and window.next[at] == end:
                return
            window.next.insert(at, end)
            if at == 0:
                self._lead(end, group)
            if len(window.next) > 2 * self._room:
                del window.next[self._room :]
                window.known_to = window.next[-1]
        self._rows.put(window.head + end, b"")

    def delete(self, time: int) -> None:
        """Take back the current key's timer at this time; there need not be one."""
        window, end, group = self._place(time)
        if window.knows(end):
            at = bisect_left(window.next, end)
            if at == len(window.next) or window.next[at] != end:
                return
            del window.next[at]
            if at == 0:
                self._follow(window, group)
        self._rows.delete(window.head + end)

    def due(self, until: int) -> Iterator[Timer]:
        """Yield timers up to and including this time, each removed when given; by time, then in an order that stays.

        Timers may be registered and deleted meanwhile: one for a time up to `until` comes in this call, a deleted one
        does not come. Timers that the caller does not take from the iterator stay.
        """
        limit = entries.sortable(max(_EARLIEST, min(until, _LATEST)))
        while (first := self._first()) is not None and first[0][:_TIME_SIZE] <= limit:
            end, group = heappop(self._heads)
            window = self._windows[group]
            del window.next[0]
            self._follow(window, group)
            name = window.head + end
            self._rows.delete(name)
            time, key, namespace = entries.parse_timer(name)
            yield Timer(time, key, namespace, group)

    def next_time(self) -> int | None:
        """Return the time of the next timer, None if there is none."""
        first = self._first()
        return None if first is None else entries.unsortable(first[0])

    def _place(self, time: int) -> tuple[_Window, bytes, KeyGroup]:
        if not _EARLIEST <= time <= _LATEST:
            raise TimerTimeError(f"{self._context.uid}: a timer at {time} is out of bounds: times have 64 bits, signed")
        row = self._context.row(self._state)
        group = entries.group_of(row)
        return self._windows[group], entries.sortable(time) + row[HEAD_SIZE:], group

    def _lead(self, end: bytes, group: KeyGroup) -> None:
        heappush(self._heads, (end, group))
        if len(self._heads) > 4 * len(self._windows) + _FEWEST:
            self._heads = [(window.next[0], group) for group, window in self._windows.items() if window.next]
            heapify(self._heads)

    def _follow(self, window: _Window, group: KeyGroup) -> None:
        """Let a group's next timer lead, as its first one is gone."""
        if window.next:
            self._lead(window.next[0], group)
        elif window.known_to is not None:
            self._short.add(group)

    def _first(self) -> tuple[bytes, KeyGroup] | None:
        """Return the next timer of all groups, which is then the top of the heap; None if there is none."""
        for group in self._short:
            if not self._windows[group].next:
                self._refill(self._windows[group], group)
        self._short.clear()
        heads, windows = self._heads, self._windows
        while heads:
            end, group = first = heads[0]
            following = windows[group].next
            if following and following[0] == end:
                return first
            heappop(heads)
        return None

    def _refill(self, window: _Window, group: KeyGroup) -> None:
        start = window.head if not window.known_to else window.head + window.known_to + b"\x00"
        found = islice(self._rows.scan(start, entries.after(window.head)), self._room)
        window.next = [name[HEAD_SIZE:] for name, _ in found]
        window.known_to = window.next[-1] if len(window.next) == self._room else None
        if window.next:
            self._lead(window.next[0], group)


@dataclass(frozen=True, slots=True)
class Fired:
    """A timer that has come due. State is about its key and namespace as long as it is handled."""

    time: int
    key: object
    namespace: bytes


class Timers(Declaration["TimerState"]):
    """Calls that keys ask for, in event or in processing time: `Timers("event")`."""

    def __init__(self, time: TimeKind) -> None:
        if time not in ("event", "processing"):
            raise ValueError(f"timers in {time!r} time: expected 'event' or 'processing'")
        self._time = time

    def spec(self, name: str) -> StateSpec:
        """Return the spec of timers."""
        return StateSpec(name, StateKind.TIMERS, detail=json.dumps({"time": self._time}))

    def open(self, place: Place) -> TimerState:
        """Open the timers of one partition."""
        assert isinstance(place.rows, RowStore)
        return TimerState(place.context, TimerService(place.context, place.rows, place.spec.id), self._time)


class TimerState:
    """The timers of all keys of a partition. A key has in a namespace at most one timer at a time."""

    def __init__(self, context: KeyContext, service: TimerService, time: TimeKind) -> None:
        self._context = context
        self._service = service
        self._time = time

    def register(self, time: int) -> None:
        """Have the current key called at this time in the current namespace: once, however often it is registered."""
        self._service.register(time)

    def delete(self, time: int) -> None:
        """Take back the current key's timer at this time; there need not be one."""
        self._service.delete(time)

    def forget(self) -> None:
        """Begin anew with the timers that are in the rows now, as these have changed."""
        self._service.forget()

    def next_time(self) -> int | None:
        """Return the time of the next timer of any key; None if there is none."""
        return self._service.next_time()

    def due(self, until: int | None = None) -> Iterator[Fired]:
        """Yield the timers that have come due by now, or by `until`, in the order of their times, each of them once.

        Before one is given, its key and namespace are set. Registering and deleting meanwhile is fine: what is
        registered for a time that has passed is given, too, and what is deleted is not.
        """
        context = self._context
        if until is None:
            until = context.watermark if self._time == "event" else context.processing_time
        for timer in self._service.due(until):
            key = context.key_type.decode(timer.key)
            context.set_key(key)
            context.set_namespace(timer.namespace)
            yield Fired(timer.time, key, timer.namespace)
