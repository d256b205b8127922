"""The rows of a state that has several under one key and namespace: what lists and maps have in common.

What always holds: what has expired is invisible; and going through the parts gives those that were there when it
began, whatever is written and removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from statebackend.entries import after
from statebackend.states.key_context import KeyContext
from statebackend.states.row_form import RowForm
from statebackend.states.write_back import ABSENT, Kept, Rows

T = TypeVar("T")


class PartRows(Generic[T]):
    """The parts of the current key and namespace, told apart by the ends of their rows' names."""

    __slots__ = ("_rows", "context", "form")

    def __init__(self, context: KeyContext, rows: Rows, form: RowForm[T]) -> None:
        self.context, self._rows, self.form = context, rows, form

    def read(self, rest: bytes) -> Kept[T]:
        """One part; reading it refreshes it, if that is declared."""
        name = self._prefix() + rest
        payload = self._rows.get(name)
        if payload is None or not self._visible(payload):
            return ABSENT
        self._refresh(name, payload)
        return self.form.value_in(payload)

    def has(self, rest: bytes) -> bool:
        """Whether there is such a part."""
        payload = self._rows.get(self._prefix() + rest)
        return payload is not None and self._visible(payload)

    def write(self, rest: bytes, value: T) -> None:
        """Set a part; `WrongValueType` if the value is not of the declared type."""
        form = self.form
        if type(value) is not form.codec.exact:
            value = form.accept(value)
        expires = None if form.ttl is None else form.ttl.expiry(self.context)
        self._rows.put(self._prefix() + rest, form.payload(value, expires))

    def remove(self, rest: bytes) -> None:
        """Remove a part, which need not be there."""
        self._rows.delete(self._prefix() + rest)

    def clear(self) -> None:
        """Remove all parts."""
        prefix = self._prefix()
        for name, _ in self._rows.scan(prefix, after(prefix)):
            self._rows.delete(name)

    def rests(self) -> Iterator[bytes]:
        """The ends of the names of all parts, in order."""
        prefix = self._prefix()
        rows = self._rows.scan(prefix, after(prefix))
        return (name[len(prefix) :] for name, payload in rows if self._visible(payload))

    def parts(self) -> Iterator[tuple[bytes, T]]:
        """The ends of the names and the values of all parts, in order; reading refreshes them, if that is declared."""
        prefix = self._prefix()
        return self._read_all(len(prefix), self._rows.scan(prefix, after(prefix)))

    def _read_all(self, size: int, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, T]]:
        for name, payload in rows:
            if self._visible(payload):
                self._refresh(name, payload)
                yield name[size:], self.form.value_in(payload)

    def _prefix(self) -> bytes:
        return self.context.row(self.form.id)

    def _visible(self, payload: bytes) -> bool:
        ttl = self.form.ttl
        return ttl is None or self.form.alive(payload, ttl.now(self.context))

    def _refresh(self, name: bytes, payload: bytes) -> None:
        ttl = self.form.ttl
        if ttl is not None and ttl.refreshed_by_reading:
            refreshed = self.form.renewed(payload, ttl.expiry(self.context))
            if refreshed != payload:
                self._rows.put(name, refreshed)
