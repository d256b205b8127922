"""Operators that are interrupted between two calls of a function: nothing comes of it but time, wherever it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.frames import EARLIEST
from snapshot.operators.broadcast import Broadcast, BroadcastProcess, KeyedBroadcastProcess
from snapshot.operators.function_operator import ConnectedProcess, KeyedCoProcess, KeyedProcess, Process
from snapshot.operators.keyed_function import ProcessContext
from snapshot.operators.operator import Input, KeyedOperator
from snapshot.operators.reduce import Reduce
from snapshot.operators.row_class import Row, batch_of
from snapshot.operators.rows import Rows
from snapshot.operators.windows.calls import WindowFunction
from snapshot.operators.windows.kinds import Session, Sliding, Tumbling, Window
from snapshot.operators.windows.process import WindowProcess
from snapshot.testing.operators import OperatorHarness, OperatorSnapshot
from statebackend.states.declarations import ValueState
from statebackend.states.namespaces import NO_NAMESPACE

PAID = pa.schema([("user", pa.string()), ("amount", pa.int64())])
TOTAL = pa.schema([("user", pa.string()), ("total", pa.int64())])
LARGE = pa.schema([("amount", pa.int64())])
TIMED, CONTROL = Input(PAID, ("user",), True), Input(PAID, (), True)

Work = tuple[int, Rows] | int
"""Rows of an input, or event time."""


class Reporting(KeyedProcess):
    """The running total, large payments aside; each is reported some time later, and that once more."""

    total = ValueState(int, default=0)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.amount)
        assert ctx.timestamp is not None
        ctx.timer(ctx.timestamp + event.amount)
        ctx.emit((event.user, self.total.get()))
        if event.amount >= 5:
            ctx.emit_to("large", [event.amount])

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        ctx.emit((ctx.key, -self.total.get()))
        self.total.set(self.total.get() + 1)
        if at % 3 == 0:
            ctx.timer(at + 1)


class Both(KeyedCoProcess):
    total = ValueState(int, default=0)

    def on_first(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.amount)
        ctx.emit((event.user, self.total.get()))

    def on_second(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() * 2)
        ctx.emit((event.user, self.total.get()))


class Told(KeyedBroadcastProcess):
    total = ValueState(int, default=0)
    rates = Broadcast(str, int)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.amount * self.rates.get(event.user, 1))
        ctx.emit((event.user, self.total.get()))

    def on_broadcast(self, event: Any, ctx: ProcessContext) -> None:
        self.rates.put(event.user, event.amount)
        ctx.emit((event.user, event.amount))


def added(before: Row, row: Row) -> tuple[str, int]:
    return row.user, before.amount + row.amount


class Summed(WindowFunction):
    total = ValueState(int, default=0)

    def on_window(self, key: Any, window: Any, rows: Sequence[Any], ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + 1)
        ctx.emit((key, sum(row.amount for row in rows)))
        if len(rows) >= 3:
            ctx.emit_to("large", [len(rows)])


def windows(kind: Window, lateness: int = 0) -> WindowProcess:
    timed = kind.time == "event"
    input = TIMED if timed else Input(PAID, ("user",), False)
    return WindowProcess(kind, Summed(), input, TOTAL, lateness, timed, {"large": LARGE})


REPORTING = Process(Reporting(), (TIMED,), TOTAL, {"large": LARGE})
OPERATORS: dict[str, KeyedOperator] = {
    "process": REPORTING,
    "connected": ConnectedProcess(Both(), (TIMED, TIMED), TOTAL),
    "broadcast": BroadcastProcess(Told(), (TIMED, CONTROL), TOTAL),
    "reduce": Reduce(added, TIMED),
}
WINDOWS: dict[str, KeyedOperator] = {
    "tumbling": windows(Tumbling("10ms")),
    "sliding, late": windows(Sliding("12ms", "4ms"), 6),
    "sessions": windows(Session("5ms")),
    "sessions, late": windows(Session("3ms"), 4),
}
ALL = OPERATORS | WINDOWS


class Patience:
    """Says when it is time: at those of all questions whose turn it is."""

    def __init__(self, gaps: Sequence[int]) -> None:
        self._gaps = deque(gaps)
        self.interrupted = 0

    def __call__(self) -> bool:
        if not self._gaps:
            return False
        self._gaps[0] -= 1
        if self._gaps[0] > 0:
            return False
        self._gaps.popleft()
        self.interrupted += 1
        return True


def run(
    operator: KeyedOperator, folder: Path, works: Sequence[Work], overdue: Callable[[], bool], cuts: Sequence[int] = ()
) -> list[tuple[object, ...]]:
    """All that comes out, with its times and at last with what is in the state. After as many calls as each of `cuts`
    says, the operator is cut, given up, and restored: with the event time that had been announced by then, which it is
    told again, and with the rows that it had not taken.
    """
    left, found, snapshot = deque(works), list[tuple[object, ...]](), None
    announced = EARLIEST
    for calls in (*cuts, -1):
        with OperatorHarness(operator, folder, snapshot=snapshot, overdue=overdue) as harness:
            announced = _call(harness, left, calls, announced)
            for side in (None, *operator.sides):
                times = harness.emitted_times(side)
                found += [(side, *row, time) for row, time in zip(harness.emitted(side), times, strict=True)]
            cut = harness.cut()
            snapshot = OperatorSnapshot(cut.epoch, cut.parts, cut.broadcast, announced)
            if calls < 0 and operator is not OPERATORS["reduce"]:
                found += [("state", user, total(harness, user)) for user in "abc"]
    return found


def total(harness: OperatorHarness, user: str) -> object:
    state = harness.state(user)
    state.set_namespace(NO_NAMESPACE)
    return state["total"].get()


def _call(harness: OperatorHarness, left: deque[Work], calls: int, announced: int) -> int:
    operator = harness._members[0].operator
    while left and calls:
        calls -= 1
        work = left.popleft()
        if isinstance(work, int):
            if operator.watermark(work) is False:
                left.appendleft(work)
            else:
                announced = work
            continue
        input, rows = work
        taken = operator.rows(input, rows)
        if taken is not None and taken < len(rows):
            assert taken > 0
            left.appendleft((input, rows.slice(taken, len(rows) - taken)))
    return announced


def batch(rows: Sequence[tuple[str, int, int]]) -> Rows:
    return Rows(batch_of([row[:2] for row in rows], PAID, "rows"), np.array([row[2] for row in rows], dtype=np.int64))


payments = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(0, 40)), min_size=1, max_size=40)


def works_of(drawn: Sequence[tuple[int, Sequence[tuple[str, int, int]]] | int], inputs: int) -> list[Work]:
    """Event time does not go back."""
    works: list[Work] = []
    now = 0
    for one in drawn:
        if isinstance(one, int):
            now = max(now, one)
            works.append(now)
        else:
            works.append((one[0] % inputs, batch(one[1])))
    return works


drawn_works = st.lists(st.tuples(st.integers(0, 1), payments) | st.integers(0, 60), min_size=1, max_size=8)


@settings(max_examples=settings().max_examples // 4)
@given(st.sampled_from(sorted(ALL)), drawn_works, st.lists(st.integers(1, 12), max_size=40))
def test_wherever_it_is_interrupted_the_same_comes_out_in_the_same_order(
    name: str, drawn: list[Any], gaps: list[int]
) -> None:
    operator = ALL[name]
    works = works_of(drawn, len(operator.inputs))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        assert run(operator, folder, works, Patience(gaps)) == run(operator, folder, works, lambda: False)


@settings(max_examples=settings().max_examples // 4)
@given(
    st.sampled_from(sorted(ALL)),
    drawn_works,
    st.lists(st.integers(1, 12), max_size=40),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
def test_what_is_restored_from_a_cut_in_the_middle_goes_on_as_if_nothing_had_been(
    name: str, drawn: list[Any], gaps: list[int], cuts: list[int]
) -> None:
    operator = ALL[name]
    works = works_of(drawn, len(operator.inputs))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found = run(operator, folder, works, Patience(gaps), cuts)
        assert sorted(found, key=str) == sorted(run(operator, folder, works, lambda: False), key=str)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_after_a_call_that_took_long_it_stops_at_once(tmp_path: Path, name: str) -> None:
    operator = OPERATORS[name]
    with OperatorHarness(operator, tmp_path, overdue=lambda: True) as harness:
        member = harness._members[0].operator
        rows = batch([("a", 1, 1), ("b", 2, 2), ("c", 3, 3)])
        assert [member.rows(input, rows) for input in range(len(operator.inputs))] == [1] * len(operator.inputs)
        assert len(harness.emitted()) == len(operator.inputs)


def test_timers_that_are_due_wait_for_the_next_time(tmp_path: Path) -> None:
    with OperatorHarness(REPORTING, tmp_path, overdue=lambda: True) as harness:
        harness.rows([("a", 1), ("b", 1), ("c", 1)], [1, 1, 4])
        harness.clear()
        member = harness._members[0].operator
        emitted = []
        while member.watermark(10) is False:
            emitted.append(len(harness.emitted()))
        assert emitted == [1, 2, 3]
        assert harness.emitted_times() == [2, 2, 5]


class Alarm(KeyedProcess):
    total = ValueState(int, default=0)

    def on_event(self, event: Any, ctx: ProcessContext) -> None:
        ctx.processing_timer(event.amount)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        assert ctx.firing == "processing"
        ctx.emit((ctx.key, at))


def test_so_do_those_of_processing_time(tmp_path: Path) -> None:
    alarm = Process(Alarm(), (Input(PAID, ("user",), False),), TOTAL)
    with OperatorHarness(alarm, tmp_path, overdue=lambda: True) as harness:
        harness.rows([("a", 7), ("b", 5), ("c", 50)])
        member = harness._members[0].operator
        member.wake(10)
        assert (harness.emitted(), member.wakes_at()) == ([("b", 5)], 7)
        harness.wake(10)
        assert (harness.emitted(), member.wakes_at()) == ([("b", 5), ("a", 7)], 50)


@pytest.mark.parametrize("name", sorted(WINDOWS))
def test_results_of_windows_that_are_over_wait_for_the_next_time(tmp_path: Path, name: str) -> None:
    with OperatorHarness(WINDOWS[name], tmp_path, overdue=lambda: True) as harness:
        harness.rows([("a", 1), ("b", 2), ("c", 4), ("a", 8)], [1, 1, 2, 41])
        member = harness._members[0].operator
        emitted = []
        while member.watermark(100) is False:
            emitted.append(len(harness.emitted()))
        assert len(emitted) >= 3
        assert all(after - before <= 1 for before, after in zip([0, *emitted], emitted, strict=False))
        assert {total for _, total in harness.emitted()} == {1, 2, 4, 8}


def test_so_do_those_of_windows_of_processing_time(tmp_path: Path) -> None:
    paid = [("a", 1), ("b", 2), ("c", 4)]
    for kind in (Tumbling.processing("10ms"), Session.processing("10ms")):
        with OperatorHarness(windows(kind), tmp_path, overdue=lambda: True) as harness:
            harness.rows(paid)
            member = harness._members[0].operator
            member.wake(10)
            assert (len(harness.emitted()), member.wakes_at()) == (1, 10)
            first, snapshot = harness.emitted(), harness.cut()
        with OperatorHarness(windows(kind), tmp_path, snapshot=snapshot, parallelism=2) as harness:
            harness.wake(10)
            assert sorted(first + harness.emitted()) == paid


LATER = [("a", 10), ("b", 20), ("c", 40), ("d", 80)]


@pytest.mark.parametrize("restored", [None, 1, 3])
@pytest.mark.parametrize("lateness", [0, 100])
def test_a_row_of_a_window_that_has_begun_to_give_results_is_late_for_those_keys_alone_that_have_theirs(
    tmp_path: Path, lateness: int, restored: int | None
) -> None:
    operator = windows(Tumbling("10ms"), lateness)
    before, stop = {"a": 1, "b": 2, "c": 4}, ["now"]
    with OperatorHarness(operator, tmp_path, overdue=lambda: bool(stop)) as harness:
        harness.rows(list(before.items()), [1, 2, 3])
        assert harness._members[0].operator.watermark(25) is False
        ((given, amount),) = harness.emitted()
        snapshot = harness.cut()
        stop.clear()
        if restored is None:
            harness.clear()
            found = finished(harness)
    if restored is not None:
        with OperatorHarness(operator, tmp_path, snapshot=snapshot, parallelism=restored) as harness:
            found = finished(harness)
    rows = dict(LATER)
    expected = [(key, before.get(key, 0) + rows[key]) for key in rows if key != given]
    if lateness:
        expected.append((given, amount + rows[given]))
    assert sorted(found[None]) == sorted(expected)
    assert found["late"] == ([] if lateness else [(given, rows[given])])


def finished(harness: OperatorHarness) -> dict[str | None, list[Any]]:
    """What comes of more rows for the window, and of event time that goes on."""
    harness.rows(LATER, [5] * len(LATER))
    harness.cut()
    harness.watermark(25)
    harness.watermark(200)
    return {side: harness.emitted(side) for side in (None, "late")}


@pytest.mark.parametrize("restored", [False, True])
def test_where_sessions_give_results_it_is_as_late_as_the_last_one_that_has(tmp_path: Path, restored: bool) -> None:
    operator, stop = windows(Session("5ms")), ["now"]
    with OperatorHarness(operator, tmp_path, overdue=lambda: bool(stop)) as harness:
        harness.rows([("a", 1), ("b", 2), ("c", 4)], [1, 10, 20])
        member = harness._members[0].operator
        assert [member.watermark(30) for _ in range(2)] == [False, False]
        assert harness.emitted() == [("a", 1), ("b", 2)]
        snapshot = harness.cut()
        stop.clear()
        if not restored:
            harness.clear()
            found = sessions_finished(harness)
    if restored:
        with OperatorHarness(operator, tmp_path, snapshot=snapshot) as harness:
            found = sessions_finished(harness)
    assert found == ([("c", 44)], [("a", 10), ("b", 20)])


def sessions_finished(harness: OperatorHarness) -> tuple[list[Any], list[Any]]:
    harness.rows([("a", 10), ("b", 20), ("c", 40)], [2, 9, 21])
    harness.watermark(30)
    return harness.emitted(), harness.emitted("late")


def test_rows_are_asked_for_in_ever_larger_steps_but_not_too_large(tmp_path: Path) -> None:
    asked: list[int] = []
    taken: list[int] = []

    class Counting(KeyedProcess):
        total = ValueState(int, default=0)

        def on_event(self, event: Any, ctx: ProcessContext) -> None:
            taken.append(event.amount)

    def overdue() -> bool:
        asked.append(len(taken))
        return False

    with OperatorHarness(Process(Counting(), (TIMED,), TOTAL), tmp_path, overdue=overdue) as harness:
        harness.rows([("a", n) for n in range(5000)], [0] * 5000)
    assert taken == list(range(5000))
    steps = [after - before for before, after in zip([0, *asked], asked, strict=False)]
    assert steps[:6] == [1, 2, 4, 8, 16, 32]
    assert max(steps) == 32
