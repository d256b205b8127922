"""The number of a table's keys in memory: a given number, or as many as take about the given bytes.

Invariant: the number follows from what the keys that are there were found to take; until there are enough of
them to tell, it is the number that was given.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from statebackend.tables.memory.spaces import Spaces
from statebackend.tables.values.accumulators import OBJECTS
from statebackend.tables.values.spec import Layout, TableError

_ENOUGH_TO_WEIGH = 1 << 12
_ENOUGH_OF_OBJECTS = 1 << 8
"""With fewer keys than that, what a key takes is not known yet; texts and bytes are weighed sooner, and time and again.
"""


class Budget:
    """The room of one table. Without `memory` it is `max_slots` keys; with it, it follows what keys take."""

    def __init__(self, layout: Layout, max_slots: int, memory: int | None) -> None:
        if max_slots < 1:
            raise TableError(f"table {layout.table!r} may have {max_slots} keys in memory; allow at least one")
        self.max_slots = max_slots
        self._memory = memory
        self._bytes_per_slot = None if memory is None else memory / max_slots
        self._of_objects = any(one.dtype == OBJECTS for one in layout.columns.values())
        self.enough_to_weigh = _ENOUGH_OF_OBJECTS if self._of_objects else _ENOUGH_TO_WEIGH
        """With so many keys it is known what a key takes."""
        self._weigh_at = self.enough_to_weigh

    @property
    def is_of_bytes(self) -> bool:
        """True if bytes are given, so that keys have to be weighed."""
        return self._memory is not None

    def bytes_for_images(self, room: int, noted_bytes: int) -> float:
        """Return how many bytes more may be noted to go back to former cuts, where there is room for so many keys."""
        return inf if self._bytes_per_slot is None else max(0, room) * self._bytes_per_slot - noted_bytes

    def weigh(self, spaces: Spaces, cold_bytes: Callable[[], int]) -> None:
        """Learn what a key takes, if it is time to. `cold_bytes` tells what finding keys on the disk takes in memory.

        What counts are all slots there ever were, as their memory is not given back but for that of texts and bytes.
        """
        if self._memory is None or len(spaces) < self._weigh_at:
            return
        some = [space for _, space in spaces.items()]
        slots = sum(space.slot_limit for space in some)
        taken = sum(space.memory_bytes() for space in some)
        # What is in memory of the keys on the disk does not become less when more of them are there.
        memory = max(self._memory - cold_bytes(), self._memory // 2)
        # What was made for keys that are still to come does not become more with them.
        made = sum(space.table_bytes for space in some)
        made_for = sum(space.room_in_table for space in some)
        fit_in = min(made_for, (memory - made) * slots // (taken - made))
        self.max_slots = max(1, memory * slots // taken, fit_in)
        of_objects = sum(space.object_bytes() for space in some)
        if of_objects and memory < taken - of_objects + of_objects * slots // len(spaces):
            self.max_slots = max(1, (memory - taken + of_objects) * len(spaces) // of_objects)
        self._bytes_per_slot = memory / self.max_slots
        self._weigh_at = min(_ENOUGH_OF_OBJECTS if self._of_objects else len(spaces) * 5 // 4, self.max_slots)

    def take_over(self, other: Budget) -> None:
        """Take what another one has learned of the same table."""
        self.max_slots, self._weigh_at, self._bytes_per_slot = other.max_slots, other._weigh_at, other._bytes_per_slot
