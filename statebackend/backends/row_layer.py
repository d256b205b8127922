"""The rows written between two cuts: in memory, and those that memory has no room for on the local disk.

What always holds: what was written last under a name is what the layer says, and a deletion is said like a value. Of
the three places where a row may be, `entries` is younger than what is leaving memory, and that than the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from statebackend.backends.name_index import NameIndex, in_order
from statebackend.backends.overlay import UNKNOWN, Answer, OverlayLayer

ENTRY_OVERHEAD: Final = 150
"""What an entry costs in memory besides its bytes, about."""

_STEPS: Final = 256
"""In so many steps rows leave memory: whoever writes rows never waits for many of them."""

_NEVER: Final = 1 << 62


class RowLayer:
    """Rows by name. Written by one thread until it is frozen; then it does not change, and any thread may read it.

    Whoever writes does so in `entries`, `index` and `size`, and calls `make_room` when `size` passes `alarm`. `fresh`
    are names in `entries` of which nothing below this layer knows: a deletion of one need not be said, only done.
    """

    __slots__ = ("_leaving", "_leaving_index", "_leaving_size", "_limit", "_moved_size", "_overlay", "_step",
                 "alarm", "entries", "fresh", "index", "size")  # fmt: skip

    def __init__(self, limit: int | None = None) -> None:
        """In memory are at most about so many bytes, if there is a limit."""
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
        """Whether nothing was written."""
        return not self.entries and not self._leaving and self._overlay is None

    @property
    def is_in_memory(self) -> bool:
        """True if none of it was ever moved to the disk."""
        return self._overlay is None

    @property
    def written_bytes(self) -> int:
        """How large all rows are, about: in memory and on the disk."""
        return self.memory_bytes + self._moved_size

    @property
    def memory_bytes(self) -> int:
        """How much memory the rows occupy, about."""
        return self.size + self._leaving_size

    def make_room(self, begin: Callable[[], OverlayLayer]) -> None:
        """Move some rows to the disk; `begin` makes the place for the first. What the disk refuses stays in memory."""
        if not self._leaving:
            if self._overlay is None:
                self._overlay = begin()
            self._leaving, self._leaving_index, self._leaving_size = self.entries, self.index, self.size
            self.entries, self.index, self.size, self.fresh = {}, NameIndex(), 0, set()
            self._step = -(-len(self._leaving) // _STEPS)
        self._move_some()
        # All have left when half as much has come.
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
        """Have never heard of a name that is in `entries`."""
        self.size -= entry_size(name, self.entries.pop(name))
        self.index.remove(name)
        self.fresh.discard(name)

    def get(self, name: bytes) -> bytes | Answer | None:
        """What the layer says under this name: None if it was deleted."""
        payload = self.entries.get(name, UNKNOWN)
        if payload is UNKNOWN and self._overlay is not None:
            payload = self._leaving.get(name, UNKNOWN)
            if payload is UNKNOWN:
                payload = self._overlay.get_many((name,))[0]
        return payload

    def look_up(self, names: Sequence[bytes], found: list[bytes | Answer | None], missing: list[int]) -> list[int]:
        """Put what it says into `found`, for the missing of the names; those that are still missing then."""
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
        """What is on the disk in this range, in order, as it is now; None if there never was anything."""
        return None if self._overlay is None else self._overlay.scan(start, end)

    def in_memory(self, start: bytes, end: bytes) -> dict[bytes, bytes | None]:
        """What is in memory in this range; in order, unless rows are leaving. For the thread that owns the rows."""
        entries, leaving = self.entries, self._leaving
        found = {}
        if leaving:
            found = {name: leaving[name] for name in self._leaving_index.between(start, end) if name in leaving}
        found.update((name, entries[name]) for name in self.index.between(start, end))
        return found

    def in_order(self, younger: Iterable[Mapping[bytes, bytes | None]] = ()) -> Iterator[tuple[bytes, bytes | None]]:
        """All of it, sorted by name, None for what was deleted; hidden by what younger maps say. For any thread.

        What is on the disk is never in memory as a whole.
        """
        memory = in_order((self._leaving, self.entries, *younger))
        return memory if self._overlay is None else layered(memory, self._overlay.all())

    def forget_on_disk(self) -> None:
        """Give the disk back, when nobody asks for rows any more."""
        if self._overlay is not None:
            self._overlay.forget()

    def clear(self) -> None:
        """Give back the memory bit by bit. For a thread in the background, once nobody reads the rows any more.

        When a dictionary of a million rows just goes out of use, all threads stand still until it is gone.
        """
        for entries in (self.entries, self._leaving):
            while entries:
                entries.popitem()


def entry_size(name: bytes, payload: bytes | None) -> int:
    """What a row occupies in memory, about."""
    return len(name) + len(payload or b"") + ENTRY_OVERHEAD


def layered(
    upper: Iterator[tuple[bytes, bytes | None]], lower: Iterator[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Two sorted streams as one; where both have a name, the upper one says."""
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
