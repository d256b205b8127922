"""One job as it is seen from outside: its metrics, its page, and the data that the page shows.

Invariant: events come in one thread and are kept as counts and as the newest of each kind; questions come in others
and are answered from these and from the status.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from importlib.resources import files
from typing import Final

from recovery import events as log
from recovery.driver.report.logs import level_of, words_of
from recovery.driver.report.status import RunStatus
from recovery.telemetry.counts import Counts
from recovery.telemetry.exposition import CONTENT_TYPE, text_of
from recovery.telemetry.latency import Age, Ages, around
from recovery.telemetry.metrics import families
from recovery.telemetry.page_data import Failure, Note, Recovery, Seen, page_data
from recovery.telemetry.server import Content, Route
from recovery.telemetry.tree_data import SECONDS, tree_data
from statebackend.stores.store_calls import since, store_calls

_NOTES: Final = 200
_RECOVERIES: Final = 50
_LATELY: Final = 0.5
"""Seconds for which an answer holds: many callers at once cost the job no more than one."""
_QUIET: Final = (
    log.EpochTriggered,
    log.EpochSkipped,
    log.EpochCompleted,
    log.EpochCommitted,
    log.EpochsRemoved,
    log.PartitionRestored,
)
"""Events that the page has elsewhere, or that no person would read one by one."""


class Watch:
    """The events of one job so far, and the answers to questions about it; `kept` of its newest epochs."""

    def __init__(self, job: str, kept: int = 100) -> None:
        self._lock = threading.Lock()
        self._store_calls = store_calls()
        """Those of this process before."""
        self._described = log.Described(at=0.0, job=job, scheme="", parallelism=0, stages=(), options=())
        self._counts = Counts()
        self._ages = Ages()
        self._notes: deque[Note] = deque(maxlen=_NOTES)
        self._epochs: deque[log.EpochCompleted] = deque(maxlen=kept)
        self._abandoned: deque[log.EpochAbandoned] = deque(maxlen=_NOTES)
        self._failures: deque[Failure] = deque(maxlen=_NOTES)
        self._recoveries: deque[Recovery] = deque(maxlen=_RECOVERIES)
        self._failed: deque[Failure] = deque(maxlen=_NOTES)
        """Those since the last recovery."""
        self._lost: deque[str] = deque(maxlen=_NOTES)
        """Processes that were lost since then."""
        self._skipped = ""

    def heard(self, event: log.AnyEvent) -> None:
        """Take an event."""
        with self._lock:
            self._counts.heard(event)
            self._ages.heard(event)
            self._keep(event)
            if not isinstance(event, _QUIET):
                level = logging.getLevelName(level_of(event)[1]).lower()
                self._notes.append(Note(event.at, type(event).__name__, level, words_of(event)))

    def _keep(self, event: log.AnyEvent) -> None:
        match event:
            case log.Described():
                self._described = event
            case log.EpochCompleted():
                self._epochs.append(event)
            case log.EpochSkipped(reason=reason):
                self._skipped = reason
            case log.EpochAbandoned():
                self._abandoned.append(event)
            case log.AttemptFailed(at=at, cause=cause):
                self._failures.append(Failure(at, cause, words_of(event)))
                self._failed.append(self._failures[-1])
            case log.WorkerLost(partition=partition) if partition is not None:
                self._lost.append(words_of(event))
            case log.WorkerDied() | log.FaultInjected():
                self._lost.append(words_of(event))
            case log.Recovered():
                self._recovered(event)
            case log.Claimed():
                self._failed.clear()
                self._lost.clear()
            case _:
                pass

    def _recovered(self, event: log.Recovered) -> None:
        """Keep a recovery with what failed before it."""
        back = event.marks.caught_up or event.marks.opened or 0.0
        failed_at = self._failed[0].at if self._failed else event.at - back / 1000
        failures = tuple(f"{one.cause}: {one.text}" for one in self._failed)
        self._recoveries.append(Recovery(event, failed_at, failures, tuple(self._lost)))
        self._failed.clear()
        self._lost.clear()

    def routes(self, status: Callable[[], RunStatus], tree: str) -> Mapping[str, Route]:
        """Return what there is to see of a run with this status, by its path; `tree` is the URI of its tree."""
        return {
            **PAGE,
            "/metrics": Lately(lambda: self._metrics(status())),
            "/data.json": Lately(lambda: as_json(page_data(self.seen(status()), time.time()))),
            "/tree.json": Lately(lambda: as_json(tree_data(tree)), SECONDS),
        }

    @property
    def newest(self) -> log.EpochCompleted | None:
        """Return the last complete epoch that was heard."""
        with self._lock:
            return self._epochs[-1] if self._epochs else None

    def seen(self, status: RunStatus) -> Seen:
        """Return all that is seen of the job, which has this status now."""
        with self._lock:  # for which the thread of the events may wait
            found = Seen(
                status,
                self._described,
                deepcopy(self._counts),
                tuple(self._notes),
                tuple(self._epochs),
                tuple(self._abandoned),
                tuple(self._failures),
                skip_reason=self._skipped,
            )
            recoveries, ages = tuple(self._recoveries), self._ages.found
        return replace(found, recoveries=[_with_ages(one, ages) for one in recoveries])

    def _metrics(self, status: RunStatus) -> Content:
        with self._lock:
            counts = deepcopy(self._counts)
        return Content(
            CONTENT_TYPE, text_of(families(status, counts, since(self._store_calls, store_calls()), time.time()))
        )


def _with_ages(one: Recovery, ages: Sequence[Age]) -> Recovery:
    return replace(one, ages=tuple(around(one.failed_at, one.event.at, ages)))


def as_json(data: object) -> Content:
    """Return data as the page reads it."""
    return Content("application/json", json.dumps(data, separators=(",", ":"), allow_nan=False).encode())


class Lately:
    """An answer that is put together at most once in so many seconds, by one caller for all that ask meanwhile."""

    def __init__(self, make: Route, seconds: float = _LATELY) -> None:
        self._make = make
        self._seconds = seconds
        self._lock = threading.Lock()
        self._made_at = float("-inf")
        self._content: Content | None = None

    def __call__(self) -> Content:
        """Return the answer as it was so many seconds ago at most."""
        with self._lock:
            if self._content is None or time.monotonic() - self._made_at >= self._seconds:
                self._content = self._make()
                self._made_at = time.monotonic()
            return self._content


def file_of_page(name: str) -> bytes:
    """Return a file of the page, as it lies in the package."""
    return (files("recovery.telemetry") / name).read_bytes()


PAGE: Final[Mapping[str, Route]] = {
    "/": lambda: Content("text/html; charset=utf-8", file_of_page("page.html")),
    "/page.js": lambda: Content("text/javascript; charset=utf-8", file_of_page("page.js")),
}
"""The parts of the page that are the same for every job."""
