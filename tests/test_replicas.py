"""Replicas of every operator lead different lives, and emit the same; and errors that make them differ are found."""

from __future__ import annotations

import dataclasses
import inspect
import random
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapshot.operators
import statebackend
from snapshot.cut.frames import LATEST
from snapshot.operators.aggregate import RunningAggregate
from snapshot.operators.broadcast import Broadcast, BroadcastProcess, KeyedBroadcastProcess
from snapshot.operators.function_operator import ConnectedProcess, KeyedCoProcess, KeyedProcess, Process
from snapshot.operators.keyed_function import OpenContext, ProcessContext
from snapshot.operators.operator import Input, KeyedOperator, Per, Transform
from snapshot.operators.process_batch import BatchContext, BatchProcess, ProcessBatches
from snapshot.operators.reduce import Reduce
from snapshot.operators.transforms import (
    FilterBatches,
    FilterRows,
    FlatMapBatches,
    FlatMapRows,
    MapBatches,
    MapRows,
    Select,
)
from snapshot.operators.windows.aggregate import WindowAggregate
from snapshot.operators.windows.calls import WindowFunction
from snapshot.operators.windows.kinds import Session, Sliding, Tumbling, Window
from snapshot.operators.windows.process import WindowProcess
from snapshot.operators.windows.reduce import WindowReduce
from snapshot.testing.replicas import (
    Arrive,
    Clock,
    EndOfInput,
    EventTime,
    Life,
    ReplicasDiffer,
    Step,
    check_replicas,
)
from statebackend.random_state import RandomState
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from statebackend.states.timer_state import Timers
from statebackend.states.ttl import Ttl
from statebackend.tables.memory.space import TableSpace
from statebackend.tables.values import aggregations
from statebackend.tables.values.aggregations import Aggregation, Count, First, Last, Max, Mean, Min, Sum

PAID = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("rate", pa.float64())])
TOTAL = pa.schema([("user", pa.string()), ("total", pa.int64())])
TIMED, PLAIN, CONTROL = Input(PAID, ("user",), True), Input(PAID, ("user",), False), Input(PAID, (), True)
USERS = [f"user-{number}" for number in range(12)]

# --- functions with all kinds of state --------------------------------------------------------------------------------


class Everything(KeyedProcess):
    """Uses every kind of state, and timers of both kinds."""

    total = ValueState(int, default=0)
    lately = ValueState(int, default=0, ttl=Ttl("20ms", "processing"))
    amounts = ListState(int)
    by_amount = MapState(int, float)
    most = ReducingState(int, max)
    chance = RandomState()
    sums: AggregatingState[int, int, int] = AggregatingState(
        int, lambda: 0, lambda one, other: one + other, lambda found: -found
    )
    table = AggregateTable({"rate": float}, count=Count(), mean=Mean("rate"))

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        assert ctx.timestamp is not None
        self.total.set(self.total.get() + event.amount)
        self.lately.set(self.lately.get() + 1)
        self.amounts.add(event.amount)
        self.by_amount.put(event.amount, event.rate)
        self.most.add(event.amount)
        self.sums.add(event.amount)
        ctx.timer(ctx.timestamp + event.amount)
        ctx.processing_timer(ctx.processing_time + event.amount)
        ctx.emit((event.user, self.total.get()))
        ctx.emit((event.user, self.lately.get() * ctx.random.randint(1, 1000)))

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        for amount in self.by_amount:
            ctx.emit((ctx.key, amount))
        for amount in self.amounts.get():
            ctx.emit((ctx.key, amount))
        ctx.emit((ctx.key, self.most.get() or 0))
        ctx.emit((ctx.key, int(ctx.random.gauss(0, 1000))))
        ctx.emit((ctx.key, self.sums.get() or 0))
        ctx.emit_to("times", (ctx.key, at + ctx.processing_time))


class Both(KeyedCoProcess):
    total = ValueState(int, default=0)

    def on_first(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.amount)
        ctx.emit((event.user, self.total.get()))

    def on_second(self, event: Any, ctx: ProcessContext) -> None:
        assert ctx.timestamp is not None
        self.total.set(self.total.get() * 2)
        ctx.timer(ctx.timestamp + 3)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        ctx.emit((ctx.key, self.total.get()))


class Told(KeyedBroadcastProcess):
    total = ValueState(int, default=0)
    rates = Broadcast(str, int)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.amount * self.rates.get(event.user, 1))
        ctx.emit((event.user, self.total.get()))

    def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:
        self.rates.put(event.user, event.amount)
        for user, rate in self.rates.items():
            ctx.emit((user, rate))


