"""Functions of one row at a time: state of the right key, timers, outputs with times, cut and restored anywhere."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot import AggregateTable, BatchContext, BatchProcess, Collection, Count, InvalidProgram, Stream, ToDriver
from snapshot.cut.frames import LATEST
from snapshot.operators.function_operator import KeyedProcess, Process
from snapshot.operators.keyed_function import (
    KeyedFunction,
    OpenContext,
    ProcessContext,
    UnknownSide,
    WithoutEventTime,
    WithoutTimers,
)
from snapshot.operators.operator import Input, KeyedOperator
from snapshot.operators.row_class import WrongRow
from snapshot.operators.windows.calls import WindowFunction
from snapshot.operators.windows.kinds import Session, Tumbling
from snapshot.operators.windows.process import WindowProcess
from snapshot.testing.operators import OperatorHarness
from statebackend.ids import Partition
from statebackend.states.declarations import AggregatingState, ListState, MapState, NotOpen, ReducingState, ValueState
from statebackend.states.namespaces import Window
from statebackend.states.row_form import WrongValueType

PAID = pa.schema([("user", pa.string()), ("amount", pa.int64())])
TOTAL = pa.schema([("user", pa.string()), ("total", pa.int64())])
LARGE = pa.schema([("amount", pa.int64())])
TIMED, UNTIMED = Input(PAID, ("user",), True), Input(PAID, ("user",), False)


class Totals(KeyedProcess):
    """The running total; a user who pays nothing for 10 ms is reported and forgotten; large payments aside."""

    total = ValueState(int, default=0)
    last = ValueState(int)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        assert ctx.key == event.user
        self.total.set(self.total.get() + event.amount)
        assert ctx.timestamp is not None
        last = self.last.get()
        if last is None or ctx.timestamp > last:
            if last is not None:
                ctx.delete_timer(last + 10)
            ctx.timer(ctx.timestamp + 10)
            self.last.set(ctx.timestamp)
        ctx.emit((event.user, self.total.get()))
        if event.amount >= 5:
            ctx.emit_to("large", [event.amount])

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        assert ctx.firing == "event"
        ctx.emit({"total": -self.total.get(), "user": ctx.key})
        self.total.clear()
        self.last.clear()


TOTALS = Process(Totals(), (TIMED,), TOTAL, {"large": LARGE})

Step = tuple[Literal["row"], str, int, int] | tuple[Literal["watermark"], int] | tuple[Literal["split"]]


@dataclass
class Model:
    """What `Totals` does, in plain Python, one row after the other."""

    total: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    main: list[tuple[object, ...]] = field(default_factory=list)
    large: list[tuple[object, ...]] = field(default_factory=list)

    def row(self, user: str, amount: int, time: int) -> None:
        self.total[user] = self.total.get(user, 0) + amount
        self.last[user] = max(self.last.get(user, time), time)
        self.main.append((user, self.total[user], time))
        if amount >= 5:
            self.large.append((amount, time))

    def watermark(self, timestamp: int) -> None:
        due = sorted((last + 10, user) for user, last in self.last.items() if last + 10 <= timestamp)
        for at, user in due:
            self.main.append((user, -self.total.pop(user), at))
            del self.last[user]


def emitted(harness: OperatorHarness, side: str | None = None) -> list[tuple[object, ...]]:
    """The rows that came out, each with its time behind."""
    return [(*row, time) for row, time in zip(harness.emitted(side), harness.emitted_times(side), strict=True)]


users = st.sampled_from(["a", "b", "c", "d", "é"])
steps = st.lists(
    st.tuples(st.just("row"), users, st.integers(-3, 8), st.integers(0, 40))
    | st.tuples(st.just("watermark"), st.integers(0, 60))
    | st.just(("split",)),
    max_size=25,
)


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.tuples(steps, st.integers(1, 3), st.sampled_from(["heap", "rocksdb"])), min_size=1, max_size=3))
def test_batches_of_any_size_and_cuts_anywhere_make_no_difference(
    lives: list[tuple[list[Step], int, Literal["heap", "rocksdb"]]],
) -> None:
    model, found, large, snapshot, watermark = Model(), [], [], None, 0
    with TemporaryDirectory() as scratch:
        for life, parallelism, backend in lives:
            with OperatorHarness(
                TOTALS, Path(scratch), parallelism=parallelism, backend=backend, snapshot=snapshot
            ) as harness:
                watermark = play(harness, model, life, watermark)
                found += emitted(harness)
                large += emitted(harness, "large")
                snapshot = harness.cut()
    assert by_user(found) == by_user(model.main)
    assert sorted(large) == sorted(model.large)


def play(harness: OperatorHarness, model: Model, life: Sequence[Step], watermark: int) -> int:
    """Rows that follow on each other come as one batch, unless it is split."""
    waiting: list[tuple[str, int, int]] = []
    end: Step = ("watermark", watermark)
    for step in (*life, end):
        if step[0] == "row":
            waiting.append((step[1], step[2], step[3]))
            model.row(*waiting[-1])
            continue
        if waiting:
            harness.rows([row[:2] for row in waiting], [row[2] for row in waiting])
            waiting.clear()
        if step[0] == "watermark":
            watermark = max(watermark, step[1])
            harness.watermark(watermark)
            model.watermark(watermark)
    return watermark


def by_user(rows: Sequence[tuple[object, ...]]) -> dict[object, list[tuple[object, ...]]]:
    """The order of different users' rows depends on the partition that each is in."""
    return {user: [row for row in rows if row[0] == user] for user in {row[0] for row in rows}}


