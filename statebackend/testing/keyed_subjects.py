"""The states that the kit works with, one of each kind: how each is changed, read, and what a dictionary says instead.

Invariant: a change is the same for the state and for the model, and depends on the number that is given only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, cast

import pyarrow as pa

from statebackend.ids import KeyGroup
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import key_group_of
from statebackend.keys.columns import KeyColumn, canonical_order, decode_keys
from statebackend.keys.types import KeyType
from statebackend.states.aggregates import AggregateTable
from statebackend.states.codecs import Pickled
from statebackend.states.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from statebackend.states.timer_state import Timers, TimerState
from statebackend.states.ttl import TimeKind, Ttl
from statebackend.tables.table import Table
from statebackend.tables.values.aggregations import Count, Last, Max, Min, Sum
from statebackend.testing.keyed_model import Key, Model, Place

MAX_PARALLELISM: Final = 10
"""Divided by 2 without a rest, and by 3 and 4 with one."""

EVENT_TTL: Final = Ttl("10ms", "event")
CLOCK_TTL: Final = Ttl("10ms", "processing")
READING_TTL: Final = Ttl("10ms", "processing", "read_and_write")


class Subject(ABC):
    """A state under test. `number` decides what is done, so that equal calls do the same."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    @property
    @abstractmethod
    def declaration(self) -> Declaration[Any]:
        """Return the declaration of the state."""

    @abstractmethod
    def change(self, state: KeyedState, model: Model, keys: Sequence[Key], namespace: bytes, number: int) -> None:
        """Do something to these keys, all of which are the state's, and the same to the model."""

    @abstractmethod
    def read(self, state: KeyedState, keys: Sequence[Key], namespace: bytes, clock: int) -> dict[Key, object]:
        """Return what the state says about these keys."""

    @abstractmethod
    def expected(self, model: Model, place: Place) -> object:
        """Return what the model says."""

    def was_read(self, model: Model, place: Place) -> None:  # noqa: B027
        """Note that the state was read, where reading has an effect."""


class RowWise(Subject):
    """A state that is used key by key."""

    def change(self, state: KeyedState, model: Model, keys: Sequence[Key], namespace: bytes, number: int) -> None:
        """Change one key after the other."""
        state.set_namespace(namespace)
        for key in keys:
            state.set_key(key)
            self.change_one(state, model, Place(self.name, key, namespace), number)

    def read(self, state: KeyedState, keys: Sequence[Key], namespace: bytes, clock: int) -> dict[Key, object]:  # noqa: ARG002
        """Read one key after the other."""
        state.set_namespace(namespace)
        found: dict[Key, object] = {}
        for key in keys:
            state.set_key(key)
            found[key] = self.read_one(state)
        return found

    @abstractmethod
    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Do something to the current key, which is that of the place."""

    @abstractmethod
    def read_one(self, state: KeyedState) -> object:
        """Return what there is for the current key."""


class Number(RowWise):
    """Values that are kept as objects, with a default; read ahead now and then."""

    @property
    def declaration(self) -> ValueState[int]:
        """Declare a number."""
        return ValueState(int, default=7)

    def change(self, state: KeyedState, model: Model, keys: Sequence[Key], namespace: bytes, number: int) -> None:
        """Prefetch some of the time."""
        if number % 3 == 0:
            state.set_namespace(namespace)
            state[self.name].prefetch(keys)
        super().change(state, model, keys, namespace, number)

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Set, or clear."""
        if number % 4 == 0:
            state[self.name].clear()
            model.clear(place)
        else:
            state[self.name].set(number)
            model.put(place, None, number)

    def read_one(self, state: KeyedState) -> object:
        """Return the value."""
        return state[self.name].get()

    def expected(self, model: Model, place: Place) -> object:
        """Return the value, or the default."""
        return model.parts(place).get(None, 7)


