"""The rows of a state that has several under one key and namespace: what lists and maps have in common.

Invariant: what has expired is invisible; and going through the parts gives those that were there when it
began, whatever is written and removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, TypeVar

from statebackend.entries import after
from statebackend.states.key_context import Address, KeyContext, no_such_method
from statebackend.states.known_parts import KnownParts, Parts
from statebackend.states.row_form import RowForm
from statebackend.states.write_back import ABSENT, Kept, Rows

T = TypeVar("T")


class PartRows(Generic[T]):
    """The parts of the current key and namespace, told apart by the ends of their rows' names.

    Those of the keys used last are known, up to so many bytes: what changes them over and over finds them without a
    look into the layers of rows, however many of these there are, and however much was deleted in them.
    """

    __slots__ = ("_known", "_rows", "context", "form")

    def __init__(self, context: KeyContext, rows: Rows, form: RowForm[T], memory: int) -> None:
        self.context, self._rows, self.form = context, rows, form
        self._known = KnownParts(memory)

    def read(self, rest: bytes) -> Kept[T]:
        """Return one part, or `ABSENT`; reading it refreshes it, if that is declared."""
        payload = self._get(rest)
        if payload is None or not self._visible(payload):
            return ABSENT
        self._refresh(self.context.address, self._prefix(), rest, payload)
        return self.form.value_in(payload)

    def has(self, rest: bytes) -> bool:
        """True if there is such a part."""
        payload = self._get(rest)
        return payload is not None and self._visible(payload)

    def write(self, rest: bytes, value: T) -> None:
        """Set a part; `WrongValueType` if the value is not of the declared type."""
        self._put(self.context.address, self._prefix(), rest, self._payload(value))

    def append(self, rest: bytes, value: T) -> None:
        """Set a part whose name was never used, as `write` does."""
        name, payload, address = self._prefix() + rest, self._payload(value), self.context.address
        parts = self._known.of(address)
        if parts is not None:
            self._known.put(address, parts, rest, payload)
        self._rows.put_new(name, payload)

    def remove(self, rest: bytes) -> None:
        """Remove a part, which need not be there."""
        name = self._prefix() + rest
        parts = self._known.of(self.context.address)
        if parts is None:
            self._rows.delete(name)
        elif rest in parts.by_rest:
            self._known.remove(parts, rest)
            self._rows.delete(name)

    def clear(self) -> None:
        """Remove all parts."""
        prefix, address = self._prefix(), self.context.address
        rests = self.all_rests()
        # The disk may refuse a row in the middle of it.
        self._known.give_up(address)
        for rest in rests:
            self._rows.delete(prefix + rest)
        self._known.cleared(address)

    def is_empty(self) -> bool:
        """True if there is no part."""
        parts = self._known.of(self.context.address)
        rows = self._stored() if parts is None else iter(parts.by_rest.items())
        return not any(self._visible(payload) for _, payload in rows)

    def all_rests(self) -> Iterator[bytes]:
        """Yield the ends of the names of all parts, in order, those that have expired included."""
        return (rest for rest, _ in self._all())

    def rests(self) -> Iterator[bytes]:
        """Yield the ends of the names of all parts, in order."""
        return (rest for rest, payload in self._all() if self._visible(payload))

    def parts(self) -> Iterator[tuple[bytes, T]]:
        """Yield the ends of the names and the values of all parts, in order; refresh them if reading does."""
        return self._read_all(self.context.address, self._prefix(), self._all())

    def cut(self) -> None:
        """Note that a cut is made."""
        self._known.cut()

    def rewind(self, cuts: int) -> None:
        """Follow the rows, which have taken back so many cuts and what was written after them."""
        self._known.rewind(cuts)

    def forget(self) -> None:
        """Forget what is known of the rows: they have changed."""
        self._known.forget()

    def memory_bytes(self) -> int:
        """Return about how much memory the known parts take."""
        return self._known.memory_bytes

    def _read_all(
        self, address: Address, prefix: bytes, rows: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, T]]:
        for rest, payload in rows:
            if self._visible(payload):
                self._refresh(address, prefix, rest, payload)
                yield rest, self.form.value_in(payload)

    def _payload(self, value: T) -> bytes:
        form = self.form
        if type(value) is not form.codec.exact:
            value = form.accept(value)
        return form.payload(value, None if form.ttl is None else form.ttl.expiry(self.context))

    def _get(self, rest: bytes) -> bytes | None:
        parts = self._known.of(self.context.address)
        return self._rows.get(self._prefix() + rest) if parts is None else parts.by_rest.get(rest)

    def _put(self, address: Address, prefix: bytes, rest: bytes, payload: bytes) -> None:
        parts, put = self._known.of(address), self._rows.put
        if parts is not None:
            # What is known comes first: the disk may refuse other rows, but this one is set then.
            put = put if rest in parts.by_rest else self._rows.put_absent
            self._known.put(address, parts, rest, payload)
        put(prefix + rest, payload)

    def _all(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ends of the names and the payloads of all parts as they are now, in order."""
        address = self.context.address
        found = self._known.of(address) or self._known.learn(address, self._stored())
        return iter(found.in_order()) if isinstance(found, Parts) else found

    def _stored(self) -> Iterator[tuple[bytes, bytes]]:
        prefix = self._prefix()
        size = len(prefix)
        return ((name[size:], payload) for name, payload in self._rows.scan(prefix, after(prefix)))

    def _prefix(self) -> bytes:
        return self.context.row(self.form.id)

    def _visible(self, payload: bytes) -> bool:
        ttl = self.form.ttl
        return ttl is None or self.form.alive(payload, ttl.now(self.context))

    def _refresh(self, address: Address, prefix: bytes, rest: bytes, payload: bytes) -> None:
        ttl = self.form.ttl
        if ttl is not None and ttl.refreshed_by_reading:
            refreshed = self.form.renewed(payload, ttl.expiry(self.context))
            if refreshed != payload:
                self._put(address, prefix, rest, refreshed)


class PartState(Generic[T]):
    """A state of several parts per key, such as a list or a map: what does not depend on how parts are told apart."""

    __slots__ = ("_rows",)

    methods: ClassVar[str]
    """The methods that a program calls."""

    if not TYPE_CHECKING:  # a type checker says of its own what is not there

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an `AttributeError` that says which methods there are."""
            raise no_such_method(self, name)

    def __init__(self, rows: PartRows[T]) -> None:
        self._rows = rows

    def is_empty(self) -> bool:
        """True if the current key has no parts."""
        return self._rows.is_empty()

    def clear(self) -> None:
        """Remove all parts of the current key."""
        self._rows.clear()

    def cut(self) -> None:
        """Note that a cut is made."""
        self._rows.cut()

    def rewind(self, cuts: int) -> None:
        """Follow the rows, which have taken back so many cuts and what was written after them."""
        self._rows.rewind(cuts)

    def forget(self) -> None:
        """Forget what is known of the rows: they have changed."""
        self._rows.forget()

    def memory_bytes(self) -> int:
        """Return about how much memory it takes to know the parts that were used last."""
        return self._rows.memory_bytes()

    @property
    def form(self) -> RowForm[T]:
        """Return the form of the rows."""
        return self._rows.form
