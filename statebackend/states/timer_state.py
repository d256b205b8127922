"""The declaration of timers, and how a program uses them: registered for a key, and fired with that key set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from statebackend.backends.row_store import RowStore
from statebackend.states.declarations import Declaration, Place
from statebackend.states.key_context import KeyContext
from statebackend.states.schema import StateKind, StateSpec
from statebackend.states.timers import TimerService
from statebackend.states.ttl import TimeKind


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
        """Timers."""
        return StateSpec(name, StateKind.TIMERS, detail=json.dumps({"time": self._time}))

    def open(self, place: Place) -> TimerState:
        """The timers of one partition."""
        assert isinstance(place.rows, RowStore)
        return TimerState(place.context, TimerService(place.context, place.rows, place.spec.id), self._time)


class TimerState:
    """The timers of all keys of a partition. A key has in a namespace at most one timer at a time."""

    def __init__(self, context: KeyContext, service: TimerService, time: TimeKind) -> None:
        self._context = context
        self._service = service
        self._time = time

    def register(self, time: int) -> None:
        """Have the current key, in the current namespace, called at this time; once, however often it is asked for."""
        self._service.register(time)

    def delete(self, time: int) -> None:
        """Take back the current key's timer at this time; there need not be one."""
        self._service.delete(time)

    def forget(self) -> None:
        """The rows have changed under it: begin anew with the timers that are there now."""
        self._service.forget()

    def next_time(self) -> int | None:
        """The time of the next timer of any key; None if there is none."""
        return self._service.next_time()

    def due(self, until: int | None = None) -> Iterator[Fired]:
        """The timers that have come due by now, or by `until`, in the order of their times, each of them once.

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