def test_timers_fire_in_the_order_of_their_times_and_emit_at_them(tmp_path: Path) -> None:
    with OperatorHarness(TOTALS, tmp_path) as harness:
        harness.rows([("b", 1), ("a", 2)], times=[7, 3])
        harness.watermark(12)
        assert emitted(harness) == [("b", 1, 7), ("a", 2, 3)]
        harness.watermark(LATEST)
        assert emitted(harness)[2:] == [("a", -2, 13), ("b", -1, 17)]


class Reminder(KeyedProcess):
    """Reports a user 100 ms after each row."""

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.processing_timer(ctx.processing_time + 100)
        if event.amount < 0:
            ctx.delete_processing_timer(ctx.processing_time + 100)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        assert (ctx.firing, ctx.processing_time >= at) == ("processing", True)
        ctx.emit((ctx.key, at))


def test_processing_timers_fire_when_the_clock_says_so_also_after_a_restore(tmp_path: Path) -> None:
    operator = Process(Reminder(), (TIMED,), TOTAL)
    with OperatorHarness(operator, tmp_path, parallelism=2) as harness:
        assert harness.wakes_at() is None
        harness.now = 1_000
        harness.rows([("a", 1), ("b", 1), ("c", -1)], times=[5, 5, 5])
        harness.watermark(6)
        assert harness.wakes_at() == 1_100
        harness.now = 1_050
        harness.rows([("a", 1)], times=[9])
        harness.wake(1_120)
        assert sorted(emitted(harness)) == [("a", 1_100, 6), ("b", 1_100, 6)]
        snapshot = harness.cut()
    with OperatorHarness(operator, tmp_path, snapshot=snapshot) as harness:
        assert harness.wakes_at() == 1_150
        harness.wake(1_149)
        assert harness.emitted() == []
        harness.wake(2_000)
        assert emitted(harness) == [("a", 1_150, 6)]


def test_before_the_first_watermark_what_processing_timers_emit_has_the_processing_time(tmp_path: Path) -> None:
    class Stamped(Reminder):
        def on_timer(self, at: int, ctx: ProcessContext) -> None:
            ctx.emit((ctx.key, ctx.timestamp))
            ctx.emit_to("large", [at])

    with OperatorHarness(Process(Stamped(), (TIMED,), TOTAL, {"large": LARGE}), tmp_path) as harness:
        harness.rows([("a", 1)], times=[5])
        harness.wake(1_000)
        assert emitted(harness) == [("a", 1_000, 1_000)]
        assert emitted(harness, "large") == [(100, 1_000)]