class Listed(BatchProcess):
    """Lists all keys of a table by namespace."""

    sums = AggregateTable({"amount": int}, total=Sum("amount"))

    def on_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> None:
        for namespace in (b"window", b"another"):
            self.sums.update(ctx.keys, {"amount": batch.column("amount")}, namespace)

    def on_watermark(self, timestamp: int, ctx: BatchContext) -> None:
        for namespace in self.sums.namespaces():
            found = self.sums.keys_and_results(namespace)
            users = ctx.key_columns(found.keys)[0]
            batch = pa.RecordBatch.from_arrays([users, found.results.column("total")], schema=TOTAL)
            ctx.emit(batch, timestamp if timestamp < LATEST else 0)


class Spread(WindowFunction):
    windows = ValueState(int, default=0)
    chance = RandomState()

    def on_window(self, key: Any, window: Any, rows: Sequence[Any], ctx: ProcessContext) -> None:
        self.windows.set(self.windows.get() + 1)
        ctx.emit((key, max(row.amount for row in rows) - min(row.amount for row in rows)))
        ctx.emit((key, ctx.random.choice(rows).amount))
        ctx.emit_to("times", (key, window.start * 100 + self.windows.get()))


def added(before: Any, row: Any) -> tuple[str, int, float]:
    return row.user, before.amount + row.amount, before.rate + row.rate


OUTPUTS: dict[str, Aggregation] = {
    "rows": Count(),
    "amounts": Sum("amount"),
    "rates": Sum("rate"),
    "least": Min("amount"),
    "greatest": Max("rate"),
    "first": First("rate"),
    "last": Last("amount"),
    "mean": Mean("rate"),
}
WINDOWS: list[tuple[Window, int]] = [
    (Tumbling("10ms"), 0),
    (Tumbling("10ms"), 7),
    (Sliding("12ms", "4ms"), 6),
    (Session("5ms"), 0),
    (Session("3ms"), 4),
    (Tumbling.processing("10ms"), 0),
    (Sliding.processing("12ms", "4ms"), 0),
    (Session.processing("4ms"), 0),
]


def over_windows() -> Iterator[KeyedOperator]:
    for kind, lateness in WINDOWS:
        timed = kind.time == "event"
        input = TIMED if timed else PLAIN
        yield WindowAggregate(kind, OUTPUTS, input, lateness, timed)
        yield WindowReduce(kind, added, input, lateness, timed)
        yield WindowProcess(kind, Spread(), input, TOTAL, lateness, timed, {"times": TOTAL})


def running() -> Iterator[KeyedOperator]:
    per: Per
    for per in ("record", "batch", "end"):
        yield RunningAggregate(OUTPUTS, TIMED, per)


OPERATORS: list[KeyedOperator] = [
    *over_windows(),
    *running(),
    Reduce(added, TIMED),
    Process(Everything(), (TIMED,), TOTAL, {"times": TOTAL}),
    ConnectedProcess(Both(), (TIMED, TIMED), TOTAL),
    BroadcastProcess(Told(), (TIMED, CONTROL), TOTAL),
    ProcessBatches(Listed(), (TIMED,), TOTAL),
]


def doubled(row: Any) -> tuple[str, int]:
    return row.user, row.amount * 2


def letters(row: Any) -> Iterator[tuple[str, int]]:
    return ((letter, row.amount) for letter in row.user)


def totals(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("user"), batch.column("amount")], schema=TOTAL)


TRANSFORMS: list[Transform] = [
    MapRows(doubled, PAID, TOTAL),
    FlatMapRows(letters, PAID, TOTAL),
    FilterRows(lambda row: row.amount > 3, PAID),
    MapBatches(totals, PAID, TOTAL),
    FlatMapBatches(lambda batch: (totals(batch), range(batch.num_rows)), PAID, TOTAL),
    FilterBatches(lambda batch: pc.greater(batch.column("amount"), 3), PAID),
    Select(("amount",), PAID),
]


def classes_in(package: Any) -> Iterator[type]:
    modules = [package]
    if hasattr(package, "__path__"):
        modules = [import_module(found.name) for found in walk_packages(package.__path__, f"{package.__name__}.")]
    for module in modules:
        for _, found in inspect.getmembers(module, inspect.isclass):
            if found.__module__ == module.__name__:
                yield found


