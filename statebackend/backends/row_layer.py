"""The rows written between two cuts: in memory, and those that memory has no room for on the local disk.

Invariant: what was written last under a name is what the layer says, and a deletion is said like a value. A row may be
in three places: `entries` is younger than what is leaving memory, and that is younger than the disk.

Names are kept apart by their heads (group, state, form), which sort as the names do; so what is sorted at once is what
one state has in one key group. A thread that sorts a million names would keep all others waiting.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final

from statebackend.backends.overlay import UNKNOWN, Answer, OverlayLayer
from statebackend.entries import HEAD_SIZE

_AT_ONCE: Final = 1 << 14
"""The number of names that are sorted in one step: some milliseconds."""

_SHIFT_RATHER_THAN_SORT: Final = 64
"""One name is put into its place about as fast as this many that are in order are gone through."""


class NameIndex:
    """Names that are only sorted when their order is asked for, and only those asked for.

    Adding costs next to nothing, and a range within one head costs what has been added under that head since. A name
    that is removed leaves nothing behind. Measured with a million names of one state in 128 groups, adding one and
    asking for those around it in turns: as fast as a sorted tree of lists.
    """

    def __init__(self) -> None:
        self._added: list[bytes] = []
        self._unsorted: dict[bytes, dict[bytes, None]] = {}
        self._sorted: dict[bytes, list[bytes]] = {}
        self.add = self._added.append
        """Add a name that is not in the index yet."""

    def remove(self, name: bytes) -> None:
        """Remove a name that is in the index."""
        self._spread()
        head = name[:HEAD_SIZE]
        unsorted = self._unsorted.get(head)
        if unsorted is not None and name in unsorted:
            del unsorted[name]
        else:
            names = self._sorted[head]
            del names[bisect_left(names, name)]

    def between(self, start: bytes, end: bytes) -> list[bytes]:
        """Return the names from `start` up to, not including, `end`, in order."""
        self._spread()
        first, last = start[:HEAD_SIZE], end[:HEAD_SIZE]
        if first == last:
            return self._within(first, start, end)
        heads = sorted(head for head in self._sorted.keys() | self._unsorted.keys() if first <= head <= last)
        return [name for head in heads for name in self._within(head, start, end)]

    def _within(self, head: bytes, start: bytes, end: bytes) -> list[bytes]:
        names = self._sorted.setdefault(head, [])
        added = self._unsorted.pop(head, ())
        if len(added) * _SHIFT_RATHER_THAN_SORT < len(names):
            for name in added:
                insort(names, name)
        elif added:
            names.extend(added)
            names.sort()
        low = bisect_left(names, start)
        return names[low : bisect_left(names, end, low)]

    def _spread(self) -> None:
        heads = self._unsorted
        for name in self._added:
            heads.setdefault(name[:HEAD_SIZE], {})[name] = None
        self._added.clear()


def in_order(layers: Iterable[Mapping[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the entries of all layers, each name once, as the last layer that has it says; sorted in small steps.

    For a thread in the background: the others get their turns.
    """
    heads: dict[bytes, dict[bytes, bytes | None]] = {}
    for layer in layers:
        for name, payload in layer.items():
            head = name[:HEAD_SIZE]
            under_head = heads.get(head)
            if under_head is None:
                under_head = heads[head] = {}
            under_head[name] = payload
    for head in sorted(heads):
        under_head = heads.pop(head)
        for name in _sorted_in_steps(under_head):
            yield name, under_head[name]


def _sorted_in_steps(names: Mapping[bytes, object]) -> Iterable[bytes]:
    if len(names) <= _AT_ONCE:
        return sorted(names)
    listed = list(names)
    return merge(*(sorted(listed[at : at + _AT_ONCE]) for at in range(0, len(listed), _AT_ONCE)))


ENTRY_OVERHEAD: Final = 150
"""The memory of an entry besides its bytes, about."""

_STEPS: Final = 256
"""In so many steps rows leave memory: a writer of rows never waits for many of them."""

_NEVER: Final = 1 << 62