class Basket(RowWise):
    """A pickled list that the program goes on changing after it was set."""

    @property
    def declaration(self) -> ValueState[list[int]]:
        """Declare a list, pickled."""
        return ValueState(Pickled[list[int]](), default=[])

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Append, or clear."""
        if number % 5 == 0:
            state[self.name].clear()
            model.clear(place)
            return
        basket = state[self.name].get()
        basket.append(number)
        state[self.name].set(basket)
        model.put(place, None, basket)
        basket.append(-1)  # which was never set

    def read_one(self, state: KeyedState) -> object:
        """Return the list."""
        return state[self.name].get()

    def expected(self, model: Model, place: Place) -> object:
        """Return the list, or a new one."""
        return model.parts(place).get(None, [])


class Journey(RowWise):
    """A list."""

    @property
    def declaration(self) -> ListState[str]:
        """Declare a list of texts."""
        return ListState(str)

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Append one or several, replace, or clear."""
        steps = list(model.parts(place).values())
        if number % 7 == 0:
            state[self.name].clear()
            steps = []
        elif number % 7 == 1:
            state[self.name].replace([str(number), "replaced"])
            steps = [str(number), "replaced"]
        elif number % 7 == 2:
            state[self.name].extend([str(number), ""])
            steps += [str(number), ""]
        else:
            state[self.name].add(str(number))
            steps += [str(number)]
        model.clear(place)
        for at, step in enumerate(steps):
            model.put(place, at, step)

    def read_one(self, state: KeyedState) -> object:
        """Return all elements."""
        return state[self.name].get()

    def expected(self, model: Model, place: Place) -> object:
        """Return all elements."""
        return list(model.parts(place).values())


class Shelf(RowWise):
    """A map, of which entries may expire."""

    def __init__(self, name: str, ttl: Ttl | None) -> None:
        super().__init__(name)
        self._ttl = ttl

    @property
    def declaration(self) -> MapState[int, str]:
        """Declare a map from numbers, which sort as they should."""
        return MapState(int, str, ttl=self._ttl)

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Put, remove or clear."""
        part = number % 6 - 3
        if number % 11 == 0:
            state[self.name].clear()
            model.clear(place)
        elif number % 4 == 0:
            state[self.name].remove(part)
            model.remove(place, part)
        else:
            state[self.name].put(part, str(number))
            model.put(place, part, str(number), self._ttl)

    def read_one(self, state: KeyedState) -> object:
        """Return all entries, in the order of their keys; each asked for alone is the same."""
        shelf = state[self.name]
        items = list(shelf.items())
        return items, [shelf.get(part) for part in range(-3, 3)], list(shelf), shelf.is_empty()

    def expected(self, model: Model, place: Place) -> object:
        """Return all entries."""
        parts = cast("dict[int, str]", model.parts(place, self._ttl))
        return sorted(parts.items()), [parts.get(part) for part in range(-3, 3)], sorted(parts), not parts


class Total(RowWise):
    """The sum of the added values, as a reducing state."""

    @property
    def declaration(self) -> ReducingState[int]:
        """Declare a sum."""
        return ReducingState(int, lambda left, right: left + right)

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Add, or clear."""
        if number % 6 == 0:
            state[self.name].clear()
            model.clear(place)
        else:
            state[self.name].add(number)
            model.put(place, None, cast("int", model.value(place) or 0) + number)

    def read_one(self, state: KeyedState) -> object:
        """Return the sum."""
        return state[self.name].get()

    def expected(self, model: Model, place: Place) -> object:
        """Return the sum."""
        return model.value(place)


class Average(RowWise):
    """The mean of the added values, gathered in a pair."""

    @property
    def declaration(self) -> AggregatingState[int, tuple[int, int], float]:
        """Declare a mean."""
        return AggregatingState(
            tuple[int, int],
            create=lambda: (0, 0),
            add=lambda pair, number: (pair[0] + number, pair[1] + 1),
            result=lambda pair: pair[0] / pair[1],
        )

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Add, or clear."""
        if number % 6 == 0:
            state[self.name].clear()
            model.clear(place)
        else:
            state[self.name].add(number)
            total, count = cast("tuple[int, int]", model.value(place) or (0, 0))
            model.put(place, None, (total + number, count + 1))

    def read_one(self, state: KeyedState) -> object:
        """Return the mean."""
        return state[self.name].get()

    def expected(self, model: Model, place: Place) -> object:
        """Return the mean."""
        pair = cast("tuple[int, int] | None", model.value(place))
        return None if pair is None else pair[0] / pair[1]


class Fading(RowWise):
    """A value that expires."""

    def __init__(self, name: str, ttl: Ttl) -> None:
        super().__init__(name)
        self._ttl = ttl

    @property
    def declaration(self) -> ValueState[str | None]:
        """Declare a text."""
        return ValueState(str, ttl=self._ttl)

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Set, or clear."""
        if number % 6 == 0:
            state[self.name].clear()
            model.clear(place)
        else:
            state[self.name].set(str(number))
            model.put(place, None, str(number), self._ttl)

    def read_one(self, state: KeyedState) -> object:
        """Return the value."""
        return state[self.name].get()

    def was_read(self, model: Model, place: Place) -> None:
        """Begin its time anew, if reading does that."""
        if self._ttl.refreshed_by_reading:
            model.refresh(place, self._ttl)

    def expected(self, model: Model, place: Place) -> object:
        """Return the value."""
        return model.value(place, self._ttl)