def test_without_event_times_nothing_that_comes_out_has_one(tmp_path: Path) -> None:
    class Untimed(Reminder):
        def on_event(self, event: Any, ctx: ProcessContext) -> None:
            assert ctx.timestamp is None
            super().on_event(event, ctx)
            ctx.emit(event)
            ctx.emit_to("large", [1])

    with OperatorHarness(Process(Untimed(), (UNTIMED,), TOTAL, {"large": LARGE}), tmp_path) as harness:
        harness.rows([("a", 1)])
        harness.wake(1_000)
        assert emitted(harness) == [("a", 1, None), ("a", 100, None)]
        assert emitted(harness, "large") == [(1, None)]


class Repeats(KeyedProcess):
    """Each row as often as its amount says."""

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        for number in range(event.amount):
            ctx.emit((event.user, number))


def test_however_many_rows_a_row_becomes_they_have_its_time(tmp_path: Path) -> None:
    with OperatorHarness(Process(Repeats(), (TIMED,), TOTAL), tmp_path) as harness:
        harness.rows([("a", 0), ("b", 3), ("c", 0), ("d", 1)], times=[1, 2, 3, 4])
        assert emitted(harness) == [("b", 0, 2), ("b", 1, 2), ("b", 2, 2), ("d", 0, 4)]


class Everything(KeyedProcess):
    """One state of each kind."""

    value = ValueState("int32", default=0)
    pair = ValueState(tuple[int, float])
    moments = ValueState(pa.timestamp("ms"))
    values = ListState(int)
    counts = MapState(int, int)
    most = ReducingState(int, max)
    text: AggregatingState[int, str, int] = AggregatingState(str, str, lambda text, value: text + str(value), len)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.values.add(event.amount)
        self.counts.put(event.amount, (self.counts.get(event.amount) or 0) + 1)
        self.most.add(event.amount)
        self.text.add(event.amount)
        self.value.set(self.value.get() + 1)
        ctx.emit((repr((list(self.values.get()), dict(self.counts.items()), self.most.get(), self.text.get())), 0))


def test_states_of_every_kind_are_attributes_of_the_instance(tmp_path: Path) -> None:
    with OperatorHarness(Process(Everything(), (UNTIMED,), TOTAL), tmp_path) as harness:
        harness.rows([("a", 1), ("b", 9), ("a", 1), ("a", 0)])
        assert harness.emitted()[3].user == "([1, 1, 0], {0: 1, 1: 2}, 1, 3)"
        assert harness.state("a")["value"].get() == 3


def test_a_program_with_any_declared_state_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(Process(Everything(), (UNTIMED,), TOTAL)))
    assert (again.label, again.states.keys()) == ("process(Everything)", Everything().states().keys())


def test_state_that_is_not_open_says_so_and_the_class_has_the_declaration() -> None:
    with pytest.raises(NotOpen, match="a state of Totals is used before it is opened"):
        Totals().total.get()
    assert isinstance(Totals.total, ValueState)


@dataclass(frozen=True)
class Limited(KeyedProcess):
    """A function with parameters, that inherits a state and drops another."""

    limit: int
    seen = ValueState(int, default=0)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        if self.seen.get() < self.limit:
            self.seen.set(self.seen.get() + 1)
            ctx.emit((ctx.key, self.seen.get()))


def test_an_instance_may_have_parameters_and_be_frozen(tmp_path: Path) -> None:
    function = Limited(2)
    with OperatorHarness(Process(function, (UNTIMED,), TOTAL), tmp_path) as harness:
        harness.rows([("a", 0)] * 3 + [("b", 0)])
        assert harness.emitted() == [("a", 1), ("a", 2), ("b", 1)]
    with pytest.raises(NotOpen):
        function.seen.get()


def test_a_subclass_inherits_states_replaces_and_drops_them() -> None:
    class Child(Totals):
        last = ValueState(str)  # type: ignore[assignment]
        total = None  # type: ignore[assignment]
        more = ValueState(int)

    assert set(Child().states()) == {"last", "more"}
    assert Child().states()["last"] is Child.last


class Opened(KeyedProcess):
    """Counts, in plain attributes that a restore loses, and notes when it is opened and closed."""

    log: list[tuple[str, Partition]]

    def __init__(self, log: list[tuple[str, Partition]]) -> None:
        self.__dict__["log"] = log

    def __deepcopy__(self, memo: object) -> Opened:
        return self

    def open(self, ctx: OpenContext) -> None:
        self.count = 0
        self.partition = ctx.partition
        self.log.append(("open", ctx.partition))

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.count += 1
        ctx.emit((ctx.key, self.count))

    def close(self) -> None:
        self.log.append(("close", self.partition))


