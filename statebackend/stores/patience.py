"""Ask a store again, with pauses that grow, if it does not do what it is asked.

Invariant: only what may be done twice is asked again; when the time is over, the store's last error is raised,
and never taken for an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from statebackend import means
from statebackend.stores.store import BlobStoreError, StoreUnavailable

PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each repetition; the last one counts for all that follow."""
BRIEF: Final = sum(PAUSES)
"""Seconds of a patience in which each pause comes once."""

_MOMENT: Final = 0.001

_Answer = TypeVar("_Answer")


class Patience:
    """For so many seconds; may be shared by threads. `waiting(seconds, error)` is told before each pause how long the
    store has been failing already, and `answered(seconds)` for how long it had failed once it does it again.

    `sleep` is for tests; what is slept counts as time that has passed, whatever the clock says.
    """

    def __init__(
        self,
        seconds: float = BRIEF,
        sleep: Callable[[float], object] | None = None,
        waiting: Callable[[float, BlobStoreError], object] = lambda *_: None,
        answered: Callable[[float], object] = lambda _: None,
    ) -> None:
        self.seconds = seconds
        self._given_up = means.Event()
        self._sleep = sleep or self._given_up.wait
        self.waiting = waiting
        self.answered = answered

    def ask(self, call: Callable[[], _Answer]) -> _Answer:
        """Call, and again while the store is unavailable; raise the last error when the time is over.

        A call that raises `StoreUnavailable` has changed nothing that doing it again would not.
        """
        trial = self.begin()
        while True:
            try:
                answer = call()
            except StoreUnavailable as error:
                trial.wait(error)
            else:
                trial.over()
                return answer

    def begin(self) -> Trial:
        """Begin a trial of a request that takes another form each time: the caller reports each failure."""
        return Trial(self)

    def give_up(self) -> None:
        """End all waits for the store, now and later, as the answers are not needed any more."""
        self._given_up.set()

    def pause(self, seconds: float, error: BlobStoreError) -> None:
        """Let so much time pass; raise the error if everything was given up."""
        if not self._given_up.is_set():
            self._sleep(seconds)
        if self._given_up.is_set():
            raise error


class Trial:
    """One thing that is asked again and again."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failed_at: float | None = None
        self._slept = 0.0
        self._failures = 0

    def wait(self, error: BlobStoreError) -> None:
        """Return when it is time to ask again after this error, or raise it if there is no time left."""
        now = means.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        passed = max(now - self._failed_at, self._slept)
        left = self._patience.seconds - passed
        if left < _MOMENT:
            raise error
        pause = min(PAUSES[min(self._failures, len(PAUSES) - 1)], left)
        self._failures += 1
        self._slept += pause
        self._patience.waiting(passed, error)
        self._patience.pause(pause, error)

    def over(self) -> None:
        """Note that it has been done; failures from now on have all the time again."""
        if self._failed_at is not None:
            self._patience.answered(max(means.monotonic() - self._failed_at, self._slept))
            self._failed_at, self._slept, self._failures = None, 0.0, 0