class RowLayer:
    """Rows by name. Written by one thread until it is frozen; then it does not change, and any thread may read it.

    A writer changes `entries`, `index` and `size`, and calls `make_room` when `size` passes `alarm`. `fresh`
    are names in `entries` of which nothing below this layer knows: a deletion of one need not be said, only done.
    """

    __slots__ = ("_leaving", "_leaving_index", "_leaving_size", "_limit", "_moved_size", "_overlay", "_step",
                 "alarm", "entries", "fresh", "index", "size")  # fmt: skip

    def __init__(self, limit: int | None = None) -> None:
        """Begin empty, with at most about `limit` bytes in memory, if there is a limit."""
        self.entries: dict[bytes, bytes | None] = {}
        self.fresh: set[bytes] = set()
        self.index = NameIndex()
        self.size = 0
        self.alarm = self._limit = _NEVER if limit is None else limit
        self._leaving: dict[bytes, bytes | None] = {}
        self._leaving_index = NameIndex()
        self._leaving_size = self._moved_size = self._step = 0
        self._overlay: OverlayLayer | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing was written."""
        return not self.entries and not self._leaving and self._overlay is None

    @property
    def is_in_memory(self) -> bool:
        """True if none of it was ever moved to the disk."""
        return self._overlay is None

    @property
    def written_bytes(self) -> int:
        """Return how large all rows are, about: in memory and on the disk."""
        return self.memory_bytes + self._moved_size

    @property
    def memory_bytes(self) -> int:
        """Return how much memory the rows occupy, about."""
        return self.size + self._leaving_size

    def make_room(self, begin: Callable[[], OverlayLayer]) -> None:
        """Move some rows to the disk, the first to a place from `begin`. Rows that the disk refuses stay in memory."""
        if not self._leaving:
            if self._overlay is None:
                self._overlay = begin()
            self._leaving, self._leaving_index, self._leaving_size = self.entries, self.index, self.size
            self.entries, self.index, self.size, self.fresh = {}, NameIndex(), 0, set()
            self._step = -(-len(self._leaving) // _STEPS)
        try:
            self._move_some()
        finally:
            # All have left when half as much has come. What the disk refused is tried again as soon.
            self.alarm = self.size + self._limit // (2 * _STEPS) if self._leaving else self._limit

    def _move_some(self) -> None:
        assert self._overlay is not None
        some = [self._leaving.popitem() for _ in range(min(self._step, len(self._leaving)))]
        try:
            self._overlay.write(some)
        except BaseException:
            self._leaving.update(some)
            raise
        size = sum(entry_size(name, payload) for name, payload in some)
        self._leaving_size -= size
        self._moved_size += size
        if not self._leaving:
            self._leaving, self._leaving_index, self._leaving_size = {}, NameIndex(), 0

    def drop(self, name: bytes) -> None:
        """Forget a name that is in `entries`, as if it had never been written."""
        self.size -= entry_size(name, self.entries.pop(name))
        self.index.remove(name)
        self.fresh.discard(name)

    def get(self, name: bytes) -> bytes | Answer | None:
        """Return the layer's row under this name, None if it was deleted."""
        payload = self.entries.get(name, UNKNOWN)
        if payload is UNKNOWN and self._overlay is not None:
            payload = self._leaving.get(name, UNKNOWN)
            if payload is UNKNOWN:
                payload = self._overlay.get_many((name,))[0]
        return payload

    def look_up(self, names: Sequence[bytes], found: list[bytes | Answer | None], missing: list[int]) -> list[int]:
        """Put the layer's rows for the missing names into `found`, and return the places that are still missing."""
        entries = self.entries
        for place in missing:
            found[place] = entries.get(names[place], UNKNOWN)
        missing = [place for place in missing if found[place] is UNKNOWN]
        if self._overlay is None or not missing:
            return missing
        leaving = self._leaving
        for place in missing:
            found[place] = leaving.get(names[place], UNKNOWN)
        missing = [place for place in missing if found[place] is UNKNOWN]
        answers = self._overlay.get_many([names[place] for place in missing])
        for place, answer in zip(missing, answers, strict=True):
            found[place] = answer
        return [place for place, answer in zip(missing, answers, strict=True) if answer is UNKNOWN]

    def on_disk(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes | None]] | None:
        """Return the rows of this range on the disk, in order, as they are now; None if none ever were there."""
        return None if self._overlay is None else self._overlay.scan(start, end)

    def in_memory(self, start: bytes, end: bytes) -> dict[bytes, bytes | None]:
        """Return the rows of this range in memory; in order, unless rows are leaving. For the owner's thread."""
        entries, leaving = self.entries, self._leaving
        found = {}
        if leaving:
            found = {name: leaving[name] for name in self._leaving_index.between(start, end) if name in leaving}
        found.update((name, entries[name]) for name in self.index.between(start, end))
        return found

    def in_order(self, younger: Iterable[Mapping[bytes, bytes | None]] = ()) -> Iterator[tuple[bytes, bytes | None]]:
        """Return all rows, sorted by name, None for deleted ones; those of `younger` maps hide them. For any thread.

        Rows on the disk are never in memory as a whole.
        """
        memory = in_order((self._leaving, self.entries, *younger))
        return memory if self._overlay is None else layered(memory, self._overlay.all())

    def forget_on_disk(self) -> None:
        """Give the disk back, once the rows are read no more."""
        if self._overlay is not None:
            self._overlay.forget()

    def clear(self) -> None:
        """Give back the memory bit by bit. For a thread in the background, once the rows are read no more.

        When a dictionary of a million rows just goes out of use, all threads stand still until it is gone.
        """
        for entries in (self.entries, self._leaving):
            while entries:
                entries.popitem()


def entry_size(name: bytes, payload: bytes | None) -> int:
    """Return how much memory a row occupies, about."""
    return len(name) + len(payload or b"") + ENTRY_OVERHEAD


def layered(
    upper: Iterator[tuple[bytes, bytes | None]], lower: Iterator[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Merge two sorted streams into one; where both have a name, the upper one says."""
    below = next(lower, None)
    for entry in upper:
        name = entry[0]
        while below is not None and below[0] < name:
            yield below
            below = next(lower, None)
        if below is not None and below[0] == name:
            below = next(lower, None)
        yield entry
    while below is not None:
        yield below
        below = next(lower, None)