def test_an_instance_is_opened_and_closed_once_in_each_partition_and_each_has_its_own(tmp_path: Path) -> None:
    log: list[tuple[str, Partition]] = []
    with OperatorHarness(Process(Opened(log), (UNTIMED,), TOTAL), tmp_path, parallelism=2) as harness:
        assert log == [("open", 0), ("open", 1)]
        harness.rows([(user, 0) for user in "abcdefgh"])
        counts = [row.total for row in harness.emitted()]
        assert counts == [*range(1, counts.index(1, 1) + 1), *range(1, len(counts) - counts.index(1, 1) + 1)]
    assert log[2:] == [("close", 0), ("close", 1)]


def test_keys_of_several_columns_are_tuples(tmp_path: Path) -> None:
    class Pairs(KeyedProcess):
        seen = ValueState(int, default=0)

        def on_event(self, event: Any, ctx: ProcessContext) -> None:
            self.seen.set(self.seen.get() + 1)
            ctx.timer(1)

        def on_timer(self, at: int, ctx: ProcessContext) -> None:
            ctx.emit((repr(ctx.key), self.seen.get()))

    operator = Process(Pairs(), (Input(PAID, ("amount", "user"), True),), TOTAL)
    with OperatorHarness(operator, tmp_path, parallelism=2) as harness:
        harness.rows([("a", 1), ("a", 2), ("a", 1), (None, None)], times=[0, 0, 0, 0])
        snapshot = harness.cut()
    with OperatorHarness(operator, tmp_path, parallelism=3, snapshot=snapshot) as harness:
        harness.watermark(1)
        assert sorted(harness.emitted()) == [("(1, 'a')", 2), ("(2, 'a')", 1), ("(None, None)", 1)]


BERLIN = ZoneInfo("Europe/Berlin")
SHOP_USER = pa.struct([("shop", pa.int64()), ("user", pa.string())])


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (SHOP_USER, {"shop": 1, "user": "a"}, (1, "a")),
        (pa.timestamp("ms", "Europe/Berlin"), datetime(2026, 7, 1, 2, tzinfo=BERLIN), datetime(2026, 7, 1, tzinfo=UTC)),
        (pa.timestamp("ns"), datetime(2026, 7, 1), datetime(2026, 7, 1)),
        (pa.float64(), -0.0, 0.0),
        (pa.date32(), date(2026, 7, 1), date(2026, 7, 1)),
        (pa.decimal128(5, 2), Decimal("1.2"), Decimal("1.20")),
    ],
    ids=["struct", "zone", "nanoseconds", "float", "date", "decimal"],
)
def test_a_key_is_the_same_in_every_call(tmp_path: Path, kind: pa.DataType, value: object, key: object) -> None:
    class OfRows(KeyedProcess):
        def on_event(self, event: Any, ctx: ProcessContext) -> None:
            ctx.emit((repr(ctx.key), 0))
            ctx.timer(5)

        def on_timer(self, at: int, ctx: ProcessContext) -> None:
            ctx.emit((repr(ctx.key), at))

    class OfWindows(WindowFunction):
        def on_window(self, key: Any, window: Window, rows: Sequence[Any], ctx: ProcessContext) -> None:
            assert ctx.key is key
            ctx.emit((repr(key), window.end))

    schema = pa.schema([("key", kind), ("amount", pa.int64())])
    for keys, wanted in ((("key",), key), (("key", "amount"), (key, 1))):
        taken = Input(schema, keys, True)
        operators: tuple[KeyedOperator, ...] = (
            Process(OfRows(), (taken,), TOTAL),
            WindowProcess(Tumbling("5ms"), OfWindows(), taken, TOTAL, lateness_ms=5),
            WindowProcess(Session("5ms"), OfWindows(), taken, TOTAL, lateness_ms=5),
        )
        for operator in (one for one in operators if not one.check()):
            with OperatorHarness(operator, tmp_path) as harness:
                harness.rows([(value, 1)], [0])
                harness.watermark(5)
                harness.rows([(value, 1)], [0])
                found = [row.user for row in harness.emitted()]
                assert (len(found) >= 2, set(found)) == (True, {repr(wanted)})


