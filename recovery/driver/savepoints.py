"""Savepoints that users wait for: each wish is fulfilled by one epoch that was triggered for it, and pinned.

What always holds: a wish is answered once, also one that comes after the job's end; one whose epoch was given up is
triggered again.
"""

from __future__ import annotations

from collections.abc import Callable

from statebackend.ids import Epoch

Answer = Callable[[Epoch | Exception], object]


class SavepointWishes:
    """What users wait for."""

    def __init__(self) -> None:
        self._waiting: list[Answer] = []
        self._under_way: dict[Epoch, list[Answer]] = {}
        self._over: Exception | None = None

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for whom nothing is under way."""
        return bool(self._waiting)

    @property
    def wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting or self._under_way)

    def add(self, answer: Answer) -> None:
        """Somebody wants one; who comes too late hears so at once."""
        if self._over is not None:
            answer(self._over)
        else:
            self._waiting.append(answer)

    def triggered(self, epoch: Epoch) -> None:
        """A savepoint was triggered: it is for all who wait."""
        if self._waiting:
            self._under_way[epoch], self._waiting = self._waiting, []

    def given_up(self, epoch: Epoch) -> None:
        """The epoch will never be."""
        self._waiting = [*self._under_way.pop(epoch, ()), *self._waiting]

    def taken(self, epoch: Epoch) -> None:
        """The savepoint is complete and pinned."""
        for answer in self._under_way.pop(epoch, ()):
            answer(epoch)

    def end(self, error: Exception) -> None:
        """The job is over; who waits still will not get any, nor will who comes later."""
        self._over = error
        for answers in (self._waiting, *self._under_way.values()):
            for answer in answers:
                answer(error)
        self._waiting, self._under_way = [], {}
