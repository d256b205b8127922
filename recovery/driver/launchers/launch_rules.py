"""Decide which launches of a job's processes there are, and when another one is due: the rule behind every launcher.

Invariant: a slot has one process at most that counts; as long as it has none, one of its launches is under way
or due. Whatever else may still come of its other launches is cancelled, or turned away when it comes.

A launch brings a process: a process of its own, or a job of Spark, which may bring several, one after the
other; scouts are several at once, of which one may be kept, in a slot of its own. When a process dies, the driver
cannot tell whether its launch will start a replacement: Spark does so for a task that was killed, takes long to find
out for an executor, and never does for a task that hangs. So a launch has a short time to bring another one by itself;
then there is a second launch, and the process that comes first counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_QUICK: Final = 1.0
"""A launch that has ended within so many seconds is followed by another one only after a pause, but for the first."""
_PAUSES: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_LEAVES: Final = 5.0
"""Seconds in which a process leaves by itself when its slot is not needed any more."""
_PATIENCE: Final = 5.0
"""Seconds after which the older launches of a slot without a process are given up: they may be what takes its place."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Bring a process into this slot. No number is used twice."""

    slot: int
    number: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End what this launch has brought or will bring; nothing that happens to it counts any more."""

    number: int


@dataclass(slots=True)
class _Slot:
    index: int
    due: float | None
    """The time to launch."""
    launches: dict[int, float] = field(default_factory=dict)
    """Those that are under way, the oldest first, and since when."""
    worker: str = ""
    """The process that counts."""
    brought_by: int = 0
    overdue: float | None = None
    """The time by which the launches of the slot should have brought a process again."""
    quick_ends: int = 0


class Slots:
    """The slots of one job. Times are seconds of any steady clock.

    A launch has `again` seconds to bring a process again after its process was lost.
    """

    def __init__(self, count: int, again: float, now: float) -> None:
        self._slots = [_Slot(index, now) for index in range(count)]
        self._again = again
        self._numbers = 0
        self._indices = count
        self._of_scouts: set[int] = set()
        self._leaving: dict[int, float] = {}
        """Launches that are not needed any more, and when those are cancelled that have not ended by themselves."""
        self._cancels: list[Cancel] = []

    def ended(self, number: int, now: float) -> bool:
        """Take note that a launch has ended, and brings nothing any more; return False if it did not count any more."""
        self._leaving.pop(number, None)
        slot = self._slot_with(number)
        if slot is None:
            return False
        lived = now - slot.launches.pop(number)
        if slot.worker and slot.brought_by == number:
            slot.worker = ""
        if not slot.launches:
            slot.quick_ends = slot.quick_ends + 1 if lived < _QUICK else 0
            pause = _PAUSES[min(slot.quick_ends, len(_PAUSES)) - 1] if slot.quick_ends else 0.0
            slot.due, slot.overdue = now + pause, None
        return True

    def appeared(self, number: int, worker: str) -> bool:
        """Take a process that has come; return False if it is one too many, and has to leave.

        If a launch brings two processes, the later one is right, as it would not be there if the earlier one still
        were; but not of scouts.
        """
        slot = self._slot_with(number)
        if slot is None or (slot.worker and (slot.brought_by != number or number in self._of_scouts)):
            return False
        slot.worker, slot.brought_by, slot.overdue, slot.due = worker, number, None, None
        self._cancel(slot, [other for other in slot.launches if other != number])
        return True

    def scouts(self) -> Launch:
        """Return a launch of scouts, none of which counts unless it is kept, in a slot that is not there yet."""
        self._numbers += 1
        self._indices += 1
        return Launch(self._indices - 1, self._numbers)

    def keep(self, scouts: Launch, worker: str, now: float) -> None:
        """Keep one of the scouts, in a new slot."""
        self._of_scouts.add(scouts.number)
        slot = _Slot(scouts.slot, None, {scouts.number: now}, worker, scouts.number)
        self._slots.append(slot)

    def retire(self, index: int, now: float) -> None:
        """Give up a slot that is not needed any more; its process, if there is one, has been told to leave."""
        slot = next((slot for slot in self._slots if slot.index == index), None)
        if slot is not None:
            self._slots.remove(slot)
            self._leaving.update(dict.fromkeys(slot.launches, now + _LEAVES if slot.worker else now))

    def lost(self, worker: str, now: float, *, silent: bool) -> None:
        """Take note that the counting process is gone; a `silent` one gives no sign of life, and may hold its place."""
        slot = next((slot for slot in self._slots if worker and slot.worker == worker), None)
        if slot is None:
            return
        slot.worker = ""
        if silent:
            self._cancel(slot, list(slot.launches))
            slot.due = now
        else:
            slot.overdue = now + self._again

    def step(self, now: float) -> list[Launch | Cancel]:
        """Return all that is to be done now, each of it once."""
        for number in [number for number, until in self._leaving.items() if until <= now]:
            del self._leaving[number]
            self._cancels.append(Cancel(number))
        launches = [launch for slot in self._slots for launch in self._launches(slot, now)]
        done: list[Launch | Cancel] = [*self._cancels, *launches]
        self._cancels = []
        return done

    @property
    def next_step(self) -> float | None:
        """Return when `step` has something to do next if nothing happens before; None if never."""
        times = [when for slot in self._slots for when in (slot.due, slot.overdue) if when is not None]
        return min([*times, *self._leaving.values()], default=None)

    def _launches(self, slot: _Slot, now: float) -> Iterator[Launch]:
        if slot.overdue is not None and slot.overdue <= now:
            again = len(slot.launches) < 2
            if again:
                slot.due, slot.overdue = now, now + _PATIENCE
            else:
                slot.overdue = None
                self._cancel(slot, list(slot.launches)[:-1])
        if slot.due is not None and slot.due <= now:
            self._numbers += 1
            slot.due = None
            slot.launches[self._numbers] = now
            yield Launch(slot.index, self._numbers)

    def _cancel(self, slot: _Slot, numbers: list[int]) -> None:
        for number in numbers:
            del slot.launches[number]
            self._cancels.append(Cancel(number))

    def _slot_with(self, number: int) -> _Slot | None:
        return next((slot for slot in self._slots if number in slot.launches), None)
