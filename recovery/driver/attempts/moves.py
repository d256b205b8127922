"""Choose the moment at which a partition moves to another executor, and its new process: rules without I/O.

Invariant: one move is under way at a time. None begins while the job recovers, or soon after a recovery or another
move.

Partitions move apart, so that a lost executor takes fewer of them along. The new executor must have fewer partitions
after the move than the old one had before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from statebackend.ids import Partition

FIRST_CALM: Final = 1.0
CALM: Final = 5.0
"""Seconds after an attempt began to run in which nothing is done; the first attempt is no recovery."""
BETWEEN_MOVES: Final = 10.0
LOOKING: Final = 20.0
"""Seconds in which a process that was launched may come, on an executor that has run no Python yet."""
PREPARING: Final = 120.0
_PAUSES: Final = (2.0, 20.0)
"""Seconds until it is looked for another executor again: the first time, and at most; twice as long each time."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes of a job. `executors` says what each is lost with; `free` are those without a partition."""

    placed: Mapping[Partition, str]
    free: Sequence[str]
    executors: Mapping[str, str]

    @property
    def crowds(self) -> Counter[str]:
        """Return how many partitions each executor has, without those that have none."""
        return Counter(self.executors[worker] for worker in self.placed.values())

    @property
    def crowded(self) -> bool:
        """True if an executor has more than one partition."""
        return any(crowd > 1 for crowd in self.crowds.values())

    def better_at(self, executor: str) -> Partition | None:
        """Return a partition that had better move to this executor, or None."""
        crowds = self.crowds
        if not crowds:
            return None
        fullest = min(crowds, key=lambda name: (-crowds[name], name))
        if crowds[fullest] - crowds[executor] < 2:
            return None
        return max(partition for partition, worker in self.placed.items() if self.executors[worker] == fullest)


@dataclass(frozen=True, slots=True)
class Look:
    """Launch so many processes for a moment, to see where there is room."""

    tasks: int


@dataclass(frozen=True, slots=True)
class Recall:
    """An order to wait no more for processes that were launched."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Let this process, which is free, follow the state of this partition."""

    worker: str
    partition: Partition


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give it the partition now."""

    worker: str
    partition: Partition


Step = Look | Recall | Prepare | HandOver


@dataclass(slots=True)
class _Looking:
    until: float


@dataclass(slots=True)
class _Preparing:
    worker: str
    partition: Partition
    until: float
    told: bool = False


class Rebalancing:
    """The moves of one generation. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._ran_before = False
        self._not_before: float | None = None
        """Before this nothing is done; None while no attempt runs."""
        self._moved_at = -inf
        self._look_at = 0.0
        self._pause = _PAUSES[0]
        self._under_way: _Looking | _Preparing | None = None

    @property
    def idle(self) -> bool:
        """True if no move is under way."""
        return self._under_way is None

    @property
    def next_step(self) -> float | None:
        """Return when to call `step` if nothing happens before; None while no attempt runs."""
        if self._not_before is None:
            return None
        if self._under_way is not None:
            return self._under_way.until
        return max(self._not_before, self._look_at)

    def runs(self, now: float) -> None:
        """Take note that an attempt runs."""
        calm = CALM if self._ran_before else FIRST_CALM
        self._not_before = self._look_at = max(now + calm, self._moved_at + BETWEEN_MOVES)
        self._ran_before, self._pause = True, _PAUSES[0]

    def broken(self) -> None:
        """Drop the move that is under way, as the attempt is over."""
        self._not_before = self._under_way = None

    def step(self, now: float, crew: Crew, ready: Sequence[str]) -> Step | None:
        """Return what is to be done now, if anything; `ready` are the processes with the newest epoch's state open."""
        if self._not_before is None or now < self._not_before:
            return None
        match self._under_way:
            case _Preparing():
                return self._go_on(self._under_way, now, crew, ready)
            case _Looking(until):
                if now < until:
                    return None
                self.nobody_else(now)
                return Recall()
            case None:
                return self._begin(now, crew)

    def came(self, now: float, executor: str, worker: str, crew: Crew) -> bool:
        """Take a process that was launched to look and has come; return True if it is to stay."""
        partition = crew.better_at(executor)
        if not isinstance(self._under_way, _Looking) or partition is None:
            return False
        self._under_way = _Preparing(worker, partition, now + PREPARING)
        return True

    def nobody_else(self, now: float) -> None:
        """Give up the look for room, as no other launched process will come."""
        if isinstance(self._under_way, _Looking):
            self._give_up(now)

    def lost(self, now: float, worker: str) -> None:
        """Give up the move to this process, which is gone."""
        if isinstance(self._under_way, _Preparing) and self._under_way.worker == worker:
            self._give_up(now)

    def _begin(self, now: float, crew: Crew) -> Step | None:
        if not crew.crowded:
            self._look_at = inf  # who has what changes with the next attempt only
        if now < self._look_at:
            return None
        for worker in crew.free:
            partition = crew.better_at(crew.executors[worker])
            if partition is not None:
                self._under_way = _Preparing(worker, partition, now + PREPARING, told=True)
                return Prepare(worker, partition)
        self._under_way = _Looking(now + LOOKING)
        return Look(len(crew.crowds) + 1)

    def _go_on(self, under_way: _Preparing, now: float, crew: Crew, ready: Sequence[str]) -> Step | None:
        worker, partition = under_way.worker, under_way.partition
        source = crew.executors.get(crew.placed.get(partition, ""))
        target = crew.executors.get(worker)
        crowds = crew.crowds
        helps = source is not None and target is not None and crowds[source] - crowds[target] >= 2
        if not helps or worker not in crew.free or now >= under_way.until:
            self._give_up(now)
            return None
        if not under_way.told:
            under_way.told = True
            return Prepare(worker, partition)
        if worker not in ready:
            return None
        self._under_way, self._moved_at, self._not_before = None, now, None
        return HandOver(worker, partition)

    def _give_up(self, now: float) -> None:
        self._under_way = None
        self._look_at = now + self._pause
        self._pause = min(self._pause * 2, _PAUSES[1])
