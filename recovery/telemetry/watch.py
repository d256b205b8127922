"""One job as it is seen from outside: its metrics, its page, and the data that the page shows.

Invariant: events come in the driver's thread and are kept as counts and as the newest notes; questions come in others
and are answered from these, from the status and from what is fixed while the job runs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib.resources import files
from typing import Final

from recovery import events as log
from recovery.driver.report.logs import level_of, words_of
from recovery.driver.report.status import RunStatus
from recovery.telemetry.counts import Counts
from recovery.telemetry.exposition import CONTENT_TYPE, text_of
from recovery.telemetry.metrics import families
from recovery.telemetry.page_data import Failure, Fixed, Note, page_data
from recovery.telemetry.server import Content, Route
from statebackend.stores.store_calls import since, store_calls

_NOTES: Final = 200
_LATELY: Final = 0.5
"""Seconds for which an answer holds: many callers at once cost the job no more than one."""
_QUIET: Final = (log.EpochTriggered, log.EpochCompleted, log.EpochCommitted, log.EpochsRemoved, log.PartitionRestored)
"""Events that the page has elsewhere, or that nobody would read one by one."""


class Watch:
    """The events of one run so far, and the answers to questions about it."""

    def __init__(self, fixed: Fixed, status: Callable[[], RunStatus]) -> None:
        self._fixed = fixed
        self._status = status
        self._lock = threading.Lock()
        self._store_calls = store_calls()
        """Those of this process before."""
        self._counts = Counts()
        self._notes: deque[Note] = deque(maxlen=_NOTES)
        self._abandoned: deque[log.EpochAbandoned] = deque(maxlen=_NOTES)
        self._failures: deque[Failure] = deque(maxlen=_NOTES)

    def heard(self, event: log.AnyEvent) -> None:
        """Take an event."""
        with self._lock:
            self._counts.heard(event)
            if isinstance(event, log.EpochAbandoned):
                self._abandoned.append(event)
            if isinstance(event, log.AttemptFailed):
                self._failures.append(Failure(event.at, event.cause, words_of(event)))
            if not isinstance(event, _QUIET):
                level = logging.getLevelName(level_of(event)[1]).lower()
                self._notes.append(Note(event.at, type(event).__name__, level, words_of(event)))

    @property
    def routes(self) -> Mapping[str, Route]:
        """Return what there is to see, by its path."""
        return {"/metrics": Lately(self._metrics), "/": _page, "/page.js": _script, "/data.json": Lately(self._data)}

    def _metrics(self) -> Content:
        with self._lock:  # for which the driver's thread may wait
            counts = deepcopy(self._counts)
        return Content(CONTENT_TYPE, text_of(families(self._status(), counts, since(self._store_calls, store_calls()), time.time())))

    def _data(self) -> Content:
        with self._lock:
            notes, abandoned, failures = tuple(self._notes), tuple(self._abandoned), tuple(self._failures)
        data = page_data(self._fixed, self._status(), notes, abandoned, failures, time.time())
        return Content("application/json", json.dumps(data, separators=(",", ":"), allow_nan=False).encode())


class Lately:
    """An answer that is put together at most once in half a second, by one caller for all that ask meanwhile."""

    def __init__(self, make: Route) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made_at = float("-inf")
        self._content: Content | None = None

    def __call__(self) -> Content:
        """Return the answer as it was half a second ago at most."""
        with self._lock:
            if self._content is None or time.monotonic() - self._made_at >= _LATELY:
                self._content = self._make()
                self._made_at = time.monotonic()
            return self._content


def _page() -> Content:
    return Content("text/html; charset=utf-8", _file("page.html"))


def _script() -> Content:
    return Content("text/javascript; charset=utf-8", _file("page.js"))


def _file(name: str) -> bytes:
    return (files("recovery.telemetry") / name).read_bytes()
