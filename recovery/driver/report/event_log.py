"""The events of a run: kept for its user, and appended to a file as lines of JSON.

Invariant: a line is one event, written whole before anything else happens because of it. While a disk does not
take lines they wait (see `LineFile`), that is said, and the job goes on. The two newest files are kept, and each has
`LARGEST` bytes at most.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath

from recovery.driver.report.line_file import LineFile
from recovery.events import AnyEvent, Trouble
from snapshot.ids import Member
from statebackend import means
from statebackend.ids import Epoch, Incarnation

KEPT = 10_000
"""So many of the newest events are kept in memory."""


LARGEST = 32 << 20
"""A file of events that has so many bytes is put aside, and replaces the one that was put aside before."""


class EventLog:
    """Takes events from the driver's thread and gives them to any other."""

    def __init__(self, file: Path | None = None) -> None:
        self._events: deque[AnyEvent] = deque(maxlen=KEPT)
        self._lock = means.Lock()
        self._listeners: list[Callable[[AnyEvent], object]] = []
        self._file: LineFile | None = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(file, largest=LARGEST)

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """Return the newest events, oldest first."""
        with self._lock:
            return tuple(self._events)

    def listen(self, listener: Callable[[AnyEvent], object]) -> Callable[[], None]:
        """Call `listener` with each event from now on, in the driver's thread, until the returned function is called.

        It must return at once; one that raises is not called again, and the error is printed.
        """
        with self._lock:
            self._listeners.append(listener)
        return lambda: self._stop_calling(listener)

    def add(self, event: AnyEvent) -> None:
        """Keep the event, write it to the file, and call the listeners with it."""
        with self._lock:
            self._events.append(event)
            trouble = self._write(event)
            listeners = tuple(self._listeners)
        if trouble is not None:
            self.add(trouble)
        for listener in listeners:
            try:
                listener(event)
            except Exception:
                self._stop_calling(listener)
                with suppress(OSError, ValueError):  # a terminal that is gone takes no word
                    traceback.print_exc()

    def _stop_calling(self, listener: Callable[[AnyEvent], object]) -> None:
        """Forget a listener, which another thread or the listener itself may have taken back just now."""
        with self._lock, suppress(ValueError):
            self._listeners.remove(listener)

    def close(self) -> None:
        """Close the file; no event follows."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, event: AnyEvent) -> Trouble | None:
        """Write the event to the file; return another event if the state of the disk is to be reported."""
        said = self._file.write(line_of(event)) if self._file is not None else ""
        return Trouble(at=means.wall(), what="the file of events", reason=said) if said else None


def line_of(event: AnyEvent) -> str:
    """Return the event as a line of JSON: its time, its name, and its fields."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(event.at)) + f".{int(event.at % 1 * 1000):03}Z"
    rest = {field.name: plain(getattr(event, field.name)) for field in fields(event) if field.name != "at"}
    return json.dumps({"time": stamp, "event": type(event).__name__, **rest}) + "\n"


def plain(value: object) -> object:
    """Return the value in a form that JSON has: ids as their texts, dataclasses as objects."""
    match value:
        case Epoch() | Incarnation() | Member() | PurePath():
            return str(value)
        case Enum():
            return value.value
        case float():
            return round(value, 3)
        case tuple() | list():
            return [plain(item) for item in value]
        case frozenset():
            return [plain(item) for item in sorted(value, key=str)]
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value
