"""The faults that a history may have, and the few that each history picks to have often.

Invariant: histories differ in what they stress ("swarm testing"), since a search in which everything happens a
little finds little; and a schedule of zeros picks no fault and no preference.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from zlib import crc32

from snapshot.testing.history import Channel
from snapshot.testing.process import ORDINARY
from snapshot.testing.schedule import Schedule


class Fault(Enum):
    """A fault that may befall a process or a link."""

    CRASH = "crash"
    CUT = "cut"
    LOSS = "loss"
    PAUSE = "pause"
    CALM = "calm"


@dataclass(frozen=True, slots=True)
class Faults:
    """The most faults of each kind in a history, and whom they may befall; None means every process.

    A crash drops a process's state, all that is on its way to it, and the end of what is on its way from it. A cut
    drops the end of what is on a link, both ways. Both tell the peers. A loss drops one message of a channel in
    `lossy`, and no process is told. A pause stops a process for a while. A calm is no fault but the want of any: for a
    while all goes its fair way, so that a short schedule gets far before it turns adverse again. Channels are FIFO,
    except those in `overtaking`, on which messages may overtake each other.
    """

    crashes: int = 0
    cuts: int = 0
    losses: int = 0
    pauses: int = 0
    calms: int = 0
    crashable: Collection[str] | None = None
    cuttable: Collection[Channel] | None = None
    lossy: Collection[Channel] = ()
    pausable: Collection[str] | None = None
    overtaking: Collection[Channel] = ()

    def budget(self, fault: Fault) -> int:
        """Return how many faults of this kind a history may have."""
        return {
            Fault.CRASH: self.crashes,
            Fault.CUT: self.cuts,
            Fault.LOSS: self.losses,
            Fault.PAUSE: self.pauses,
            Fault.CALM: self.calms,
        }[fault]


NO_FAULTS = Faults()

_RATES = (0, 5, 30)  # in 256ths, per step
_SPEEDS = (ORDINARY, 1, 16)
_CALMS = (0, 20, 60, 150, 400)


class Swarm:
    """The stress of one history, drawn from the first bytes of its schedule.

    Some processes and channels are slow throughout, since many errors need one that stays behind for long.
    """

    def __init__(self, schedule: Schedule, faults: Faults) -> None:
        self.budget = {fault: faults.budget(fault) for fault in Fault if faults.budget(fault)}
        self.rates = {fault: _RATES[schedule.choose((2, 1, 1)) or 0] for fault in self.budget}
        self.rate = 0
        """The chance of any fault at the next step, in 256ths."""
        self._tune()
        self.eagerness = _SPEEDS[schedule.number(len(_SPEEDS))]
        self.returning = _SPEEDS[schedule.number(len(_SPEEDS))]
        self._skew = schedule.number(256)
        self.calm = self.calm_steps(schedule) if faults.calms else 0
        """For how many more steps all goes its fair way."""

    @staticmethod
    def calm_steps(schedule: Schedule) -> int:
        """Choose for how many steps a calm lasts."""
        return _CALMS[schedule.number(len(_CALMS))]

    def spend(self, fault: Fault) -> None:
        """Take one fault of this kind from the budget."""
        self.budget[fault] -= 1
        if not self.budget[fault]:
            del self.budget[fault]
            self._tune()

    def speed(self, *names: str) -> int:
        """Return how often this process or channel gets a turn, next to the others."""
        of_processes, of_channels = self._skew & 64, self._skew & 128
        if not (of_processes if len(names) == 1 else of_channels):
            return ORDINARY
        return _SPEEDS[crc32(f"{self._skew} {names}".encode()) % len(_SPEEDS)]

    def _tune(self) -> None:
        self.rate = sum(self.rates[fault] for fault in self.budget)
