"""Schemes by name, for the command line and for comparisons.

Invariant: a name means the same scheme wherever it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from recovery.restart_strategies import NoRestart
from recovery.schemes.acks import Acks
from recovery.schemes.active import Active
from recovery.schemes.micro_batches import MicroBatches
from recovery.schemes.passive import Passive
from recovery.schemes.scheme import Scheme
from recovery.schemes.synchronous import Synchronous
from snapshot.host.protocol.options import Following

NAMED: Final[Mapping[str, Callable[[int], Scheme]]] = {
    "passive": Passive,
    "active": lambda standbys: Active(fallback=Passive(standbys)),
    "acks": Acks,
    "micro-batches": MicroBatches,
    "synchronous": Synchronous,
}
"""Makes each scheme with so many standbys."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A scheme as it takes part in a comparison."""

    scheme: Scheme
    says: str
    """The scheme in a few words, for readers of a report."""
    survives: bool = True
    """False if it takes no epochs, and so survives no fault: it shows what a program costs without any."""
    at_least_once: bool = False
    """True if a row may count twice in state after a fault: then rows that no run without faults has are no failure."""

    @property
    def shows_at_once(self) -> bool:
        """True if no sink can wait for epochs to show every row once: there are none, or the scheme refuses it."""
        return not self.survives or self.at_least_once


COMPARED: Final[Mapping[str, Compared]] = {
    "none": Compared(Passive(restarts=NoRestart()), "no epochs and no recovery: the cost of the program alone", False),
    "passive": Compared(Passive(), "all partitions roll back to the last epoch; the lost process is started again"),
    "passive+standby-files": Compared(
        Passive(standbys=1, following=Following.FILES), "as passive, and a process that has the epoch's files waits"
    ),
    "passive+standby-open": Compared(
        Passive(standbys=1, following=Following.OPEN), "as passive, and a process that has the state open waits"
    ),
    "active": Compared(Active(replicas=2), "two processes do the work of each partition; one of them may be lost"),
    "synchronous": Compared(Synchronous(), "as passive, and sources stand still while an epoch is taken"),
    "acks": Compared(
        Acks(), "a lost partition restarts alone; rows may come twice, and count twice in totals", at_least_once=True
    ),
    "micro-batches": Compared(MicroBatches(), "as passive, and rows are read and shown batch by batch"),
}
"""The schemes that can be compared. One that is added here takes part in comparisons without any other change."""
