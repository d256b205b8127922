"""What is said of a store that does not do what the driver asks of it, while it is asked again.

What always holds: of a short failure nothing is said, of a long one now and then, and of its end once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from recovery import events as log
from snapshot.host.net.event_loop import EventLoop
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobStoreError

_SHORT: Final = 1.0
_NOW_AND_THEN: Final = 10.0


def watched_patience(seconds: float, loop: EventLoop, note: Callable[[log.Trouble], object]) -> Patience:
    """Return a patience that reports, in the loop's thread, on a store that fails, while the patience lasts."""
    watch = _Watch(loop, note, seconds)
    return Patience(seconds, waiting=watch.waiting, answered=watch.answered)


class _Watch:
    """Any thread may tell it something."""

    def __init__(self, loop: EventLoop, note: Callable[[log.Trouble], object], patience: float) -> None:
        self._loop = loop
        self._note = note
        self._patience = patience
        self._said_at: float | None = None

    def waiting(self, seconds: float, error: BlobStoreError) -> None:
        """Take note that the store has been failing for `seconds`."""
        self._loop.wake(lambda: self._fails(seconds, error))

    def answered(self, seconds: float) -> None:
        """Take note that the store answers again, after failing for `seconds`."""
        self._loop.wake(lambda: self._answers(seconds))

    def _fails(self, seconds: float, error: BlobStoreError) -> None:
        now = self._loop.now()
        if seconds >= _SHORT and (self._said_at is None or now - self._said_at >= _NOW_AND_THEN):
            self._said_at = now
            left = self._patience - seconds
            self._say(f"it has failed for {seconds:.1f} s, and is asked again for {left:.0f} s more: {error}")

    def _answers(self, seconds: float) -> None:
        if self._said_at is not None:
            self._said_at = None
            self._say(f"it does what it is asked again, after {seconds:.1f} s")

    def _say(self, text: str) -> None:
        self._note(log.Trouble(at=time.time(), what="the store", reason=text))
