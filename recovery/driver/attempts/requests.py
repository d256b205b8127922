"""The requests to a running job: savepoints, and to end, by its user or because its input has ended.

Invariant: a request for a savepoint is answered once, also one that comes after the job's end; one whose epoch
was given up is triggered again. A job ends well only when an epoch is complete and committed after which nothing was
read that counts: asked for when all input had ended, or with the word that the sources pause after it. No epoch follows
that one, so none is left that is complete and awaits its commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from recovery.driver.tree.manifests import key_types_of
from snapshot.epochs import coordinator_events as events
from snapshot.journal.state import JournalState
from snapshot.program.plan import Plan
from statebackend.ids import Epoch, Uid

Request = events.SavepointRequested | events.EpochRequested

Answer = Callable[[Epoch | Exception], object]

_END_OF_INPUT: Final = events.EpochRequested(last=True)


class EndKind(Enum):
    """The reason why a job has ended well."""

    FINISHED = auto()
    """All input is processed."""
    STOPPED = auto()
    """Its user stopped it."""


@dataclass(frozen=True, slots=True)
class End:
    """The job has ended well, with this epoch; `savepoint` if it was pinned for the user.

    `nothing_since` is the epoch from which it went on, if its sources have read nothing since then.
    """

    kind: EndKind
    epoch: Epoch
    savepoint: bool
    nothing_since: Epoch | None = None


class Cancelled(Exception):
    """The job was cancelled by its user; started again, it goes on from its last complete epoch."""


def of_no_use(end: End | Exception, plan: Plan) -> tuple[Uid, ...]:
    """Return the operators whose state no process needs to find on its host again.

    Those of a job that has finished: it is started again for more input, if at all, and then reads its tree.
    """
    finished = isinstance(end, End) and end.kind is EndKind.FINISHED
    return tuple(key_types_of(plan)) if finished else ()


class Endings:
    """The requested end of the job, and the epochs that would be its last one.

    The host asks `wanted` when an attempt runs, and whenever an epoch was given up, and tells the coordinator so.
    """

    def __init__(self) -> None:
        self.draining = False
        self._stop: Request | None = None
        self._all_ended = False
        self._last: dict[Epoch, End] = {}

    @property
    def stopping(self) -> bool:
        """True if the sources pause after the next epoch that is asked for."""
        return self._stop is not None

    @property
    def is_near(self) -> bool:
        """True if the job is to end, or all input of the attempt was processed."""
        return self.draining or self._stop is not None or self._all_ended

    def stop(self, *, savepoint: bool) -> Request:
        """Return what to ask the coordinator for, as the user wants the job to stop after one more epoch."""
        self._stop = events.SavepointRequested(last=True) if savepoint else events.EpochRequested(last=True)
        return self._stop

    def all_ended(self) -> Request:
        """Return what to ask the coordinator for, as all input of the attempt has been processed."""
        self._all_ended = True
        return _END_OF_INPUT

    def attempt_over(self) -> None:
        """Forget what was processed after the last complete epoch: it is processed again."""
        self._all_ended = False
        self._last.clear()

    def triggered(self, epoch: Epoch, *, savepoint: bool, asked_by: object) -> bool:
        """Take note of a triggered epoch; return True if its sources pause after it.

        `asked_by` is the event that led to the epoch. One that was due when all input had ended is not the last: the
        one that is asked for follows it.
        """
        pauses = self._stop is not None and asked_by == self._stop
        if pauses:
            self._last[epoch] = End(EndKind.STOPPED, epoch, savepoint)
        elif self._all_ended and asked_by == _END_OF_INPUT:
            self._last[epoch] = End(EndKind.FINISHED, epoch, savepoint)
        return pauses

    def given_up(self, epoch: Epoch) -> bool:
        """Forget an epoch given up in a running attempt; return True if another is to be asked for in its place."""
        return self._last.pop(epoch, None) is not None

    def wanted(self) -> Request | None:
        """Return what to ask the coordinator for now; None if an epoch that would do is under way."""
        if self._last:
            return None
        if self._stop is not None:
            return self._stop
        return _END_OF_INPUT if self._all_ended else None

    def reached(self, journal: JournalState) -> End | None:
        """Return the job's end if the journal shows that the job has come to it, else None."""
        for record in journal.epochs:
            end = self._last.get(record.epoch)
            if end is not None and not record.awaits_commit:
                return end
        return None


class SavepointRequests:
    """The savepoints that users wait for: one epoch, triggered for them and pinned, answers all who wait."""

    def __init__(self) -> None:
        self._waiting: list[Answer] = []
        self._under_way: dict[Epoch, list[Answer]] = {}
        self._over: Exception | None = None

    @property
    def waiting(self) -> bool:
        """True if a user waits for whom no savepoint is under way."""
        return bool(self._waiting)

    @property
    def wanted(self) -> bool:
        """True if a user waits."""
        return bool(self._waiting or self._under_way)

    def add(self, answer: Answer) -> None:
        """Take a user's wish for a savepoint; after the job's end, answer it at once with the reason."""
        if self._over is not None:
            answer(self._over)
        else:
            self._waiting.append(answer)

    def triggered(self, epoch: Epoch) -> None:
        """Promise this savepoint, which was triggered, to all users who wait."""
        if self._waiting:
            self._under_way[epoch], self._waiting = self._waiting, []

    def given_up(self, epoch: Epoch) -> None:
        """Have the users of this epoch, which will never be complete, wait for another one."""
        self._waiting = [*self._under_way.pop(epoch, ()), *self._waiting]

    def taken(self, epoch: Epoch) -> None:
        """Answer the users of this savepoint, which is complete and pinned."""
        for answer in self._under_way.pop(epoch, ()):
            answer(epoch)

    def end(self, error: Exception) -> None:
        """Answer all who still wait, and all who come later, with this error: the job is over."""
        self._over = error
        for answers in (self._waiting, *self._under_way.values()):
            for answer in answers:
                answer(error)
        self._waiting, self._under_way = [], {}
