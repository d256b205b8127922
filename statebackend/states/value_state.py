"""One value per key and namespace, and what is built on it: values that are reduced or aggregated.

Invariant: `get` gives what was set last for the current key and namespace, or the default; a value of
another type than the declared one is never set; and what is kept as an object cannot change, so a cut that was frozen
stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NoReturn, TypeVar, cast

from statebackend.states.key_context import KeyContext, no_such_method
from statebackend.states.row_form import RowEntry, RowForm
from statebackend.states.ttl import Ttl, expiry_of
from statebackend.states.write_back import Absence, FrozenValues, Rows, WriteBack

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
K = TypeVar("K")

_NO_PAYLOAD: Final = b""
"""The entry for an absent value in a cache of payloads."""


class CachedState(Generic[T, K]):
    """The base of states with one value per key and namespace: `T` is the value, `K` the form in which it is kept."""

    __slots__ = ("_context", "_form", "_values")

    methods: ClassVar[str] = "add, get and clear"
    """The methods that a program calls."""

    if not TYPE_CHECKING:  # a type checker says of its own what is not there

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an `AttributeError` that says which methods there are."""
            raise no_such_method(self, name)

    def __init__(self, context: KeyContext, form: RowForm[T], values: WriteBack[K]) -> None:
        self._context, self._form, self._values = context, form, values

    def clear(self) -> None:
        """Remove the value, as if nothing had ever been set for the current key and namespace."""
        self._values.remove(self._context.address)

    def prefetch(self, keys: Sequence[object]) -> None:
        """Read the values of these keys in the current namespace all at once, so that later reads find them here."""
        self._values.prefetch(self._context.addresses(keys))

    def freeze(self) -> FrozenValues:
        """Cut, and return what was written since the last cut. Costs the same whatever its size."""
        return self._values.freeze()

    def release(self, frozen: FrozenValues) -> None:
        """Forget a cut's values, now that the rows have them; the oldest cut first."""
        self._values.release(frozen)

    def rewind(self, since: Sequence[FrozenValues]) -> FrozenValues:
        """Forget what was frozen since a cut and what was not frozen yet; the caller clears what is returned."""
        return self._values.rewind(since)

    def above_rows(self) -> dict[bytes, bytes | None]:
        """Return all that the rows do not have yet, by the names of the rows; None is a deletion."""
        return self._values.above_rows()

    def spill(self) -> None:
        """Write into the rows all values that no cut has seen yet."""
        self._values.spill()

    def pending_bytes(self) -> int:
        """Return about how much memory holds values that the rows do not have yet; less when cuts are released."""
        return self._values.pending_bytes()

    def memory_bytes(self) -> int:
        """Return about how much memory its values take."""
        return self._values.memory_bytes()

    def parts(self) -> tuple[KeyContext, RowForm[T], WriteBack[K]]:
        """Return what it is made of, for a state that is made on top of it."""
        return self._context, self._form, self._values

    @property
    def form(self) -> RowForm[T]:
        """Return the form of its rows."""
        return self._form

    def decode_entry(self, name: bytes, payload: bytes) -> RowEntry:
        """Decode a row into key, namespace and value."""
        return self._form.entry(name, payload)

    def encode_entry(self, entry: RowEntry) -> tuple[bytes, bytes]:
        """Encode an entry as a row: the inverse of `decode_entry`."""
        return self._form.row(entry, self._context.max_parallelism)


class ValueHandle(CachedState[T, T]):
    """The value of the current key and namespace; immutable values without a time to live, kept as they are."""

    __slots__ = ("_exact",)

    methods = "get, set and clear"

    def __init__(self, context: KeyContext, form: RowForm[T], values: WriteBack[T]) -> None:
        super().__init__(context, form, values)
        self._exact = form.codec.exact

    def get(self) -> T:
        """Return the value, or the default."""
        return self._values.young[self._context.address]

    def set(self, value: T) -> None:
        """Replace the value; `WrongValueType` if it is not of the declared type."""
        if type(value) is not self._exact:
            value = self._form.accept(value)
        values, address = self._values, self._context.address
        if address not in values.young:
            values.admit(address)
        values.young[address] = values.dirty[address] = value