def test_more_rows_and_timers_than_go_at_once_all_come_in_order(tmp_path: Path) -> None:
    count = 5_000
    with OperatorHarness(TOTALS, tmp_path) as harness:
        harness.rows([(f"{at % 3000}", 1) for at in range(count)], times=list(range(count)))
        assert [row.total for row in harness.emitted()] == [1] * 3000 + [2] * 2000
        harness.clear()
        harness.watermark(LATEST)
        assert [row.total for row in harness.emitted()] == [-1] * 1000 + [-2] * 2000
        assert harness.emitted_times() == [*range(2010, 3010), *range(3010, 5010)]


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Failing(KeyedProcess):
    """Divides by the amount; when a timer fires, by nothing."""

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.timer(5)
        ctx.emit((event.user, 6 // event.amount))

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        raise ZeroDivisionError


def test_an_exception_comes_as_it_is_with_a_note_of_the_key_and_the_row(tmp_path: Path) -> None:
    with OperatorHarness(Process(Failing(), (TIMED,), TOTAL), tmp_path) as harness:
        harness.rows([("a", 1)], times=[1])
        with pytest.raises(ZeroDivisionError) as caught:
            harness.watermark(5)
        assert caught.value.__notes__ == ["in process(Failing), for the timer in event time at 5 of the key 'a'"]
        with pytest.raises(ZeroDivisionError) as caught:
            harness.rows([("a", 1), ("b", 0)], times=[1, 2])
        assert caught.value.__notes__ == ["in process(Failing), for the key 'b' and the row Row(user='b', amount=0)"]


class Does(KeyedProcess):
    """Does with the context what it is told to."""

    total = ValueState(int, default=0)

    def __init__(self, what: Any) -> None:
        self.what = what

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.what(self, ctx)


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        (lambda me, ctx: ctx.timer(3), WithoutTimers, r"process\(Does\): a timer at 3 .* no method on_timer"),
        (lambda me, ctx: ctx.emit_to("x", (1,)), UnknownSide, r"'x' is not declared \(declared: large\)"),
        (lambda me, ctx: ctx.emit(None), WrongRow, r"process\(Does\): result 0 is a NoneType"),
        (
            lambda me, ctx: ctx.emit_to("large", ("x",)),
            WrongRow,
            "side output 'large': result 0 does not fit .*'amount'",
        ),
        (lambda me, ctx: me.total.set("x"), WrongValueType, "state 'total' is declared as int"),
    ],
)
def test_a_wrong_use_of_the_context_is_a_named_error(tmp_path: Path, what: Any, error: Any, said: str) -> None:
    operator = Process(Does(what), (TIMED,), TOTAL, {"large": LARGE})
    with OperatorHarness(operator, tmp_path) as harness, pytest.raises(error, match=said):
        harness.rows([("a", 1)], times=[1])


class Late(KeyedProcess):
    """Asks for a timer in event time."""

    def __init__(self, after: Any) -> None:
        self.after = after

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.timer(self.after(event, ctx))

    def on_timer(self, at: int, ctx: ProcessContext) -> None: ...


@pytest.mark.parametrize(
    ("after", "error"),
    [
        (lambda event, ctx: ctx.timestamp + 1000, TypeError),
        (lambda event, ctx: event.amount + 1000, WithoutEventTime),
    ],
)
def test_a_timer_in_event_time_where_there_is_none_says_how_to_have_it(
    tmp_path: Path, after: Any, error: type[Exception]
) -> None:
    with OperatorHarness(Late(after), tmp_path, columns=PAID, key="user", schema=TOTAL) as harness:
        with pytest.raises(error) as caught:
            harness.rows([("a", 1)])
        told = "\n".join([str(caught.value), *caught.value.__notes__])
        assert "the rows of this stream have no event time, so ctx.timestamp is None: give them one with" in told
        assert "with_event_time(...) near the source, or use ctx.processing_timer(ctx.processing_time + ...)" in told
    with OperatorHarness(Late(after), tmp_path, columns=PAID, key="user", schema=TOTAL, timed=True) as harness:
        harness.rows([("a", 1)], times=[1])