def test_no_operator_and_no_transform_of_ours_is_left_out() -> None:
    ours = {
        found for found in classes_in(snapshot.operators) if dataclasses.is_dataclass(found) if hasattr(found, "open")
    }
    assert ours == set(map(type, [*OPERATORS, *TRANSFORMS]))


def test_no_aggregation_and_no_kind_of_state_is_left_out() -> None:
    concrete = {found for found in classes_in(aggregations) if not found.__name__.startswith("_")}
    assert {found for found in concrete if issubclass(found, Aggregation)} - {Aggregation} == set(
        map(type, OUTPUTS.values())
    )
    public = [getattr(statebackend, name) for name in statebackend.__all__]
    kinds = {found for found in public if isinstance(found, type) and issubclass(found, Declaration)}
    assert kinds == {type(declared) for declared in Everything().states().values()} | {Timers}


# --- their replicas ---------------------------------------------------------------------------------------------------

payments = st.lists(
    st.tuples(st.sampled_from(USERS), st.integers(0, 8), st.sampled_from([0.1, 1e16, -0.0, -1e16])), max_size=20
)


@st.composite
def inputs(draw: st.DrawFn, operator: KeyedOperator) -> list[Step]:
    """Rows, with times that go on, and often an end."""
    steps: list[Step] = []
    now = 0
    for kind in draw(st.lists(st.sampled_from(["rows", "rows", "time"]), min_size=3, max_size=10)):
        if kind == "rows":
            rows, input = draw(payments), draw(st.integers(0, len(operator.inputs) - 1))
            timed = operator.inputs[input].timed
            times = [now + draw(st.integers(-8, 12)) for _ in rows] if timed else None
            steps.append(Arrive(rows, times, input))
        else:
            now += draw(st.integers(1, 15))
            steps += [EventTime(now), Clock(1_000 + now)]
    return [*steps, EventTime(LATEST), EndOfInput()] if draw(st.booleans()) else steps


HERE = [life for life in Life if life is not Life.ELSEWHERE]


def name_of(operator: KeyedOperator | Transform) -> str:
    return operator.label


@pytest.mark.parametrize("operator", OPERATORS, ids=name_of)
@settings(max_examples=max(3, settings().max_examples // 8))
@given(st.data())
def test_replicas_of_an_operator_emit_the_same_whatever_their_lives(
    operator: KeyedOperator, data: st.DataObject
) -> None:
    steps = data.draw(inputs(operator))
    check_replicas(
        operator,
        steps,
        marker=data.draw(st.integers(0, len(steps))),
        parallelism=data.draw(st.integers(1, 2)),
        lives=data.draw(st.lists(st.sampled_from(HERE), min_size=2, max_size=2, unique=True)),
    )


def many_rows(times: bool = True, per: int = 40) -> list[Step]:
    chance = random.Random(1)
    steps: list[Step] = []
    for now in range(0, 60, 10):
        rows = [(chance.choice(USERS), chance.randint(0, 8), chance.random()) for _ in range(per)]
        steps.append(Arrive(rows, [now + chance.randint(-8, 12) for _ in rows] if times else None))
        steps += [EventTime(now), Clock(1_000 + now)]
    return [*steps, EventTime(LATEST), EndOfInput()]


def batch_of_rows(rows: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], schema=PAID)


@pytest.mark.parametrize("operator", OPERATORS, ids=name_of)
def test_replicas_of_an_operator_with_many_rows_emit_the_same_in_all_lives_in_this_process(
    operator: KeyedOperator,
) -> None:
    check_replicas(operator, many_rows(operator.timed or operator.inputs[0].timed), marker=9, lives=HERE)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=name_of)
def test_replicas_of_a_transform_emit_the_same(transform: Transform) -> None:
    rows = [(user, len(user), 0.5) for user in USERS]
    check_replicas(transform, [Arrive(batch_of_rows(rows), list(range(12)))], lives=[Life.AGAIN])


@pytest.mark.parametrize(
    "tested", [OPERATORS[0], OPERATORS[2], OPERATORS[-4], OPERATORS[-3], OPERATORS[-2], TRANSFORMS[1]], ids=name_of
)
def test_replicas_in_another_process_emit_the_same(tested: KeyedOperator | Transform) -> None:
    steps = many_rows()
    if tested in TRANSFORMS:
        steps = [Arrive(batch_of_rows(step.rows), step.times) for step in steps if isinstance(step, Arrive)]
    check_replicas(tested, steps, lives=[Life.ELSEWHERE])


# --- errors that make replicas differ ---------------------------------------------------------------------------------


