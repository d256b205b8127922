"""The keys of a table that are in memory, by namespace, and the way back to former cuts.

Invariant: a key that is here is right, and no other place is asked for it. As long as an epoch is one to which
the table may go back, every namespace that had keys at its cut is here, or among those that were dropped since.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Sequence

import numpy as np
from numpy.typing import NDArray

from statebackend.keys.columns import KeyColumn
from statebackend.tables.format.blocks import Block
from statebackend.tables.memory.frozen import FrozenSpace, FrozenTable
from statebackend.tables.memory.space import TableSpace
from statebackend.tables.memory.touches import TouchClock
from statebackend.tables.values.aggregations import Slots
from statebackend.tables.values.spec import Layout


class Spaces:
    """One `TableSpace` for each namespace with keys, and the clock that they share. For one thread."""

    def __init__(self, layout: Layout, restored_epoch: int) -> None:
        self._layout = layout
        self._clock = TouchClock()
        self._spaces: dict[bytes, TableSpace] = {}
        self._keys = 0
        self._cleared: dict[bytes, NDArray[np.bool_]] = {}
        """In which groups of a namespace the next cut has to say that older blocks do not count any more."""
        self._begun = [restored_epoch]
        """The epochs of the cuts to which one may go back: those with which the intervals from `kept` on began."""
        self._dropped: list[tuple[int, bytes, TableSpace]] = []
        """The namespaces that may come back with them, each with the interval in which it was dropped."""

    def __len__(self) -> int:
        """Return how many keys there are."""
        return self._keys

    def items(self) -> ItemsView[bytes, TableSpace]:
        """Return the namespaces that may have keys, and these keys."""
        return self._spaces.items()

    def namespaces(self) -> set[bytes]:
        """Return the namespaces that have keys."""
        return {namespace for namespace, space in self._spaces.items() if len(space)}

    def memory_bytes(self) -> int:
        """Return about how much memory it occupies, with what is noted to go back."""
        spaces = [*self._spaces.values(), *(space for _, _, space in self._dropped)]
        return sum(space.memory_bytes() + space.noted_bytes() for space in spaces)

    @property
    def noted_bytes(self) -> int:
        """Return about how much of that is noted to go back."""
        return self._clock.noted_bytes

    @property
    def losses(self) -> int:
        """Return a number that rises whenever keys leave memory, or come to it that are not new."""
        return self._clock.losses

    # --- one namespace ------------------------------------------------------------------------------------------------

    def space(self, namespace: bytes) -> TableSpace:
        """Return the keys of a namespace, to add some."""
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = TableSpace(self._layout, self._clock)
        return space

    def known(self, namespace: bytes) -> TableSpace:
        """Return the keys of a namespace, to look at or to remove: one without keys is not made for that."""
        space = self._spaces.get(namespace)
        return TableSpace(self._layout, self._clock) if space is None else space

    def find_or_add(self, space: TableSpace, keys: KeyColumn) -> tuple[Slots, Slots]:
        """Return the slot of each key, and those slots that are new. See `TableSpace.find_or_add`."""
        slots, new = space.find_or_add(keys)
        self._keys += len(new)
        return slots, new

    def load(self, namespace: bytes, keys: KeyColumn, block: Block, coming: int, *, all_differ: bool = False) -> None:
        """Take what a block says of keys that are not here. See `TableSpace.load`."""
        space = self.space(namespace)
        before = len(space)
        space.load(keys, block, coming, all_differ=all_differ)
        self._keys += len(space) - before

    def remove(self, space: TableSpace, slots: Slots) -> None:
        """Forget these keys, each given once: the next cut says that they are gone."""
        space.remove(slots)
        self._keys -= len(slots)

    def evict(self, space: TableSpace, slots: Slots) -> None:
        """Drop these keys, each given once, which are on the disk now. See `TableSpace.evict`."""
        space.evict(slots)
        self._keys -= len(slots)

    def unload(self, groups: NDArray[np.bool_]) -> None:
        """Drop the keys of these groups as if they had never been loaded."""
        for namespace, space in self._spaces.items():
            if (space.stored_groups & groups).any():
                self.unload_some(namespace, groups)
                space.stored_groups &= ~groups

    def unload_some(self, namespace: bytes, groups: NDArray[np.bool_]) -> None:
        """Drop the keys of a namespace in these groups as if they had never been loaded."""
        space = self.known(namespace)
        slots = space.in_groups(groups)
        space.unload(slots)
        self._keys -= len(slots)

    def drop(self, namespace: bytes, stored: NDArray[np.bool_]) -> None:
        """Forget all keys of a namespace, of which there may be blocks in these groups, too."""
        space = self._spaces.pop(namespace, None)
        if space is not None:
            self._keys -= len(space)
            stored = stored | space.stored_groups
            if self._clock.notes:
                self._dropped.append((self._clock.interval, namespace, space))
                self._clock.noted_bytes += space.memory_bytes()
        self._clock.losses += 1
        if stored.any():
            self._cleared[namespace] = stored | self._cleared.get(namespace, self._layout.no_groups())

    def remove_useless(self) -> None:
        """Remove the namespaces without keys, but not those whose keys may come back."""
        for namespace in [name for name, space in self._spaces.items() if space.is_useless]:
            del self._spaces[namespace]

    # --- cutting ------------------------------------------------------------------------------------------------------

    def freeze(self, epoch_number: int, all_here: Callable[[bytes], bool]) -> list[FrozenSpace]:
        """Cut: return what changed. `all_here` tells of a namespace whether all its keys are in memory."""
        parts: list[FrozenSpace] = []
        for namespace, space in self._spaces.items():
            cleared = self._cleared.pop(namespace, None)
            if cleared is not None or space.has_changes:
                parts.append(space.freeze(namespace, cleared, all_here=all_here(namespace)))
        for namespace, cleared in self._cleared.items():
            parts.append(self.known(namespace).freeze(namespace, cleared, all_here=True))
        self._cleared = {}
        self._clock.cut = self._clock.now
        self._clock.interval += 1
        self._begun.append(epoch_number)
        self.remove_useless()
        return parts

    def note_copies(self, parts: Sequence[FrozenSpace], room: Callable[[], float]) -> None:
        """Use what a cut has copied as before-images, where there is room for so many bytes more.

        The caller owes that no key will be loaded any more.
        """
        for part in parts:
            space = self._spaces.get(part.namespace)
            if space is not None:
                space.begins_with(part, room())

    def keep_keys(self, frozen: FrozenTable, most_values: float) -> None:
        """Store the keys of what was just frozen apart, for later cuts to refer to. See `Table.keep_keys`."""
        for part in frozen.parts:
            if part.whole:
                self._spaces[part.namespace].keep_keys(part, frozen.epoch_number, most_values)

    def unsaved(self, namespace: bytes, space: TableSpace, slots: Slots) -> FrozenSpace | None:
        """Return what the next cut would say of these keys and of all that were removed. See `TableSpace.unsaved`."""
        return space.unsaved(namespace, slots, self._cleared.pop(namespace, None))

    # --- going back ---------------------------------------------------------------------------------------------------

    def completed(self, epoch_number: int) -> None:
        """Forget what only a rewind to a cut before that of this epoch would need."""
        before = self._clock.kept
        while len(self._begun) > 1 and self._begun[1] <= epoch_number:
            del self._begun[0]
            self._clock.kept += 1
        if self._clock.kept > before:
            self._let_go()

    def rewind(self, epoch_number: int) -> bool:
        """Go back to what was cut for this epoch, or opened; False if that is not known any more."""
        clock = self._clock
        later = sum(begun > epoch_number for begun in self._begun)
        if later == len(self._begun):
            return False
        interval = clock.interval - later
        for when, namespace, space in reversed(self._dropped):
            if when >= interval:
                self._spaces[namespace] = space
        for space in self._spaces.values():
            space.rewind(interval)
        self._keys = sum(map(len, self._spaces.values()))
        self._dropped, self._cleared = [], {}
        clock.now += 1
        clock.cut, clock.interval, clock.noted_bytes = clock.now, clock.interval + 1, 0
        clock.kept, self._begun = clock.interval, [epoch_number]
        self.remove_useless()
        return True

    def forget_images(self) -> None:
        """Forget all that is noted to go back to cuts that were made by now."""
        if self._clock.notes:
            self._clock.kept = self._clock.interval + 1
            self._begun.clear()
            self._let_go()

    def _let_go(self) -> None:
        """Drop before-images and namespaces of cuts that can no longer be rewound to."""
        for space in (*self._spaces.values(), *(space for _, _, space in self._dropped)):
            space.forget_images()
        for when, _, space in self._dropped:
            if when < self._clock.kept:
                self._clock.noted_bytes -= space.memory_bytes()
        self._dropped = [dropped for dropped in self._dropped if dropped[0] >= self._clock.kept]

    def take_over(self, other: Spaces) -> None:
        """Take all keys of another one, to which nothing was changed since its last cut; it is not used any more."""
        self._clock, self._spaces, self._keys = other._clock, other._spaces, other._keys
        for space in self._spaces.values():
            space.begin()
