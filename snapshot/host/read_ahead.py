"""A reader that may wait for a disk or a network, read by a thread of its own ahead of the event loop.

What always holds: readings come in their order, each once, and no more than a few are ahead; what the reader raises is
raised where its readings are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, Full, Queue
from threading import Event, Thread
from time import time
from typing import Final

from snapshot.program.source import Exhausted, Later, Reader, Reading

_AHEAD: Final = 2
_LOOK: Final = 0.1
"""Seconds between two looks of a waiting thread whether anybody still wants its readings."""

NEVER: Final = float("inf")
"""The time at which a reading comes by a call and not by the clock."""


class ReadAhead:
    """A `Reader` for the event loop. `wake` is called in the thread whenever there is something to take, or what is
    waited for has changed.
    """

    def __init__(self, name: str, open_reader: Callable[[], Reader], most: int, wake: Callable[[], None]) -> None:
        self._open = open_reader
        self._most = most
        self._wake = wake
        self._ready: Queue[Reading | BaseException] = Queue(_AHEAD)
        self._closed = Event()
        self._why = ""  # what the thread waits for, if something is wrong
        Thread(target=self._run, name=f"reading {name}", daemon=True).start()

    def read(self, most: int) -> Reading:
        """What was read ahead; `Later` without a time if that is nothing yet. Not more than `most` from now on."""
        self._most = most
        try:
            reading = self._ready.get_nowait()
        except Empty:
            return Later(NEVER, self._why)
        if isinstance(reading, BaseException):
            raise reading
        return reading

    def close(self) -> None:
        """Let the thread end; it closes its reader when what it waits for has come."""
        self._closed.set()

    def _run(self) -> None:
        try:
            reader = self._open()
            try:
                self._read_all(reader)
            finally:
                reader.close()
        except BaseException as error:
            self._hand_over(error)

    def _read_all(self, reader: Reader) -> None:
        while not self._closed.is_set():
            reading = reader.read(self._most)
            if isinstance(reading, Later):
                self._note(reading.why)
                self._closed.wait(min(max(reading.at - time(), 0.001), 1.0))
                continue
            self._why = ""
            self._hand_over(reading)
            if isinstance(reading, Exhausted):
                return

    def _note(self, why: str) -> None:
        if why != self._why:
            self._why = why
            self._wake()

    def _hand_over(self, reading: Reading | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(reading, timeout=_LOOK)
            except Full:
                continue
            self._wake()
            return