class Wrong(KeyedProcess):
    """The base of functions that are not deterministic."""

    output: ClassVar[dict[str, Any]] = {"user": str, "found": int}
    total = ValueState(int, default=0)


class LooksAtTheClock(Wrong):
    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.emit((event.user, int(time.time()) // 86_400))


class DrawsElsewhere(Wrong):
    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.emit((event.user, random.getrandbits(8)))


class IteratesOverASet(Wrong):
    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        for place, _ in enumerate({event.user, "nobody", "somebody"}):
            ctx.emit((event.user, place))
        for name in {event.user, "nobody", "somebody"}:
            ctx.emit((name, 0))


class KeepsAnAttribute(Wrong):
    def open(self, ctx: OpenContext) -> None:
        self.rows = 0

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.rows += 1
        ctx.emit((event.user, self.rows))


class GoesByItsPartition(Wrong):
    def open(self, ctx: OpenContext) -> None:
        self.parallelism = ctx.parallelism

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + self.parallelism)
        ctx.emit((event.user, self.total.get()))


class LocalTime(Wrong):
    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.emit((event.user, time.localtime(0).tm_hour))


@pytest.mark.parametrize(
    ("wrong", "life"),
    [
        (LooksAtTheClock, Life.ELSEWHERE),
        (DrawsElsewhere, Life.AGAIN),
        (IteratesOverASet, Life.ELSEWHERE),
        (LocalTime, Life.ELSEWHERE),
        (KeepsAnAttribute, Life.RESTORED),
        (GoesByItsPartition, Life.RESCALED),
    ],
)
def test_a_function_that_is_not_deterministic_is_found_in_the_life_that_shows_it(
    wrong: type[KeyedProcess], life: Life
) -> None:
    steps = many_rows(times=False, per=10)
    with pytest.raises(ReplicasDiffer) as caught:
        check_replicas(wrong, steps, columns=PAID, key="user", marker=9)
    what, suspects = life.value
    assert f"process({wrong.__name__}): a replica that {what} emits other rows" in str(caught.value)
    assert str(caught.value).endswith(f"perhaps these depend on {suspects}.")


@pytest.mark.parametrize("operator", [OPERATORS[0], OPERATORS[2], OPERATORS[-1]], ids=name_of)
def test_results_that_come_as_they_lie_in_memory_are_found(
    monkeypatch: pytest.MonkeyPatch, operator: KeyedOperator
) -> None:
    monkeypatch.setattr(TableSpace, "in_order", lambda _, slots: slots)
    with pytest.raises(ReplicasDiffer, match=r"restored from a snapshot at the marker(.|\n)*lie in memory"):
        check_replicas(operator, many_rows(), marker=9, lives=[Life.AGAIN, Life.RESTORED])


def test_the_message_names_the_step_the_output_and_the_rows() -> None:
    steps = [Arrive([("ann", 3, 0.5)]), Arrive([("bob", 4, 0.5)]), Arrive([("ann", 5, 0.5)])]
    with pytest.raises(ReplicasDiffer) as caught:
        check_replicas(
            KeepsAnAttribute, steps, columns=PAID, key="user", parallelism=1, marker=1, lives=[Life.RESTORED]
        )
    assert str(caught.value) == (
        "process(KeepsAnAttribute): a replica that was restored from a snapshot at the marker emits other rows than "
        "one that lived undisturbed; the marker stands after step 1\n"
        "step 2 of 3: 1 row arrives at input 0\n"
        "partition 0, row 1:\n"
        "    undisturbed: {'user': 'bob', 'found': 2}\n"
        "    the other:   {'user': 'bob', 'found': 1}\n"
        "Rows may depend on the rows and times before them alone; perhaps these depend on what it keeps outside of its "
        "declared state, or the order in which things lie in memory."
    )


class Bits(KeyedProcess):
    """Emits another zero each time that it is opened."""

    output: ClassVar[dict[str, Any]] = {"zero": float}
    opened: ClassVar[list[int]] = []

    def open(self, ctx: OpenContext) -> None:
        self.opened.append(1)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.emit((0.0 if len(self.opened) % 2 else -0.0,))


def test_replicas_are_compared_to_the_bit() -> None:
    with pytest.raises(ReplicasDiffer, match=r"undisturbed: \{'zero': 0.0\}\n    the other:   \{'zero': -0.0\}"):
        check_replicas(Bits, [Arrive([("ann", 3, 0.5)])], columns=PAID, key="user", parallelism=1, lives=[Life.AGAIN])
