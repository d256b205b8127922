"""States of all kinds, for the tests of the canonical form and of readers, and what a program reads in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa

from statebackend.backends.row_store import RowStore
from statebackend.files import FileSet
from statebackend.ids import Epoch, Generation
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange, key_group_of
from statebackend.keys.types import KeyType
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.states.aggregates import AggregateTable
from statebackend.states.codecs import Pickled
from statebackend.states.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    Place,
    ReducingState,
    ValueState,
)
from statebackend.states.namespaces import NO_NAMESPACE, Window
from statebackend.states.schema import StateKind, StateSpec
from statebackend.states.timer_state import TimerService
from statebackend.states.ttl import Ttl
from statebackend.stores.memory_store import MemoryStore
from statebackend.tables.values.aggregations import Count, Mean, Sum

NAMESPACES = (NO_NAMESPACE, Window(-5, 5).namespace, b"\x00ns")
KEYS = (None, "", "a", "ä", "k" * 80, *(f"key-{number}" for number in range(6)))
MOMENTS = (datetime(2026, 1, 2, 3, 4, 5, 6), datetime(2026, 1, 2, tzinfo=UTC), datetime(1, 1, 1))


class Timers(Declaration[TimerService]):
    def spec(self, name: str) -> StateSpec:
        return StateSpec(name, StateKind.TIMERS)

    def open(self, place: Place) -> TimerService:
        assert isinstance(place.rows, RowStore)
        return TimerService(place.context, place.rows, place.spec.id)


STATES: Mapping[str, Declaration[Any]] = {
    "number": ValueState(int, default=0),
    "text": ValueState(str, ttl=Ttl("1000ms", "event")),
    "anything": ValueState(Pickled[object]()),
    "optional": ValueState(tuple[int, str | None] | None, default=(0, None)),
    "moments": ListState(datetime),
    "rows": ListState(pa.struct([("id", pa.int32()), ("at", pa.timestamp("ns", "UTC")), ("name", pa.string())])),
    "by name": MapState(str, float),
    "by pair": MapState(tuple[int, str], bool, ttl=Ttl("500ms", "processing")),
    "most": ReducingState(int, max),
    "all": AggregatingState(int, int, lambda total, one: total + one, float),
    "visits/day": AggregateTable({"cents": int}, count=Count(), cents=Sum("cents")),
    "mean": AggregateTable({"cents": int}, ttl=Ttl("100ms"), mean=Mean("cents")),
    "timers": Timers(),
}

NUMBERS = (0, -1, 1 << 62, 1 << 80, -(1 << 63))
TEXTS = ("", "text", "\ud800", "\x00")


def operator(max_parallelism: int = 16, states: Mapping[str, Declaration[Any]] = STATES) -> Operator:
    return Operator("count", str, states, max_parallelism)


@dataclass
class Workshop:
    """A store, a folder, and names."""

    folder: Path
    store: MemoryStore = field(default_factory=lambda: MemoryStore(token_hex(8)))
    _numbers: Iterator[int] = field(default_factory=count)

    def name(self) -> str:
        return f"shared/{next(self._numbers)}.sst"

    def fresh(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self._numbers)}"

    @contextmanager
    def opened(
        self,
        declared: Operator,
        files: FileSet | None = None,
        options: Options | None = None,
        groups: KeyGroupRange | None = None,
    ) -> Iterator[KeyedState]:
        with KeyedState(
            declared, self.fresh("state"), self.store, self.name, files, options or Options("heap"), groups=groups
        ) as state:
            yield state


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def change(state: KeyedState, name: str, key: str | None, namespace: bytes, what: int) -> None:
    """One of many changes; the same for the same arguments."""
    state.set_key(key)
    state.set_namespace(namespace)
    opened, number, text = state[name], NUMBERS[what % 5], TEXTS[what % 4]
    match name:
        case "number" | "most" | "all":
            (opened.set if name == "number" else opened.add)(number)
        case "text":
            opened.set(text)
        case "anything":
            opened.set({text: [number]})
        case "optional":
            opened.set(None if what % 3 == 0 else (number, None if what % 2 else text))
        case "moments":
            opened.add(MOMENTS[what % 3] if what % 4 else MOMENTS[0].replace(fold=1))
        case "rows":
            opened.add({"id": what, "at": MOMENTS[1] if what % 2 else None, "name": text if what % 3 else None})
        case "by name":
            opened.put(text, what / 3)
        case "by pair":
            opened.put((what % 7, text), what % 2 == 0)
        case "timers":
            opened.register(what)
        case _:
            column = pa.array([what % 100], pa.int64())
            opened.update(state.keys(pa.array([key], pa.string())), {"cents": column}, namespace, now=what)


READ: Mapping[str, Callable[[Any], object]] = {
    "moments": lambda opened: [(moment, moment.fold, moment.tzinfo is None) for moment in opened],
    "rows": list,
    "by name": lambda opened: dict(opened.items()),
    "by pair": lambda opened: dict(opened.items()),
}


def content(states: Iterable[KeyedState]) -> dict[tuple[object, ...], object]:
    """What a program reads in these partitions, whoever has which key, without what has never been set."""
    found: dict[tuple[object, ...], object] = {}
    for state in states:
        for namespace in NAMESPACES:
            for key in KEYS:
                found.update(_of_key(state, key, namespace))
            for name in ("visits/day", "mean"):
                if name in state.contents.states:
                    accumulated = state[name].accumulators(namespace)
                    for row in range(len(accumulated.keys)):
                        values = [(column, values[row]) for column, values in accumulated.columns.items()]
                        found[name, accumulated.keys.key(row), namespace] = sorted(values)
        if "timers" in state.contents.states:
            for timer in list(state["timers"].due(1 << 62)):
                found["timers", timer.time, timer.key, timer.namespace] = True
    return found


def _of_key(state: KeyedState, key: str | None, namespace: bytes) -> Iterator[tuple[tuple[object, ...], object]]:
    if key_group_of(KeyType.of(str).hash(key), state.schema.max_parallelism) not in state.groups:
        return
    state.set_key(key)
    state.set_namespace(namespace)
    for name in state.contents.states:
        if name not in ("visits/day", "mean", "timers"):
            value = READ[name](state[name]) if name in READ else state[name].get()
            if value not in (None, 0, [], {}):
                yield (name, key, namespace), value
