"""Functions of the rows in a window, two by two or all at once, against plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.frames import LATEST
from snapshot.operators.operator import Input, KeyedOperator
from snapshot.operators.windows import aggregate, calls, reduce, session_operator
from snapshot.operators.windows.aggregate import WindowAggregate
from snapshot.operators.windows.calls import WindowFunction
from snapshot.operators.windows.kinds import Session, Sliding, Tumbling
from snapshot.operators.windows.process import WindowProcess
from snapshot.operators.windows.reduce import WindowReduce
from snapshot.operators.windows.session_contents import SessionRow, SessionTotals
from snapshot.testing.operators import OperatorHarness
from statebackend.states.declarations import ValueState
from statebackend.states.namespaces import Window
from statebackend.states.ttl import Ttl
from statebackend.tables.values.aggregations import Count
from tests.window_models import AlignedModel, Backend, Emitted, Step, compare, moment, steps

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
INPUT = Input(SCHEMA, ("user",), True)
OUTPUT = pa.schema(
    [("user", pa.string()), ("start", pa.timestamp("ms")), ("end", pa.timestamp("ms")), ("all", pa.string())]
)

kinds = st.sampled_from(
    [Tumbling("10ms"), Tumbling("7ms", "3ms"), Sliding("12ms", "5ms"), Sliding("9ms", "3ms", "1ms")]
)


def subtracted(before: Any, row: Any) -> dict[str, object]:
    """Not the same in another order."""
    return {"user": before.user, "amount": (before.amount or 0) * 2 - (row.amount or 0)}


def subtracted_all(values: Sequence[int | None]) -> tuple[object, ...]:
    total = values[0]
    for value in values[1:]:
        total = (total or 0) * 2 - (value or 0)
    return (total,)


class All(WindowFunction):
    """Says all values of a window, and in how many windows its key has been."""

    windows = ValueState(int, default=0)

    def on_window(self, key: Any, window: Window, rows: Sequence[Any], ctx: Any) -> None:
        assert {row.user for row in rows} == {ctx.key} == {key}
        self.windows.set(self.windows.get() + 1)
        ctx.emit((key, moment(window.start), moment(window.end), str([row.amount for row in rows])))
        ctx.emit_to("times", [key, self.windows.get()])


class Reduced(AlignedModel):
    def result(self, span: tuple[int, int, str | None]) -> Emitted:
        row, time = super().result(span)
        return (row[0], row[3]), time


def reducing(kind: Tumbling | Sliding, lateness: int = 0, late: bool = False) -> WindowReduce:
    return WindowReduce(kind, subtracted, INPUT, lateness, late)


def processing(kind: Tumbling | Sliding, lateness: int = 0, late: bool = False, function: Any = None) -> WindowProcess:
    sides = {"times": pa.schema([("user", pa.string()), ("times", pa.int64())])}
    return WindowProcess(kind, function or All(), INPUT, OUTPUT, lateness, late, sides)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=settings().max_examples // 4)
@given(kind=kinds, lateness=st.sampled_from([0, 8]), late=st.booleans(), work=steps, sizes=st.lists(st.integers(1, 3)))
def test_reduced_rows_are_those_of_a_plain_model(
    backend: Backend, kind: Tumbling | Sliding, lateness: int, late: bool, work: list[Step], sizes: list[int]
) -> None:
    model = Reduced(kind, lateness, subtracted_all)
    compare(lambda: reducing(kind, lateness, late), model, work, sizes, backend, late)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=settings().max_examples // 4)
@given(kind=kinds, lateness=st.sampled_from([0, 8]), late=st.booleans(), work=steps, sizes=st.lists(st.integers(1, 3)))
def test_functions_of_windows_see_the_rows_of_a_plain_model(
    backend: Backend, kind: Tumbling | Sliding, lateness: int, late: bool, work: list[Step], sizes: list[int]
) -> None:
    model = AlignedModel(kind, lateness, lambda values: (str(values),))
    compare(lambda: processing(kind, lateness, late), model, work, sizes, backend, late)


def test_states_of_a_function_are_kept_over_its_windows(tmp_path: Path) -> None:
    with OperatorHarness(processing(Tumbling("10ms")), tmp_path) as harness:
        harness.rows([("a", 1), ("b", 2), ("a", 3)], [1, 2, 13])
        harness.watermark(20)
        assert [tuple(row) for row in harness.emitted("times")] == [("a", 1), ("b", 1), ("a", 2)]
        assert harness.emitted_times("times") == [9, 9, 19]


class Seen(WindowFunction):
    """Says what time it is, and in how many windows its key has been of which none came 100 ms after another."""

    seen = ValueState(int, default=0, ttl=Ttl("100ms"))

    def on_window(self, key: Any, window: Window, rows: Sequence[Any], ctx: Any) -> None:
        self.seen.set(self.seen.get() + 1)
        ctx.emit((key, ctx.processing_time, self.seen.get()))


SEEN = pa.schema([("user", pa.string()), ("now", pa.int64()), ("seen", pa.int64())])


@pytest.mark.parametrize("kind", [Tumbling("10ms"), Session("10ms")], ids=str)
def test_states_of_a_function_live_as_long_as_the_clock_says(tmp_path: Path, kind: Tumbling | Session) -> None:
    with OperatorHarness(WindowProcess(kind, Seen(), INPUT, SEEN, lateness_ms=5), tmp_path) as harness:
        for time, now in ((0, 1_000), (20, 1_050), (40, 1_150)):
            harness.rows([("a", 1)], [time])
            harness.now = now
            harness.watermark(time + 10)
        harness.now = 1_200
        harness.rows([("a", 1)], [40])
        assert [tuple(row) for row in harness.emitted()] == [
            ("a", 1_000, 1),
            ("a", 1_050, 2),
            ("a", 1_150, 1),
            ("a", 1_200, 2),
        ]


@pytest.mark.parametrize("kind", [Tumbling.processing("10ms"), Session.processing("10ms")], ids=str)
def test_the_clock_is_right_in_windows_of_processing_time_also_at_the_end_of_all_input(
    tmp_path: Path, kind: Tumbling | Session
) -> None:
    declared = WindowProcess(kind, Seen(), Input(SCHEMA, ("user",), False), SEEN)
    with OperatorHarness(declared, tmp_path) as harness:
        harness.now = 1_000
        harness.rows([("a", 1)])
        harness.wake(1_010)
        harness.now = 1_050
        harness.rows([("a", 1)])
        harness.watermark(LATEST)
        assert [tuple(row) for row in harness.emitted()] == [("a", 1_010, 1), ("a", 1_050, 2)]


def totals(kind: Tumbling | Session) -> WindowAggregate:
    return WindowAggregate(kind, {"count": Count()}, INPUT)


@pytest.mark.parametrize(
    "operator",
    [
        reducing(Tumbling("10ms")),
        processing(Tumbling("10ms")),
        totals(Tumbling("10ms")),
        WindowReduce(Session("10ms"), subtracted, INPUT),
        WindowProcess(Session("10ms"), Seen(), INPUT, SEEN),
        totals(Session("10ms")),
    ],
    ids=lambda operator: operator.label,
)
def test_the_results_of_many_keys_go_on_in_batches_that_memory_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: KeyedOperator
) -> None:
    monkeypatch.setattr(SessionTotals, "at_once", 2)
    monkeypatch.setattr(SessionRow, "at_once", 2)
    for module in (session_operator, aggregate, calls, reduce):
        monkeypatch.setattr(module, "_AT_ONCE", 2)
    with OperatorHarness(operator, tmp_path) as harness:
        harness.rows([(user, 1) for user in "abcde"], [1] * 5)
        harness.watermark(LATEST)
        assert [len(rows) for _, rows in harness._emitted[None]] == [2, 2, 1]
        assert sorted(row.user for row in harness.emitted()) == list("abcde")
        assert all(len(rows) <= 2 for _, rows in harness._emitted.get("times", ()))


def test_an_exception_says_which_key_and_window(tmp_path: Path) -> None:
    class Fails(All):
        def on_window(self, key: Any, window: Window, rows: Sequence[Any], ctx: Any) -> None:
            raise ZeroDivisionError

    with OperatorHarness(processing(Tumbling("10ms"), function=Fails()), tmp_path) as harness:
        harness.rows([("a", 1)], [1])
        with pytest.raises(ZeroDivisionError) as raised:
            harness.watermark(10)
        assert "for the key 'a' in the window [0, 10) with 1 rows" in raised.value.__notes__[0]


def test_mistakes_are_found_without_running() -> None:
    class WithTimers(WindowFunction):
        on_window = ValueState(int, default=0)  # type: ignore[assignment]

        def on_timer(self, at: int, ctx: Any) -> None: ...

    assert reducing(Tumbling("5ms")).check() == processing(Tumbling("5ms")).check() == []
    assert processing(Tumbling("5ms"), function=WithTimers()).check() == [
        "WithTimers has a method on_timer, and functions of windows have no timers",
        "WithTimers declares a state 'on_window', which is the name of a method: choose another",
    ]
    assert processing(Tumbling("5ms"), function=WindowFunction()).check() == [
        "WindowFunction has no method on_window(self, key, window, rows, ctx)"
    ]
    assert "no instance of a subclass of WindowFunction" in processing(Tumbling("5ms"), function=len).check()[0]
    named = WindowProcess(Tumbling("5ms"), All(), INPUT, OUTPUT, 0, True, {"late": SCHEMA})
    assert named.check() == ["the side output 'late' is that of late rows: give yours another name"]
    untimed = WindowReduce(Tumbling("5ms"), subtracted, Input(SCHEMA, ("nobody",), False))
    assert len(untimed.check()) == 2
