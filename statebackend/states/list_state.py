"""A list per key and namespace, one row per element, so that appending costs what is appended.

Invariant: elements are in the order in which they were added, also across restores. Each has a number; these
begin anew at every restore, above all that were given before: with 2^32 times the number of the epoch after the one
restored. So appending never looks at what is there. (No program adds 2^32 elements to one state between two epochs.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from statebackend.entries import parse_row, sortable, unsortable
from statebackend.states.part_rows import PartRows, PartState
from statebackend.states.row_form import RowEntry, WrongValueType

T = TypeVar("T")

_PER_EPOCH: Final = 1 << 32


class ListHandle(PartState[T]):
    """The list of the current key and namespace."""

    __slots__ = ("_next",)

    methods = "add, extend, get, replace and clear"

    def __init__(self, rows: PartRows[T]) -> None:
        super().__init__(rows)
        self._next = (rows.context.restored_epoch + 1) * _PER_EPOCH

    def add(self, value: T) -> None:
        """Append an element; `WrongValueType` if it is not of the declared type."""
        self._rows.append(sortable(self._next), value)
        self._next += 1

    def extend(self, values: Iterable[T]) -> None:
        """Append elements, in their order; all of them, or none if one is not of the declared type."""
        accepted = [self._rows.form.accept(value) for value in values]
        for value in accepted:
            self.add(value)

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self._rows.parts())

    def get(self) -> list[T]:
        """Return all elements, in a list of the caller's own."""
        return list(self)

    def replace(self, values: Iterable[T]) -> None:
        """Replace all elements by these; change nothing if one of them is not of the declared type."""
        accepted = [self._rows.form.accept(value) for value in values]
        # In the places of those that were there: a row that is written again need not be deleted.
        places = self._rows.all_rests()
        for value in accepted:
            place = next(places, None)
            if place is None:
                self.add(value)
            else:
                self._rows.write(place, value)
        for place in places:
            self._rows.remove(place)

    def decode_entry(self, name: bytes, payload: bytes) -> RowEntry:
        """Decode a row into key, namespace, the number that says its place in the list, and value."""
        return self._rows.form.entry(name, payload, unsortable(parse_row(name)[2]))

    def encode_entry(self, entry: RowEntry) -> tuple[bytes, bytes]:
        """Encode an entry as a row: the inverse of `decode_entry`.

        A caller that takes elements into a new history of epochs numbers them from 0, below all that will be added.
        """
        if not isinstance(entry.part, int):
            form = self._rows.form
            raise WrongValueType(
                form.uid, form.name, f"a list of {form.codec.name}", f"{entry.part!r} is no place in it"
            )
        return self._rows.form.row(entry, self._rows.context.max_parallelism, sortable(entry.part))