class Alarms(RowWise):
    """Timers. Asking for those that are due takes them away, so that is no part of reading."""

    def __init__(self, name: str, time: TimeKind) -> None:
        super().__init__(name)
        self._time: TimeKind = time

    @property
    def declaration(self) -> Timers:
        """Declare timers in one kind of time."""
        return Timers(self._time)

    def change_one(self, state: KeyedState, model: Model, place: Place, number: int) -> None:
        """Register a time, maybe one that has passed or is registered; or delete one."""
        if number % 4 == 0:
            state[self.name].delete(number + 1)
            model.remove(place, number + 1)
        else:
            state[self.name].register(number)
            model.put(place, number, number)

    def read_one(self, state: KeyedState) -> object:
        """Return nothing, as timers would be taken away."""

    def expected(self, model: Model, place: Place) -> object:
        """Return nothing."""

    def fire(self, state: KeyedState, model: Model) -> None:
        """Take away the timers that are due: exactly those that the model has, by their times."""
        alarms: TimerState = state[self.name]
        now = model.watermark if self._time == "event" else model.clock
        mine = [place for place in model.places(self.name) if group_of(state.key_type, place.key) in state.groups]
        times = [(cast("int", time), place) for place in mine for time in model.parts(place)]
        if alarms.next_time() != min((time for time, _ in times), default=None):
            raise AssertionError(f"{self.name}: the next is at {alarms.next_time()}, and there are {times}")
        due = [(time, place) for time, place in times if now is not None and time <= now]
        fired = [(one.time, Place(self.name, cast("Key", one.key), one.namespace)) for one in alarms.due()]
        if sorted(fired, key=str) != sorted(due, key=str) or [time for time, _ in fired] != sorted(
            time for time, _ in due
        ):
            raise AssertionError(f"{self.name} gave {fired} at {now}, and ought to have given {due}")
        for time, place in due:
            model.remove(place, time)


Results = dict[str, object]


class Columns(Subject):
    """A table, which may have a time to live."""

    def __init__(self, name: str, ttl: Ttl | None) -> None:
        super().__init__(name)
        self._ttl = ttl

    @property
    def declaration(self) -> AggregateTable:
        """Declare one output of each sort."""
        return AggregateTable(
            {"number": int, "text": str, "raw": bytes},
            ttl=self._ttl,
            rows=Count(),
            total=Sum("number"),
            most=Max("number"),
            least=Min("text"),
            last=Last("raw"),
        )

    def change(self, state: KeyedState, model: Model, keys: Sequence[Key], namespace: bytes, number: int) -> None:
        """Update some keys, and some twice; remove some; or drop the namespace."""
        table: Table = state[self.name]
        if number % 13 == 0:
            table.drop(namespace)
            for place in model.places(self.name):
                if place.namespace == namespace and group_of(state.key_type, place.key) in state.groups:
                    model.clear(place)
        elif number % 5 == 0:
            table.remove(_column(state, keys), namespace)
            for key in keys:
                model.clear(Place(self.name, key, namespace))
        else:
            rows = [*keys, *keys[:2]]
            numbers = [None if number % 4 == 0 and at % 2 else number + at for at in range(len(rows))]
            texts = [None if one is None else _text(one) for one in numbers]
            columns = {
                "number": pa.array(numbers, pa.int64()),
                "text": pa.array(texts, pa.string()),
                "raw": pa.array(texts, pa.string()).cast(pa.binary()),
            }
            table.update(_column(state, rows), columns, namespace, now=model.clock)
            for key, value in zip(rows, numbers, strict=True):
                self._update(model, Place(self.name, key, namespace), value)

    def _update(self, model: Model, place: Place, value: int | None) -> None:
        before = cast("Results", self.expected(model, place))
        rows = cast("int | None", before["rows"]) or 0
        after: Results = {**before, "rows": rows + 1}
        if value is not None:
            total, most = cast("int | None", before["total"]), cast("int | None", before["most"])
            least, text = cast("str | None", before["least"]), _text(value)
            after["total"] = (total or 0) + value
            after["most"] = value if most is None else max(most, value)
            after["least"] = text if least is None else min(least, text)
            after["last"] = text.encode()
        model.put(place, None, after, self._ttl)

    def read(self, state: KeyedState, keys: Sequence[Key], namespace: bytes, clock: int) -> dict[Key, object]:
        """Read by key, and all of the namespace at once, which has to say the same."""
        table: Table = state[self.name]
        listed = table.keys_and_results(namespace, now=clock)
        order = canonical_order(listed.keys.hashes, lambda places: [listed.keys.key(at) for at in places])
        if order.tolist() != list(range(len(order))):
            raise AssertionError(f"{self.name} in {namespace!r} does not list its keys in the canonical order")
        names = decode_keys(listed.keys, state.key_type).to_pylist()
        everything = dict(zip(names, listed.results.to_pylist(), strict=True))
        by_key = table.read(_column(state, keys), namespace, now=clock).to_pylist()
        found = dict(zip(keys, by_key, strict=True))
        nothing = self._nothing()
        if everything.keys() - set(keys) or found != {key: everything.get(key, nothing) for key in keys}:
            raise AssertionError(f"{self.name} in {namespace!r} lists {everything}, and by key has {found}")
        if everything and namespace not in table.namespaces():
            raise AssertionError(f"{self.name} has keys in {namespace!r} and does not list that namespace")
        return found

    def _nothing(self) -> Results:
        return {"rows": None, "total": None, "most": None, "least": None, "last": None}

    def expected(self, model: Model, place: Place) -> object:
        """Return all results."""
        return model.value(place, self._ttl) or self._nothing()