class EncodedValueHandle(ValueHandle[T]):
    """A value that could change under us, or that expires: kept as its payload, and decoded anew for each `get`."""

    __slots__ = ("_default", "_payloads", "_ttl")

    def __init__(
        self, context: KeyContext, form: RowForm[T], payloads: WriteBack[bytes], default: Callable[[], T]
    ) -> None:
        super().__init__(context, form, cast("WriteBack[T]", payloads))
        self._payloads, self._default, self._ttl = payloads, default, form.ttl

    def get(self) -> T:
        """Return the value, fresh from its bytes, or the default."""
        address = self._context.address
        payload = self._payloads.young[address]
        if payload == _NO_PAYLOAD:
            return self._default()
        ttl = self._ttl
        if ttl is not None:
            if expiry_of(payload) <= ttl.now(self._context):
                return self._default()
            if ttl.refreshed_by_reading:
                self._refresh(ttl, payload)
        return self._form.value_in(payload)

    def set(self, value: T) -> None:
        """Replace the value by a copy of this one; `WrongValueType` if it is not of the declared type."""
        form = self._form
        if type(value) is not self._exact:
            value = form.accept(value)
        ttl = self._ttl
        payload = form.payload(value, None if ttl is None else ttl.expiry(self._context))
        self._payloads.write(self._context.address, payload)

    def _refresh(self, ttl: Ttl, payload: bytes) -> None:
        refreshed = self._form.renewed(payload, ttl.expiry(self._context))
        if refreshed != payload:
            self._payloads.write(self._context.address, refreshed)


def open_value(
    context: KeyContext, rows: Rows, form: RowForm[T], default: Callable[[], T], budget: int
) -> ValueHandle[T]:
    """Open a state that is kept as objects if it can be; `budget` is about how many bytes its cache may take."""
    if form.codec.immutable and form.ttl is None:
        kept = WriteBack(context, rows, form.id, form.data_of_many, form.values_of_many, default(), budget)
        return ValueHandle(context, form, kept)
    payloads = WriteBack(context, rows, form.id, _as_they_are, _as_they_are, _NO_PAYLOAD, budget)
    return EncodedValueHandle(context, form, payloads, default)


def _as_they_are(payloads: Sequence[bytes]) -> list[bytes]:
    return list(payloads)


class ReducingHandle(CachedState[T, T]):
    """All that was added for the current key and namespace, reduced to one value."""

    __slots__ = ("_reduce", "_value")

    def __init__(self, value: ValueHandle[T | Absence], reduce: Callable[[T, T], T]) -> None:
        super().__init__(*cast("tuple[KeyContext, RowForm[T], WriteBack[T]]", value.parts()))
        self._value, self._reduce = value, reduce

    def add(self, value: T) -> None:
        """Reduce what is there with this value; the first one is taken as it is, if it is of the declared type."""
        reduced = self._value.get()
        self._value.set(value if isinstance(reduced, Absence) else self._reduce(reduced, value))

    def get(self) -> T | None:
        """Return the reduced value; None if nothing was added."""
        reduced = self._value.get()
        return None if isinstance(reduced, Absence) else reduced


class AggregatingHandle(CachedState[A, A], Generic[T, A, R]):
    """All that was added for the current key and namespace, gathered in an accumulator."""

    __slots__ = ("_add", "_create", "_result", "_value")

    def __init__(
        self,
        value: ValueHandle[A | Absence],
        create: Callable[[], A],
        add: Callable[[A, T], A],
        result: Callable[[A], R],
    ) -> None:
        super().__init__(*cast("tuple[KeyContext, RowForm[A], WriteBack[A]]", value.parts()))
        self._value, self._create, self._add, self._result = value, create, add, result

    def add(self, value: T) -> None:
        """Take a value into the accumulator; what `add` returned is kept, and must be of the declared type."""
        accumulator = self._value.get()
        self._value.set(self._add(self._create() if isinstance(accumulator, Absence) else accumulator, value))

    def get(self) -> R | None:
        """Return the accumulator's result; None if nothing was added."""
        accumulator = self._value.get()
        return None if isinstance(accumulator, Absence) else self._result(accumulator)
