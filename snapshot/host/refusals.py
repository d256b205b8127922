"""Who was turned away at a port, as it is told on: so many in a second one by one, and the others counted.

What always holds: everyone who was turned away is told of, by name or in a number; a stranger who tries again and again
fills no log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from snapshot.host.event_loop import EventLoop

_ONE_BY_ONE: Final = 20
_SECONDS: Final = 1.0


class Refusals:
    """Takes the refusals of one port. `tell(peer, reason)` hears of them; the peer is "" if it is told of several."""

    def __init__(self, loop: EventLoop, tell: Callable[[str, str], object]) -> None:
        self._loop = loop
        self._tell = tell
        self._lately = 0

    def add(self, peer: str, reason: str) -> None:
        """Somebody was turned away."""
        if not self._lately:
            self._loop.call_at(self._loop.now() + _SECONDS, self._tell_of_the_others)
        self._lately += 1
        if self._lately <= _ONE_BY_ONE:
            self._tell(peer, reason)

    def _tell_of_the_others(self) -> None:
        others, self._lately = self._lately - _ONE_BY_ONE, 0
        if others > 0:
            self._tell("", f"{others} more were turned away within a second")
