"""The functions of simulated programs: they remember every row, so that their state and output say what they have seen.

Invariant: they are written against the public contract of functions alone, and do nothing but what their rows, timers
and state say. Each may take its time, and may fail before any call, as the simulation likes (`let_fail`).
"""

from __future__ import annotations

from typing import Any, Protocol

from recovery.testing.programs.source import perhaps_fail
from snapshot.operators.broadcast import Broadcast, KeyedBroadcastProcess
from snapshot.operators.function_operator import KeyedCoProcess, KeyedProcess
from snapshot.operators.keyed_function import ProcessContext
from statebackend import means
from statebackend.states.declarations import ListState, MapState, ValueState

WINDOWS = "windows"
"""The side output of a tally with the counts of its windows."""


def window_end(at: int, size: int) -> int:
    """Return the end of the window of a time."""
    return (at // size + 1) * size


class _Named(Protocol):
    name: str
    takes: float


def _called(function: _Named, call: str) -> None:
    """Fail if that is wanted, and else let the time pass that the call takes, so that rows wait for it."""
    perhaps_fail(function.name, call)
    if function.takes:
        means.sleep(function.takes)


class Tally(KeyedProcess):
    """Numbers the rows of each key, remembers which they were, and counts them in windows by timers of its own.

    After its first row, a key is always due in processing time, again and again.
    """

    seen = ListState(int)
    number = ValueState(int, default=0)
    waiting = MapState(int, int)
    given = MapState(int, int)
    due = ValueState(int, default=0)

    def __init__(self, name: str, window: int, *, every: int = 0, takes: float = 0.0) -> None:
        self.name, self.window, self.every, self.takes = name, window, every, takes

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        """Number the row, and have its window counted."""
        _called(self, "on_event")
        number = self.number.get() + 1
        self.number.set(number)
        self.seen.add(event.id)
        ctx.emit((ctx.key, number, event.id))
        if self.window:
            end = window_end(event.at, self.window)
            self.waiting.put(end, (self.waiting.get(end) or 0) + 1)
            ctx.timer(end)
        if self.every and not self.due.get():
            self._be_due(ctx)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        """Give the count of a window, or be due again."""
        _called(self, "on_timer")
        if ctx.firing == "processing":
            if at != self.due.get():
                raise AssertionError(f"a timer of key {ctx.key} fires at {at}, and the key is due at {self.due.get()}")
            self._be_due(ctx)
            return
        count = self.waiting.get(at) or 0
        ctx.emit_to(WINDOWS, (ctx.key, at, count))
        self.given.put(at, (self.given.get(at) or 0) + count)
        self.waiting.remove(at)

    def _be_due(self, ctx: ProcessContext) -> None:
        self.due.set(ctx.processing_time + self.every)
        ctx.processing_timer(ctx.processing_time + self.every)


class Pairs(KeyedCoProcess):
    """Pairs each row of one stream with each row of the other that has the same key."""

    firsts = ListState(int)
    seconds = ListState(int)

    def __init__(self, name: str, takes: float = 0.0) -> None:
        self.name, self.takes = name, takes

    def on_first(self, event: Any, ctx: ProcessContext) -> None:
        """Pair the row with all rows of the second stream so far."""
        _called(self, "on_first")
        self.firsts.add(event.id)
        for other in self.seconds.get():
            ctx.emit((ctx.key, event.id, other))

    def on_second(self, event: Any, ctx: ProcessContext) -> None:
        """Pair the row with all rows of the first stream so far."""
        _called(self, "on_second")
        self.seconds.add(event.id)
        for other in self.firsts.get():
            ctx.emit((ctx.key, other, event.id))


class Controlled(KeyedBroadcastProcess):
    """Numbers the rows of each key, and says with each how many control rows had come before it."""

    seen = ListState(int)
    number = ValueState(int, default=0)
    rules = Broadcast(int, int)

    def __init__(self, name: str, takes: float = 0.0) -> None:
        self.name, self.takes = name, takes

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        """Number the row."""
        _called(self, "on_event")
        number = self.number.get() + 1
        self.number.set(number)
        self.seen.add(event.id)
        ctx.emit((ctx.key, number, event.id, len(self.rules)))

    def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:  # noqa: ARG002
        """Remember the control row."""
        _called(self, "on_broadcast")
        self.rules.put(event.id, event.v)
