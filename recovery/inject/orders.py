"""One fault as it is asked for: of which kind, to whom, for how long.

What always holds: an order that makes no sense cannot be made; the message says which part of it does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from recovery.inject.targets import Anything, ExecutorOf, LinkBetween, StandbyAt, Target, TheDriver, WorkerOf
from snapshot.program.durations import in_words


class ContradictingOrder(ValueError):
    """The parts of an order do not go together; the message says which."""


class Kind(Enum):
    """What can happen."""

    KILL = "kill"
    """A process dies at once, by SIGKILL."""
    STOP = "stop"
    """A process hangs for a time, by SIGSTOP."""
    CUT = "cut"
    """Connections carry nothing for a time, and are not closed; nor do new ones between the same two."""
    BREAK = "break"
    """Connections are closed in the middle of a frame."""
    DELAY = "delay"
    """What connections carry comes later for a time, in order."""


_OF_PROCESSES: Final = (WorkerOf, StandbyAt, TheDriver, ExecutorOf, Anything)
_OF_CONNECTIONS: Final = (WorkerOf, StandbyAt, LinkBetween, Anything)
_LASTING: Final = (Kind.STOP, Kind.CUT, Kind.DELAY)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to happen to whom. `lasting` is for what lasts, `by` for a delay; both in milliseconds.

    To cut, break or delay a process is to do so with all its connections, those with the driver included. Signs of life
    and the handshakes of new connections are not delayed.
    """

    kind: Kind
    target: Target
    lasting: int | None = None
    by: int | None = None

    def __post_init__(self) -> None:
        name, target = self.kind.value, self.target
        if self.kind in (Kind.KILL, Kind.STOP):
            if not isinstance(target, _OF_PROCESSES):
                raise ContradictingOrder(f"{target} is a connection, which cannot be told to {name}; cut it")
        elif not isinstance(target, _OF_CONNECTIONS):
            raise ContradictingOrder(f"{name} is for a worker, a standby or a link, not for {target}")
        if (self.kind in _LASTING) != (self.lasting is not None):
            how = "needs a time to last" if self.kind in _LASTING else "is over at once, and has no time to last"
            raise ContradictingOrder(f"{name} {how} (--for)")
        if (self.kind is Kind.DELAY) != (self.by is not None):
            how = "needs the delay" if self.kind is Kind.DELAY else "delays nothing"
            raise ContradictingOrder(f"{name} {how} (--delay)")
        if self.lasting == 0 or self.by == 0:
            raise ContradictingOrder(f"{name} for no time at all is nothing")

    def __str__(self) -> str:
        lasting = "" if self.lasting is None else f" for {in_words(self.lasting)}"
        by = "" if self.by is None else f" by {in_words(self.by)}"
        return f"{self.kind.value} {self.target}{by}{lasting}"
