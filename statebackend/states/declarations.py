"""The states that a program declares: what it writes down once, and opens in every partition.

Invariant: a declaration is a value that knows nothing of keys, files or partitions; opened in the same place
with the same rows it is the same state, under the name it is stored as.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar, cast, overload

from statebackend.backends.scratch_file import NewFile, ScratchFile
from statebackend.errors import ProgramError
from statebackend.ids import Uid
from statebackend.states.codec_choice import Declared, codec_of
from statebackend.states.codecs import Codec
from statebackend.states.key_context import KeyContext
from statebackend.states.list_state import ListHandle
from statebackend.states.map_keys import map_keys_of
from statebackend.states.map_state import MapHandle
from statebackend.states.part_rows import PartRows
from statebackend.states.row_form import RowForm
from statebackend.states.schema import CodecSpec, StateKind, StateSpec
from statebackend.states.ttl import Ttl
from statebackend.states.value_state import AggregatingHandle, ReducingHandle, ValueHandle, open_value
from statebackend.states.write_back import ABSENT, Absence, Rows

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")
H_co = TypeVar("H_co", covariant=True)

DEFAULT_CACHE_BYTES: Final = 64 << 20
"""The memory of the cache of one state, unless the options say otherwise."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a state is opened: its spec after a restore, and what it shares with the other states."""

    spec: StateSpec
    context: KeyContext
    rows: Rows
    cache_bytes: int = DEFAULT_CACHE_BYTES
    new_file: NewFile = ScratchFile
    """Makes a file for what memory has no room for."""

    @property
    def uid(self) -> Uid:
        """Return the uid of the operator."""
        return self.context.uid

    def form(self, codec: Codec[T], ttl: Ttl | None) -> RowForm[T]:
        """Return the form of the state's rows."""
        return RowForm(self.uid, self.spec.name, self.spec.id, self.context.key_type, codec, ttl)


class NotOpen(ProgramError, AttributeError):
    """A declared state was used before it was opened for a partition."""


class Declaration(ABC, Generic[H_co]):
    """A state that is declared; `H` is what one works with once it is opened.

    As an attribute of a class it declares that the instances have an attribute with the opened state: opening
    puts it there, and it is `NotOpen` until then.
    """

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> H_co: ...

    def __get__(self, instance: object | None, owner: type) -> Self | H_co:
        if instance is None:
            return self
        raise NotOpen(f"a state of {owner.__qualname__} is used before it is opened: state is there from `open` on")

    @abstractmethod
    def spec(self, name: str) -> StateSpec:
        """Return how the state stands in files, under this name."""

    @abstractmethod
    def open(self, place: Place) -> H_co:
        """Open the state in one partition."""


class ValueState(Declaration[ValueHandle[T]]):
    """One value per key. Without a default, `get` gives None where nothing was set.

        class CountClicks(KeyedProcess):
            output = {"user": str, "clicks": int}
            clicks = ValueState(int, default=0)

            def on_event(self, event, ctx):
                self.clicks.set(self.clicks.get() + 1)
                ctx.emit((ctx.key, self.clicks.get()))

    Declare the type of the values: `int`, `float`, `bool`, `str`, `bytes`, `date`, `datetime`, `None`;
    `tuple[int, str]` of these; `int | None`; Arrow's types, such as `pa.struct(...)`, and their names, such as "int64";
    `Pickled()` for whatever pickle takes; or a `Codec` of your own. With `ttl` a value is forgotten some time after it
    was written. In a call the attribute is a `ValueHandle`: `get`, `set`, `clear`.
    """

    @overload
    def __init__(self: ValueState[V | None], declared: Declared[V], *, ttl: Ttl | None = None) -> None: ...

    @overload
    def __init__(self, declared: Declared[T], *, default: T, ttl: Ttl | None = None) -> None: ...

    def __init__(self, declared: Declared[Any], *, default: T | None = None, ttl: Ttl | None = None) -> None:
        self._codec: Codec[T] = codec_of(declared)
        self._ttl = ttl
        self._default = default if default is None else self._codec.accept(default)

    def spec(self, name: str) -> StateSpec:
        """Return the spec of a value."""
        return _spec(name, StateKind.VALUE, self._codec, self._ttl)

    def open(self, place: Place) -> ValueHandle[T]:
        """Open the value in one partition."""
        form = place.form(self._codec, self._ttl)
        return open_value(place.context, place.rows, form, self._fresh_default, place.cache_bytes)

    def _fresh_default(self) -> T:
        default = self._default
        return cast("T", default if default is None or self._codec.immutable else copy.deepcopy(default))


