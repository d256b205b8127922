"""Find out how processes died: from their last words, and from their exit code.

Invariant: a lost process that had a partition is told of once, as soon as nothing more can come of it or after
two seconds, and never before it was reported lost.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from recovery.decisions.restarts import Death
from recovery.driver.launchers.launch import TellsExitCodes
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.partition.last_words import WordsHeard
from snapshot.host.process.worker import DRIVER_LOST
from snapshot.host.protocol.messages import Hello
from statebackend.ids import Partition

_LOOK: Final = 0.01
_PATIENCE: Final = 2.0
_CRASHES: Final = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP)
)
"""Signals that a process brings upon itself: no process sends them."""
_KILLED: Final = "the kernel's out-of-memory killer does that; then give it more memory, or lower state_memory"


@dataclass(frozen=True, slots=True, eq=False)
class _Lost:
    hello: Hello
    partition: Partition
    reason: str
    memory: int
    words: WordsHeard | None
    deadline: float
    unusable: bool


class Deaths:
    """Looks into them, in the loop's thread. `tell` is called there too, not inside `lost`."""

    def __init__(self, loop: EventLoop, codes: TellsExitCodes | None, tell: Callable[[Death], object]) -> None:
        self._loop = loop
        self._codes = codes
        self._tell = tell
        self._open: dict[_Lost, None] = {}

    def lost(
        self,
        hello: Hello,
        partition: Partition,
        reason: str,
        memory: int,
        words: WordsHeard | None,
        *,
        unusable: bool = False,
    ) -> None:
        """Look into the death of a lost process that had not gone silent; `memory` is the bytes it reported last.

        `unusable` if it was given up for what came on the connection between it and the driver.
        """
        lost = _Lost(hello, partition, reason, memory, words, self._loop.now() + _PATIENCE, unusable)
        self._open[lost] = None
        self._loop.call_soon(lambda: self._look(lost))

    def close(self) -> None:
        """Look into no death any more, and tell of none."""
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
        del self._open[lost]
        if lost.words is not None:
            lost.words.close()
        self._tell(_death(lost, code))


def _death(lost: _Lost, code: int | None) -> Death:
    hello, words = lost.hello, lost.words
    stack, at_work = ("", None) if words is None else (words.stack, words.at_work)
    how, by_itself = _how(code, stack, lost)
    memory = (
        f"; it had {lost.memory / (1 << 20):,.0f} MB when it last said so"
        if lost.memory and not by_itself and not lost.unusable
        else ""
    )
    how = f"its process {hello.pid} on {hello.address.host} {how}{memory}"
    return Death(lost.partition, hello.worker, how, by_itself, at_work, stack)


def _how(code: int | None, stack: str, lost: _Lost) -> tuple[str, bool]:
    """Return how the process ended, and True if it did so by itself."""
    if lost.unusable and code in (None, DRIVER_LOST) and not stack:
        return f"was given up with its connection to the driver: {lost.reason}", False
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
    return f"is gone without a word, as after os._exit or a SIGKILL ({_KILLED}): {lost.reason}", False