class Tally(Columns):
    """A table with one number for each key, so that the keys are most of what is stored; few of them are removed."""

    @property
    def declaration(self) -> AggregateTable:
        """Declare a count."""
        return AggregateTable(rows=Count())

    def change(self, state: KeyedState, model: Model, keys: Sequence[Key], namespace: bytes, number: int) -> None:
        """Count; now and then drop the namespace, or remove a key, which may come again."""
        table: Table = state[self.name]
        if number % 19 == 0:
            table.drop(namespace)
            for place in model.places(self.name):
                if place.namespace == namespace and group_of(state.key_type, place.key) in state.groups:
                    model.clear(place)
        elif number % 9 == 0:
            table.remove(_column(state, keys[:1]), namespace)
            model.clear(Place(self.name, keys[0], namespace))
        else:
            table.update(_column(state, keys), {}, namespace)
            for key in keys:
                place = Place(self.name, key, namespace)
                before = cast("Results", self.expected(model, place))
                model.put(place, None, {"rows": (cast("int | None", before["rows"]) or 0) + 1})

    def _nothing(self) -> Results:
        return {"rows": None}


def group_of(key_type: KeyType, key: Key) -> KeyGroup:
    """Return the key group of a key."""
    return key_group_of(key_type.hash(key), MAX_PARALLELISM)


def _text(number: int) -> str:
    """Return a text of any length, also none, for a number."""
    return f"\u00e9{number}\0" * (number % 5)


def _column(state: KeyedState, keys: Sequence[Key]) -> KeyColumn:
    return state.keys(pa.array(keys, state.key_type.arrow))


SUBJECTS: Final[tuple[Subject, ...]] = (
    Number("number"),
    Basket("basket"),
    Journey("journey"),
    Shelf("shelf", ttl=None),
    Shelf("fading shelf", ttl=CLOCK_TTL),
    Total("total"),
    Average("average"),
    Fading("event", EVENT_TTL),
    Fading("clock", CLOCK_TTL),
    Fading("reading", READING_TTL),
    Alarms("alarms", "event"),
    Alarms("clock alarms", "processing"),
    Columns("columns", ttl=None),
    Columns("fading columns", ttl=CLOCK_TTL),
    Tally("tally", ttl=None),
)
"""All kinds of state."""

TABLES: Final = tuple(subject for subject in SUBJECTS if isinstance(subject, Columns))
"""An operator that has nothing else makes its files in another way."""

ONE_TABLE: Final = tuple(subject for subject in SUBJECTS if isinstance(subject, Tally))
"""Cuts in which nearly all keys have changed can leave the keys out."""

TWO_TABLES: Final = (*ONE_TABLE, Tally("second tally", ttl=None))
"""All keys of one of them may change while the other stays as it is."""