class Loud(KeyedProcess):
    """Doubles amounts."""

    output: ClassVar = {"user": str, "amount": int}

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.emit((event.user, 2 * event.amount))


class Counted(BatchProcess):
    """Counts rows of a key."""

    output: ClassVar = {"rows": int}
    counts = AggregateTable(rows=Count())

    def on_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> None:
        ctx.emit(self.counts.results(self.counts.update(ctx.keys, {})))


def test_a_function_is_tested_without_a_program(tmp_path: Path) -> None:
    columns = {"user": str, "amount": int}
    for function in (Loud, Loud()):
        with OperatorHarness(function, tmp_path, columns=columns, key="user") as harness:
            harness.rows([{"user": "a", "amount": 3}])
            assert harness.emitted() == [("a", 6)]
            with pytest.raises(ValueError, match=r"have no event times: give none, or have a harness with timed=True"):
                harness.rows([("a", 1)], times=[1])
    with OperatorHarness(Counted, tmp_path, columns=columns, key=["user", "amount"], parallelism=2) as harness:
        harness.rows([("a", 1), ("a", 2)])
        harness.rows([("a", 1)])
        assert sorted(harness.emitted()) == [(1,), (1,), (2,)]


def test_a_step_of_a_program_is_tested_by_its_uid(tmp_path: Path) -> None:
    paid = Stream.read(Collection([], PAID), uid="paid").key_by("user")
    program = paid.sum("amount", uid="sums").write(ToDriver(), uid="out")
    with OperatorHarness(program, tmp_path, uid="sums") as harness:
        harness.rows([("a", 1), ("a", 2)])
        assert harness.emitted() == [("a", 1), ("a", 3)]
    with pytest.raises(KeyError, match=r"no step with state and the uid 'sum'; did you mean 'sums'\?"):
        OperatorHarness(program, tmp_path, uid="sum")


def test_a_harness_says_what_it_does_not_know(tmp_path: Path) -> None:
    class Windowed(WindowFunction): ...

    class Unsaid(KeyedProcess): ...

    with pytest.raises(TypeError, match=r"a harness for Loud has to know its rows: give columns=\{...\} .* key=\.\.\."):
        OperatorHarness(Loud, tmp_path)
    with pytest.raises(TypeError, match=r"Windowed is no KeyedProcess or BatchProcess: give the program .* uid=\.\.\."):
        OperatorHarness(Windowed(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is no KeyedProcess, BatchProcess or Program"):
        OperatorHarness(print, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="Unsaid: the output schema is missing; pass schema="):
        OperatorHarness(Unsaid, tmp_path, columns=PAID, key="user")
    with pytest.raises(InvalidProgram, match="Loud: there is no key column 'usr'"):
        OperatorHarness(Loud, tmp_path, columns=PAID, key="usr")


def test_what_can_be_seen_to_be_wrong_before_it_runs_is_found() -> None:
    class Nothing(KeyedProcess):
        close = ValueState(int)  # type: ignore[assignment]

    assert TOTALS.check() == []
    odd = Input(pa.schema([("two words", pa.int64()), ("x", pa.list_(pa.int64()))]), ("x",), False)
    problems = Process(Nothing(), (odd,), pa.schema([]), {"aside": pa.schema([])}).check()
    for said in (
        "Nothing has no method on_event(self, event, ctx)",
        "Nothing declares a state 'close', which is the name of a method: choose another",
        "the output has no columns",
        "side output 'aside' has no columns",
    ):
        assert said in problems
    assert any(problem.startswith("the column 'two words' cannot be an attribute") for problem in problems)
    assert any(problem.startswith("x cannot be a key") for problem in problems)
    assert len(problems) == 6
    absent = Process(Totals(), (Input(PAID, ("usr",), True),), TOTAL).check()
    assert absent == ["there is no key column 'usr'; the columns are user, amount"]
    wrong: Any = Process(KeyedFunction(), (TIMED,), TOTAL)  # type: ignore[arg-type]
    assert "is no instance of a subclass of KeyedProcess" in wrong.check()[0]


def test_only_a_class_that_wants_timers_has_them_in_its_state() -> None:
    assert len(TOTALS.states) == 4
    assert Process(Limited(1), (UNTIMED,), TOTAL).states.keys() == {"seen"}
