"""A job seen through what it leaves: its file of events, its tree and, while its driver runs here, what that answers.

Invariant: nothing of the job is changed, but what its page is allowed to ask the driver for. A driver that ends, dies
or does not answer while it is looked at ends no look: what is in the files is shown then, and it is said that no driver
answers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from recovery import events as log
from recovery.attached import Attached, CommandDeclined, ConnectionLost, attach
from recovery.driver.report.past_events import PastEvents
from recovery.driver.report.status import RunStatus, StatusBoard
from recovery.driver.tree.address import JobNotRunning, NotAllowed, home_of
from recovery.driver.tree.identity import find_birth
from recovery.offline.job_tree import open_tree
from recovery.telemetry.page_data import Seen, page_data
from recovery.telemetry.server import Content, Route
from recovery.telemetry.tree_data import SECONDS, told_by, tree_data
from recovery.telemetry.watch import PAGE, Lately, Watch, as_json
from snapshot.ids import JobId
from statebackend.errors import EpochcutError
from statebackend.stores.fsspec_store import absolute
from statebackend.stores.limited_store import find_limited

EVENTS: Final = "events.jsonl"
"""The file of events in a job's folder, if `events=` named no other."""
_PATIENCE: Final = 3.0
"""Seconds in which a driver that is only asked how it stands has answered."""
_AGAIN: Final = 2.0
"""Seconds until a driver that was not there is looked for again."""
_STORE: Final = 60.0
_SELDOM: Final = 30.0
"""Seconds until the tree of a job whose events are here is looked at again."""
_ORDER: Final = 120.0
"""Seconds in which an order of the page is carried out; after that it still may be, and the page is told so."""


