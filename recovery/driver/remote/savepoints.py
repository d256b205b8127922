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
