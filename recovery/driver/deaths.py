"""How processes died, as far as that can be known: from what they said last, and from their exit code.

What always holds: a lost process that had a partition is told of once, as soon as nothing more can come of it or after
two seconds, and never before it was reported lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from recovery.driver.launch import TellsExitCodes
from recovery.restarts import Death
from snapshot.host.event_loop import EventLoop
from snapshot.host.last_words import WordsHeard
from snapshot.host.messages import Hello
from snapshot.host.worker import DRIVER_LOST
from statebackend.ids import Partition

_LOOK: Final = 0.01
_PATIENCE: Final = 2.0
_CRASHES: Final = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP)
)
"""Signals that a process brings upon itself: nobody sends them."""
_KILLED: Final = "the kernel's out-of-memory killer does that; then give it more memory, or lower state_memory"


@dataclass(frozen=True, slots=True, eq=False)
class _Lost:
    hello: Hello
    partition: Partition
    reason: str
    memory: int
    words: WordsHeard | None
    deadline: float


class Deaths:
    """Looks into them, in the loop's thread. `tell` is called there too, not inside `lost`."""

    def __init__(self, loop: EventLoop, codes: TellsExitCodes | None, tell: Callable[[Death], object]) -> None:
        self._loop = loop
        self._codes = codes
        self._tell = tell
        self._open: set[_Lost] = set()

    def lost(self, hello: Hello, partition: Partition, reason: str, memory: int, words: WordsHeard | None) -> None:
        """This process is lost, and was not silent before; it took so many bytes of memory when it last said so."""
        lost = _Lost(hello, partition, reason, memory, words, self._loop.now() + _PATIENCE)
        self._open.add(lost)
        self._loop.call_soon(lambda: self._look(lost))

    def close(self) -> None:
        """Nobody is told of anything any more."""
        for lost in self._open:
            if lost.words is not None:
                lost.words.close()
        self._open.clear()

    def _look(self, lost: _Lost) -> None:
        if lost not in self._open:
            return
        code = None if self._codes is None else self._codes.exit_code(lost.hello.launch)
        awaited = (lost.words is not None and not lost.words.over) or (self._codes is not None and code is None)
        if awaited and self._loop.now() < lost.deadline:
            self._loop.call_at(self._loop.now() + _LOOK, lambda: self._look(lost))
            return
        self._open.remove(lost)
        if lost.words is not None:
            lost.words.close()
        self._tell(_death(lost, code))


def _death(lost: _Lost, code: int | None) -> Death:
    hello, words = lost.hello, lost.words
    stack, at_work = ("", None) if words is None else (words.stack, words.at_work)
    how, by_itself = _how(code, stack, lost.reason)
    memory = f"; it had {lost.memory / (1 << 20):,.0f} MB when it last said so" if lost.memory and not by_itself else ""
    how = f"its process {hello.pid} on {hello.address.host} {how}{memory}"
    return Death(lost.partition, hello.worker, how, by_itself, at_work, stack)


def _how(code: int | None, stack: str, reason: str) -> tuple[str, bool]:
    """How it ended, and whether it has done that itself."""
    if code is not None and code < 0:
        name = f"signal {-code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
        if -code in _CRASHES:
            return f"crashed with {name}", True
        return f"was killed by {name}" + (f" ({_KILLED})" if -code == signal.SIGKILL else ""), False
    if stack:
        return f"crashed: {stack.splitlines()[0]}", True
    if code is not None and code != DRIVER_LOST:
        return f"ended itself with exit code {code}, as os._exit does", True
    if code == DRIVER_LOST:
        return "has lost its connection to the driver", False
    return f"is gone without a word, as after os._exit or a SIGKILL ({_KILLED}): {reason}", False
