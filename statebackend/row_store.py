"""Rows in layers: what is being written, what was frozen at cuts and is on its way into files, and the backend below.

What always holds: a row is what the youngest layer that knows its name says, and a deletion is said like a value. Only
the active layer changes; a frozen one is read by the thread that makes a file of it while work goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from statebackend.backend import Backend, BackendError
from statebackend.name_index import NameIndex

_ENTRY_OVERHEAD: Final = 100
"""What an entry costs besides its bytes, about."""


class _Answer(Enum):
    UNKNOWN = "nothing is said about this name"


_UNKNOWN: Final = _Answer.UNKNOWN


class LayerOrderError(BackendError):
    """A layer was released before an older one. Its rows would come out again on top of younger ones."""


class FrozenRows:
    """The rows that were written between two cuts. Never change; may be read by any thread.

    `clear` is for the time after the release.
    """

    __slots__ = ("_entries", "_index", "size")

    def __init__(self, entries: dict[bytes, bytes | None], index: NameIndex, size: int) -> None:
        self._entries = entries
        self._index = index
        self.size = size

    @property
    def entries(self) -> Mapping[bytes, bytes | None]:
        """What was written, by name; None is a deletion. See `name_index.in_order` for putting it into a file."""
        return self._entries

    def between(self, start: bytes, end: bytes) -> list[bytes]:
        """The names in this range, in order. For the thread that owns the rows, as it sorts on demand."""
        return self._index.between(start, end)

    def clear(self) -> None:
        """Give back the memory bit by bit. For a thread in the background, once nobody reads the rows any more.

        When a dictionary of a million rows just goes out of use, all threads stand still until it is gone.
        """
        while self._entries:
            self._entries.popitem()


class RowStore:
    """Reads and writes rows. All calls come from one thread.

    What is to survive is frozen, made into a file, taken by the backend, and then released; in that order.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._frozen: deque[FrozenRows] = deque()
        self._begin_layer()

    def _begin_layer(self) -> None:
        self._active: dict[bytes, bytes | None] = {}
        self._index = NameIndex()
        self._active_size = 0

    @property
    def pending_bytes(self) -> int:
        """How much memory the layers above the backend occupy, about."""
        return self._active_size + sum(layer.size for layer in self._frozen)

    def put(self, name: bytes, payload: bytes) -> None:
        """Set a row."""
        self._write(name, payload, len(payload))

    def delete(self, name: bytes) -> None:
        """Remove a row, which need not be there."""
        self._write(name, None, 0)

    def _write(self, name: bytes, payload: bytes | None, size: int) -> None:
        active = self._active
        before = active.get(name, _UNKNOWN)
        active[name] = payload
        if before is _UNKNOWN:
            self._index.add(name)
            self._active_size += len(name) + size + _ENTRY_OVERHEAD
        else:
            self._active_size += size - (len(before) if before else 0)

    def get(self, name: bytes) -> bytes | None:
        """The row, or None if there is none."""
        payload = self._active.get(name, _UNKNOWN)
        if payload is _UNKNOWN and self._frozen:
            payload = self._in_frozen(name)
        if payload is _UNKNOWN:
            return self._backend.get_many((name,))[0]
        return payload

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """The rows, each None if there is none; the backend is asked once for all that no layer knows."""
        found: list[bytes | None] = []
        missing: list[int] = []
        active = self._active
        for place, name in enumerate(names):
            payload = active.get(name, _UNKNOWN)
            if payload is _UNKNOWN and self._frozen:
                payload = self._in_frozen(name)
            if payload is _UNKNOWN:
                missing.append(place)
                payload = None
            found.append(payload)
        if missing:
            below = self._backend.get_many([names[place] for place in missing])
            for place, payload in zip(missing, below, strict=True):
                found[place] = payload
        return found

    def _in_frozen(self, name: bytes) -> bytes | _Answer | None:
        for layer in reversed(self._frozen):
            payload = layer.entries.get(name, _UNKNOWN)
            if payload is not _UNKNOWN:
                return payload
        return _UNKNOWN

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` up to, not including, `end`, in order of their names, as they are when this is called.

        Rows may be put and deleted, and layers frozen and released, while somebody goes through them.
        """
        above: dict[bytes, bytes | None] = {}
        for layer in self._frozen:
            entries = layer.entries
            above.update((name, entries[name]) for name in layer.between(start, end))
        active = self._active
        above.update((name, active[name]) for name in self._index.between(start, end))
        below = self._backend.scan(start, end)
        return merged(above, sorted(above) if self._frozen else above, below)

    def freeze(self) -> FrozenRows:
        """Cut: what was written since the last cut becomes a layer of its own. Costs the same whatever its size."""
        frozen = FrozenRows(self._active, self._index, self._active_size)
        self._frozen.append(frozen)
        self._begin_layer()
        return frozen

    def release(self, frozen: FrozenRows) -> None:
        """Forget a layer, now that the backend has its rows. `LayerOrderError` unless it is the oldest."""
        if not self._frozen or self._frozen[0] is not frozen:
            raise LayerOrderError(
                f"a layer of {len(frozen.entries)} rows cannot be released: it is not the oldest of {len(self._frozen)}"
            )
        self._frozen.popleft()


def merged(
    above: Mapping[bytes, bytes | None], order: Iterable[bytes], below: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """What lies above, by its names in `order`, and what lies below and is not hidden by it; None hides."""
    lower = next(below, None)
    for name in order:
        while lower is not None and lower[0] < name:
            yield lower
            lower = next(below, None)
        if lower is not None and lower[0] == name:
            lower = next(below, None)
        payload = above[name]
        if payload is not None:
            yield name, payload
    while lower is not None:
        yield lower
        lower = next(below, None)