class ListState(Declaration[ListHandle[T]]):
    """A list per key, to which elements are appended without reading it.

        amounts = ListState(float)  # in a call: self.amounts.add(event.amount)

    Declare the type of an element, as for `ValueState`. In a call the attribute is a `ListHandle`: `add`, `extend`,
    `get`, `replace`, `clear`.
    """

    def __init__(self, declared: Declared[T], *, ttl: Ttl | None = None) -> None:
        self._codec = codec_of(declared)
        self._ttl = ttl

    def spec(self, name: str) -> StateSpec:
        """Return the spec of a list."""
        return _spec(name, StateKind.LIST, self._codec, self._ttl)

    def open(self, place: Place) -> ListHandle[T]:
        """Open the list in one partition."""
        return ListHandle(PartRows(place.context, place.rows, place.form(self._codec, self._ttl), place.cache_bytes))


class MapState(Declaration[MapHandle[K, V]]):
    """A map per key, of which entries are read and written one by one.

        seen = MapState(str, int)  # in a call: self.seen.put(event.page, event.at)

    Declare the types of map keys and values, as for `ValueState`. In a call the attribute is a `MapHandle`: `get`,
    `put`, `remove`, `in`, `items`, `keys`, `clear`.
    """

    def __init__(self, keys: Declared[K], values: Declared[V], *, ttl: Ttl | None = None) -> None:
        self._keys = map_keys_of(keys)
        self._codec = codec_of(values)
        self._ttl = ttl

    def spec(self, name: str) -> StateSpec:
        """Return the spec of a map."""
        return _spec(name, StateKind.MAP, self._codec, self._ttl, self._keys.name)

    def open(self, place: Place) -> MapHandle[K, V]:
        """Open the map in one partition."""
        return MapHandle(
            PartRows(place.context, place.rows, place.form(self._codec, self._ttl), place.cache_bytes), self._keys
        )


class ReducingState(Declaration[ReducingHandle[T]]):
    """One value per key: all that was added, reduced two by two in the order in which it was added.

        largest = ReducingState(float, max)  # in a call: self.largest.add(event.amount)
        latest = ReducingState(str, lambda before, page: page)

    Any type that has a codec does, as for `ValueState`. In a call the attribute is a `ReducingHandle`: `add`,
    `get`, `clear`.
    """

    def __init__(self, declared: Declared[T], reduce: Callable[[T, T], T], *, ttl: Ttl | None = None) -> None:
        self._codec = codec_of(declared)
        self._reduce = reduce
        self._ttl = ttl

    def spec(self, name: str) -> StateSpec:
        """Return the spec of a reduced value."""
        return _spec(name, StateKind.REDUCING, self._codec, self._ttl)

    def open(self, place: Place) -> ReducingHandle[T]:
        """Open the reduced value in one partition."""
        return ReducingHandle(_accumulator(place, self._codec, self._ttl), self._reduce)


class AggregatingState(Declaration[AggregatingHandle[T, A, R]]):
    """One accumulator per key: `create` begins it, `add` returns it with a value added, `result` says what it means.

        def added(so_far, amount):
            return so_far[0] + 1, so_far[1] + amount

        mean = AggregatingState(tuple[int, float], lambda: (0, 0.0), added, lambda so_far: so_far[1] / so_far[0])

    In a call: `self.mean.add(event.amount)`. Declare the type of the accumulator, as for `ValueState`. In a call the
    attribute is an `AggregatingHandle`: `add`, `get`, `clear`.
    """

    def __init__(
        self,
        accumulator: Declared[A],
        create: Callable[[], A],
        add: Callable[[A, T], A],
        result: Callable[[A], R],
        *,
        ttl: Ttl | None = None,
    ) -> None:
        self._codec = codec_of(accumulator)
        self._create, self._add, self._result = create, add, result
        self._ttl = ttl

    def spec(self, name: str) -> StateSpec:
        """Return the spec of an accumulator."""
        return _spec(name, StateKind.AGGREGATING, self._codec, self._ttl)

    def open(self, place: Place) -> AggregatingHandle[T, A, R]:
        """Open the accumulator in one partition."""
        accumulator = _accumulator(place, self._codec, self._ttl)
        return AggregatingHandle(accumulator, self._create, self._add, self._result)


def _spec(name: str, kind: StateKind, codec: Codec[T], ttl: Ttl | None, map_keys: str | None = None) -> StateSpec:
    return StateSpec(name, kind, CodecSpec.of(codec), map_keys, None if ttl is None else ttl.time)


def _accumulator(place: Place, codec: Codec[T], ttl: Ttl | None) -> ValueHandle[T | Absence]:
    """Open a value whose default says that there is none."""
    form = cast("RowForm[T | Absence]", place.form(codec, ttl))
    return open_value(place.context, place.rows, form, lambda: ABSENT, place.cache_bytes)