class PastJob:
    """The job at these checkpoints, whose files lie in `folder`. Any thread may use it."""

    def __init__(
        self,
        checkpoints: str,
        *,
        folder: Path | None = None,
        events: Path | None = None,
        actions: bool = False,
        kept: int = 100,
    ) -> None:
        """Find the job; `WrongJob` if there is none, errors of the store."""
        self.uri: Final = absolute(checkpoints)
        self.job: Final[JobId] = find_birth(find_limited(self.uri, _STORE), self.uri).job
        self._folder = folder or home_of(self.job)
        self.events_file: Final = events or self._folder / EVENTS
        self.actions: Final = actions
        self._lock = threading.Lock()
        self._order = threading.Lock()
        """Held by the order that is being carried out."""
        self._log = PastEvents(self.events_file)
        self._board = StatusBoard(self.job, 0, "")
        self._watch = Watch(self.job, kept)
        self._attached: Attached | None = None
        self._not_before = float("-inf")
        self._why = ""
        """The reason why no driver answers."""
        self._heard = 0
        self._tree_read_at = float("-inf")
        self._problem = ""
        """The fault of the tree, if that had to be read and cannot be."""
        self._elsewhere = ""
        """The words for a claim of the tree that the events do not know."""

    @property
    def routes(self) -> Mapping[str, Route]:
        """Return what there is to see, by its path."""
        return {
            **PAGE,
            "/data.json": Lately(lambda: as_json(page_data(self.seen(), time.time()))),
            "/tree.json": Lately(lambda: as_json(tree_data(self.uri)), SECONDS),
        }

    @property
    def orders(self) -> Mapping[str, Route]:
        """Return what the page may ask the job for, by its path; nothing unless it is allowed to."""
        if not self.actions:
            return {}
        return {
            "/savepoint": lambda: self._ask(lambda job: f"savepoint {job.savepoint(_ORDER)} is taken"),
            "/stop": lambda: self._ask(
                lambda job: f"the job has stopped with savepoint {job.stop(savepoint=True, timeout=_ORDER)}"
            ),
        }

    def seen(self) -> Seen:
        """Return all that is seen of the job now."""
        with self._lock:
            self._read_events()
            status = self._ask_status()
            if status is None:
                self._read_tree()
            seen = self._watch.seen(status or self._board.show())
            return replace(seen, standing=self._standing(status), told_by=self._told_by(status), actions=self.actions)

    def close(self) -> None:
        """Close the connection to the driver, if there is one."""
        with self._lock:
            self._leave("")

    # --- files -------------------------------------------------------------------------------------------------------

    def _read_events(self) -> None:
        for event in self._log.more():
            self._take(event)
            self._heard += 1

    def _read_tree(self) -> None:
        """Take the epochs that the tree has after those of the events, as of a job that ran elsewhere since then."""
        if time.monotonic() - self._tree_read_at < (_SELDOM if self._heard else SECONDS):
            return
        self._tree_read_at = time.monotonic()
        self._problem = self._elsewhere = ""
        try:
            tree, newest = open_tree(self.uri), self._watch.newest
            known = self._board.show().generation
            if known is not None and tree.state.generation > known:
                self._elsewhere = (
                    f"The tree was claimed since then, by {tree.state.driver} as generation {tree.state.generation}: "
                    "the job runs there, or has run, or a command has changed it"
                )
            for event in told_by(tree):
                described = isinstance(event, log.Described) and not self._heard and newest is None
                later = isinstance(event, log.EpochCompleted) and (newest is None or event.epoch > newest.epoch)
                if described or later:
                    self._take(event)
        except (EpochcutError, OSError, ValueError) as error:
            self._problem = f"The tree cannot be read: {error}"

    def _take(self, event: log.AnyEvent) -> None:
        if isinstance(event, log.Described):
            self._board = StatusBoard(self.job, event.parallelism, event.scheme)
        self._board.event(event)
        self._watch.heard(event)

    # --- the driver --------------------------------------------------------------------------------------------------

    def _ask_status(self) -> RunStatus | None:
        """Return what the driver answers; None if none runs here, or it does not answer."""
        if self._attached is not None and (status := self._status_of(self._attached)) is not None:
            return status
        if time.monotonic() < self._not_before:
            return None
        try:
            self._attached = self._attach(_PATIENCE)
        except (JobNotRunning, NotAllowed, ConnectionLost, OSError) as error:
            self._leave(str(error))
            self._not_before = time.monotonic() + _AGAIN
            return None
        return self._status_of(self._attached)

    def _status_of(self, attached: Attached) -> RunStatus | None:
        try:
            return attached.status()
        except (ConnectionLost, CommandDeclined) as error:  # such as that nothing was asked for long
            self._leave(str(error))
            return None

    def _attach(self, timeout: float) -> Attached:
        return attach(self.uri, job_folder=self._folder, timeout=timeout)

    def _leave(self, why: str) -> None:
        self._why = why
        if self._attached is not None:
            self._attached.close()
            self._attached = None

    def _standing(self, status: RunStatus | None) -> str:
        if status is not None or (self._board.show().state.over and not self._elsewhere):
            return ""
        return "not running here"

    def _told_by(self, status: RunStatus | None) -> str:
        left_out = f"; {self._log.unreadable} lines of it cannot be read" if self._log.unreadable else ""
        older = "; older events are in it, and not shown" if self._log.passed_over else ""
        source = f"{self.events_file}{left_out}{older}"
        if not self._heard:
            source = f"{self._problem or 'the manifests of its epochs'}; {self.events_file} has no event"
        if status is not None:
            return f"its driver, and {source}"
        problem = self._problem if self._heard else ""
        return ". ".join(filter(None, (source, problem, self._elsewhere, f"No driver answers: {self._why}")))

    # --- what it is asked for ----------------------------------------------------------------------------------------

    def _ask(self, wanted: Callable[[Attached], str]) -> Content:
        """Ask the driver over a connection of its own, and return what came of it; one order at a time."""
        if not self._order.acquire(blocking=False):
            return _answer("problem", "the order before this one is not carried out yet; see what comes of it")
        try:
            with self._attach(_PATIENCE) as job:
                return _answer("done", wanted(job))
        except (JobNotRunning, NotAllowed, ConnectionLost, CommandDeclined, OSError) as error:
            return _answer("problem", str(error))
        finally:
            self._order.release()


def _answer(name: str, text: str) -> Content:
    return Content("application/json", json.dumps({name: text}).encode())
