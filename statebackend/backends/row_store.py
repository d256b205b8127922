"""Rows in layers: what is being written, what was frozen at cuts and is on its way into files, and the backend below.

Invariant: a row is what the youngest layer that knows its name says, and a deletion is said like a value. Only
the active layer changes; a frozen one is read by the thread that makes a file of it while work goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from statebackend.backends.backend import Backend, BackendError
from statebackend.backends.overlay import UNKNOWN, Overlay
from statebackend.backends.row_layer import ENTRY_OVERHEAD, RowLayer, layered

FrozenRows: TypeAlias = RowLayer
"""The rows that were written between two cuts."""

_LEAST_SHARE: Final = 8
"""However much frozen layers occupy, the active one may have that part of what all may have together."""


class LayerOrderError(BackendError):
    """A layer was released before an older one. Its rows would come out again on top of younger ones."""


@dataclass(frozen=True, slots=True)
class Room:
    """So many bytes of memory may be full of rows, about; what is more goes to the disk."""

    memory: int
    overlay: Overlay


class RowStore:
    """Reads and writes rows. All calls come from one thread.

    What is to survive is frozen, made into a file, taken by the backend, and then released; in that order. Without
    `room` all that was not released stays in memory.
    """

    def __init__(self, backend: Backend, room: Room | None = None) -> None:
        self._backend = backend
        self._room = room
        self._frozen: deque[FrozenRows] = deque()
        self._active = self._new_layer()

    def _new_layer(self) -> RowLayer:
        if self._room is None:
            return RowLayer()
        memory = self._room.memory
        return RowLayer(max(memory // _LEAST_SHARE, memory - self._frozen_bytes()))

    def _frozen_bytes(self) -> int:
        return sum(layer.memory_bytes for layer in self._frozen)

    @property
    def pending_bytes(self) -> int:
        """Return how much memory the layers above the backend occupy, about."""
        return self._active.memory_bytes + self._frozen_bytes()

    def put(self, name: bytes, payload: bytes) -> None:
        """Set a row."""
        self._write(name, payload, len(payload))

    def put_new(self, name: bytes, payload: bytes) -> None:
        """Set a row under a name that was never used. If it is deleted before the next cut, nothing of it is left."""
        self._active.fresh.add(name)
        self._write(name, payload, len(payload))

    def put_absent(self, name: bytes, payload: bytes) -> None:
        """Set a row that is not there now. If it is deleted before the next cut, no more is left than was before."""
        if self._active.get(name) is UNKNOWN:
            self._active.fresh.add(name)
        self._write(name, payload, len(payload))

    def delete(self, name: bytes) -> None:
        """Remove a row, which need not be there."""
        if name in self._active.fresh:
            self._active.drop(name)
        else:
            self._write(name, None, 0)

    def _write(self, name: bytes, payload: bytes | None, size: int) -> None:
        active = self._active
        entries = active.entries
        before = entries.get(name, UNKNOWN)
        entries[name] = payload
        if before is UNKNOWN:
            active.index.add(name)
            active.size += len(name) + size + ENTRY_OVERHEAD
        else:
            active.size += size - (len(before) if before else 0)
        if active.size > active.alarm:
            assert self._room is not None
            active.make_room(self._room.overlay.begin)

    def get(self, name: bytes) -> bytes | None:
        """Return the row, or None if there is none."""
        payload = self._active.get(name)
        if payload is UNKNOWN:
            for layer in reversed(self._frozen):
                payload = layer.get(name)
                if payload is not UNKNOWN:
                    return payload
            return self._backend.get_many((name,))[0]
        return payload

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows, each None if there is none; the backend is asked once for all that no layer knows."""
        found = [self._active.entries.get(name, UNKNOWN) for name in names]
        missing = [place for place, payload in enumerate(found) if payload is UNKNOWN]
        for layer in (self._active, *reversed(self._frozen)):
            if not missing:
                break
            missing = layer.look_up(names, found, missing)
        if missing:
            below = self._backend.get_many([names[place] for place in missing])
            for place, payload in zip(missing, below, strict=True):
                found[place] = payload
        return cast("list[bytes | None]", found)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return rows from `start` up to, not including, `end`, in order of their names, as they are at this call.

        Rows may be put and deleted, and layers frozen and released, during the iteration.
        """
        below = cast("Iterator[tuple[bytes, bytes | None]]", self._backend.scan(start, end))
        above: dict[bytes, bytes | None] = {}
        for layer in self._frozen:
            on_disk = layer.on_disk(start, end)
            if on_disk is not None:
                below, above = layered(on_disk, layered(_sorted(above), below)), {}
            above.update(layer.in_memory(start, end))
        active = self._active
        on_disk = active.on_disk(start, end)
        if on_disk is not None:
            below, above = layered(on_disk, layered(_sorted(above), below)), {}
        written = active.in_memory(start, end)
        deleted = {name for name, payload in written.items() if payload is None and above.get(name) is None}
        above.update(written)
        if not deleted or not active.is_in_memory:
            return _there(layered(_sorted(above), below))
        return self._dropping(active, deleted, above, below)

    def _dropping(
        self,
        active: RowLayer,
        deleted: set[bytes],
        above: Mapping[bytes, bytes | None],
        below: Iterator[tuple[bytes, bytes | None]],
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows; then drop deletions that hide nothing below, or each scan would go through them again."""

        def noted() -> Iterator[tuple[bytes, bytes | None]]:
            for entry in below:
                deleted.discard(entry[0])
                yield entry

        yield from _there(layered(_sorted(above), noted()))
        # A layer that is not the active one any more may be in the hands of another thread, or above another one.
        if active is self._active and active.is_in_memory:
            entries = active.entries
            for name in deleted:
                if entries.get(name, UNKNOWN) is None:
                    active.drop(name)

    def freeze(self) -> FrozenRows:
        """Cut: make a layer of the rows that were written since the last cut. Costs the same whatever its size."""
        frozen = self._active
        self._frozen.append(frozen)
        self._active = self._new_layer()
        return frozen

    def release(self, frozen: FrozenRows) -> None:
        """Forget a layer, now that the backend has its rows. `LayerOrderError` unless it is the oldest."""
        if not self._frozen or self._frozen[0] is not frozen:
            raise LayerOrderError(
                f"a layer of {frozen.memory_bytes} bytes cannot be released: it is not the oldest of "
                f"{len(self._frozen)}"
            )
        self._frozen.popleft()
        frozen.forget_on_disk()

    def rewind(self, since: Sequence[FrozenRows]) -> FrozenRows:
        """Drop the layers frozen since a cut, the oldest first, and the rows not frozen yet, which are returned.

        None of it may have been released. Iterations that are under way may not go on.
        """
        active = self.freeze()
        for frozen in reversed((*since, active)):
            if self._frozen[-1] is not frozen:
                raise LayerOrderError(f"{len(since)} layers cannot be dropped: they are not the youngest")
            self._frozen.pop()
            frozen.forget_on_disk()
        self._active = self._new_layer()
        return active


def merged(
    above: Mapping[bytes, bytes | None], order: Iterable[bytes], below: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Return the entries above, by the names in `order`, and those below that they do not hide; None hides."""
    upper = ((name, above[name]) for name in order)
    return _there(layered(upper, cast("Iterator[tuple[bytes, bytes | None]]", below)))


def _sorted(entries: Mapping[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    return ((name, entries[name]) for name in sorted(entries))


def _there(entries: Iterator[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes]]:
    return ((name, payload) for name, payload in entries if payload is not None)
