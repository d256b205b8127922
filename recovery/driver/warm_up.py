"""Executors that have run no Python task yet take seconds for their first: each runs one in time that does nothing.

What always holds: it takes only slots that nobody uses, each for a moment, and none once it is stopped; a job does not
notice whether it succeeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from recovery.driver.application import Application

_AFTER: Final = (5.0, 9.0)
"""Seconds after a process of the job has come: then the job runs again; and then a lost executor is surely replaced."""
_MOMENT: Final = 0.1
"""Seconds that each task takes, so that all free slots are taken, and with them every executor that has one."""


class WarmUp:
    """Of an application's executors; `free` says how many slots are free. Any thread may call it."""

    def __init__(self, spark: Application, free: Callable[[], int]) -> None:
        self._spark = spark
        self._free = free
        self._timers: list[threading.Timer] = []
        self._stopped = False
        self._lock = threading.Lock()

    def soon(self) -> None:
        """A process has come: so much for starting, and time for getting ready for the next one."""
        with self._lock:
            self._cancel()
            if self._stopped:
                return
            self._timers = [threading.Timer(seconds, self._run) for seconds in _AFTER]
            for timer in self._timers:
                timer.daemon = True
                with suppress(RuntimeError):  # too many threads
                    timer.start()

    def stop(self) -> None:
        """Begin none any more, whoever comes."""
        with self._lock:
            self._stopped = True
            self._cancel()

    def _cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _run(self) -> None:
        with suppress(Exception):  # the session may be gone
            tasks = self._free()
            if tasks > 0 and not self._stopped:
                self._spark.run(tasks, _nothing)


def _nothing(_nothing: Iterator[object]) -> Iterator[object]:
    from time import sleep

    sleep(_MOMENT)
    yield from ()
