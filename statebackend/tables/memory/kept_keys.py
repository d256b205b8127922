"""The keys of a namespace that a cut has stored, in their order there, as long as all of them stay where they are.

Invariant: these keys have been at these slots since the cut; the table forgets all of it when one is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from statebackend import means
from statebackend.tables.memory.slot_index import SlotIndex
from statebackend.tables.values.aggregations import Slots
from statebackend.tables.values.spec import Layout

OTHERS: Final = 8
"""Keys are kept anew when more than that part of all is not kept."""

_PIECES: Final = 256
"""The number of batches whose content is noted as one."""


class KeptKeys:
    """Slots by key group, those of a group as its keys are stored. May be used by any thread."""

    def __init__(self, layout: Layout, index: SlotIndex, slots: Slots, epoch_number: int) -> None:
        """Take the keys at these slots, kept by the cut of this epoch.

        Until they were asked for in their order, the index must not free one.
        """
        self.epoch_number = epoch_number
        self._layout = layout
        self._index = index
        self._slots = slots
        self._parts: dict[int, tuple[int, int]] | None = None
        self._sorting = means.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """Return about how much memory it occupies."""
        return self._slots.nbytes

    def in_order(self) -> tuple[Slots, dict[int, tuple[int, int]]]:
        """Return all slots; and by group, counted from the first of the partition, where its slots begin and end."""
        with self._sorting:
            if self._parts is None:
                places = self._layout.places(self._index.hashes[self._slots])
                order = by_group(places)
                self._slots, self._parts = self._slots[order], parts_of(places[order])
            return self._slots, self._parts


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Keys of a namespace that a cut has kept, and the slots of all others that are there, in pieces."""

    kept: KeptKeys
    others: Sequence[Slots]


class LastKept:
    """The keys of the last cut that stored all keys, and the keys that have come since.

    The keeping ends when one of these keys has left, or many others have come.
    """

    def __init__(self) -> None:
        self._kept: KeptKeys | None = None
        self._others: list[Slots] = []
        self._others_count = 0

    @property
    def nbytes(self) -> int:
        """Return about how much memory it occupies."""
        return sum(slots.nbytes for slots in self._others) + (0 if self._kept is None else self._kept.nbytes)

    def keep(self, keys: KeptKeys) -> None:
        """Begin with keys that a cut has just kept, and no others."""
        self._kept, self._others, self._others_count = keys, [], 0

    def forget(self) -> None:
        """End the keeping: a key has left."""
        self._kept, self._others, self._others_count = None, [], 0

    def come(self, slots: Slots) -> None:
        """Note that the keys at these slots have come."""
        if self._kept is None:
            return
        self._others.append(slots)
        self._others_count += len(slots)
        if OTHERS * self._others_count > len(self._kept) + self._others_count:
            self.forget()
        elif len(self._others) > _PIECES:
            self._others = [np.concatenate(self._others)]

    def known(self) -> Known | None:
        """Return what is kept at present; None if the keeping has ended."""
        return None if self._kept is None else Known(self._kept, tuple(self._others))


def by_group(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order in which keys of these groups are stored: by group, and in a group as they are."""
    return np.argsort(places.astype(np.uint16), kind="stable")


def parts_of(places: NDArray[np.int64]) -> dict[int, tuple[int, int]]:
    """Return where each group begins and ends among places that are in order."""
    edges = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist(), len(places)]
    return {int(places[start]): (start, end) for start, end in pairwise(edges) if start < end}
