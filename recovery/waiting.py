"""Waits of a program's main thread that a signal ends, whichever thread the system gives it to.

Python carries a signal out in the main thread, and a lock for which that waits is woken only by a signal of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statebackend import means

PIECE: Final = 0.5
"""Seconds for which such a wait goes on in one go; between two of them Python carries out what has come."""


def wait_in_pieces(wait: Callable[[float], bool], timeout: float | None = None) -> bool:
    """Call `wait` with a short time until it returns True; return False if `timeout` seconds are over before that."""
    deadline = None if timeout is None else means.monotonic() + timeout
    while True:
        left = PIECE if deadline is None else min(PIECE, deadline - means.monotonic())
        if wait(max(0.0, left)):
            return True
        if left < PIECE:
            return False
