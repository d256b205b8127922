"""Sessions against plain Python, cut, restored and rescaled at any point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.operator import Input, KeyedOperator
from snapshot.operators.windows.aggregate import WindowAggregate
from snapshot.operators.windows.calls import WindowFunction
from snapshot.operators.windows.kinds import Session
from snapshot.operators.windows.process import WindowProcess
from snapshot.operators.windows.reduce import WindowReduce
from snapshot.testing.operators import OperatorHarness
from statebackend.states.namespaces import Window
from statebackend.tables.values.aggregations import Count, First, Last, Max, Mean, Min, Sum
from tests.test_table_each import Longest
from tests.window_models import Backend, Emitted, Row, Step, Timed, compare, moment, steps

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
INPUT = Input(SCHEMA, ("user",), True)
OUTPUTS = {
    "count": Count(),
    "sum": Sum("amount"),
    "mean": Mean("amount"),
    "least": Min("amount"),
    "most": Max("amount"),
}

Summary = Callable[[list[int | None]], tuple[object, ...]]


@dataclass
class One:
    """A session: all of its rows, in the order in which it took them."""

    start: int
    end: int
    values: list[int | None]


@dataclass
class SessionModel:
    gap: int
    lateness: int
    summarise: Summary
    with_span: bool = True
    now: int = EARLIEST
    sessions: dict[str | None, list[One]] = field(default_factory=dict)
    late: list[Row] = field(default_factory=list)

    def rows(self, batch: Sequence[Timed]) -> list[Emitted]:
        changed: list[tuple[str | None, One]] = []
        order = sorted(range(len(batch)), key=lambda at: (repr(batch[at][0][0]), batch[at][1]))
        for key, some in groupby(order, key=lambda at: batch[at][0][0]):
            runs: list[list[int]] = []
            for at in some:
                if runs and batch[at][1] - batch[runs[-1][-1]][1] < self.gap:
                    runs[-1].append(at)
                else:
                    runs.append([at])
            changed += self.add(key, runs, batch)
        return [self.result(key, one) for key, one in changed if one.end <= self.now]

    def add(self, key: str | None, runs: list[list[int]], batch: Sequence[Timed]) -> list[tuple[str | None, One]]:
        """Join runs of rows and sessions that overlap."""
        changed: dict[int, One] = {}
        kept = self.sessions.setdefault(key, [])
        spans: list[tuple[int, int, One | None, list[int]]] = [(one.start, one.end, one, []) for one in kept]
        spans += [(batch[run[0]][1], batch[run[-1]][1] + self.gap, None, run) for run in runs]
        spans.sort(key=lambda span: span[:2])
        groups: list[list[tuple[int, int, One | None, list[int]]]] = []
        for span in spans:
            if groups and span[0] < max(one[1] for one in groups[-1]):
                groups[-1].append(span)
            else:
                groups.append([span])
        self.sessions[key] = []
        for group in groups:
            indices = sorted(at for span in group for at in span[3])
            end = max(span[1] for span in group)
            if indices and end + self.lateness <= self.now:
                self.late += [batch[at][0] for at in indices]
                continue
            values = [value for span in group if span[2] is not None for value in span[2].values]
            one = One(min(span[0] for span in group), end, values + [batch[at][0][1] for at in indices])
            self.sessions[key].append(one)
            if indices:
                changed[id(one)] = one
        return [(key, one) for one in changed.values()]

    def watermark(self, time: int) -> list[Emitted]:
        given = [
            self.result(key, one) for key, some in self.sessions.items() for one in some if self.now < one.end <= time
        ]
        self.now = max(self.now, time)
        for key, some in self.sessions.items():
            self.sessions[key] = [one for one in some if one.end + self.lateness > self.now]
        return given

    def result(self, key: str | None, one: One) -> Emitted:
        span = (moment(one.start), moment(one.end)) if self.with_span else ()
        return (key, *span, *self.summarise(one.values)), one.end - 1


def statistics(values: list[int | None]) -> tuple[object, ...]:
    known = [value for value in values if value is not None]
    if not known:
        return len(values), None, None, None, None
    return len(values), sum(known), sum(known) / len(known), min(known), float(max(known))


class All(WindowFunction):
    def on_window(self, key: Any, window: Window, rows: Sequence[Any], ctx: Any) -> None:
        assert {row.user for row in rows} == {ctx.key} == {key}
        ctx.emit((key, moment(window.start), moment(window.end), str([row.amount for row in rows])))


def added(before: Any, row: Any) -> tuple[object, ...]:
    return before.user, (before.amount or 0) + (row.amount or 0)


def added_all(values: list[int | None]) -> tuple[object, ...]:
    return (values[0] if len(values) == 1 else sum(value or 0 for value in values),)


def aggregate(session: Session, lateness: int = 0, late: bool = False, timed: bool = True) -> WindowAggregate:
    return WindowAggregate(session, OUTPUTS, Input(SCHEMA, ("user",), timed), lateness, late)


def process(session: Session, lateness: int, late: bool) -> WindowProcess:
    output = pa.schema(
        [("user", pa.string()), ("start", pa.timestamp("ms")), ("end", pa.timestamp("ms")), ("all", pa.string())]
    )
    return WindowProcess(session, All(), INPUT, output, lateness, late)


def reduce(session: Session, lateness: int, late: bool) -> WindowReduce:
    return WindowReduce(session, added, INPUT, lateness, late)


Make = Callable[[Session, int, bool], KeyedOperator]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    ("make", "summary", "with_span"),
    [(aggregate, statistics, True), (process, lambda values: (str(values),), True), (reduce, added_all, False)],
    ids=["aggregate", "process", "reduce"],
)
@settings(max_examples=settings().max_examples // 4)
@given(
    gap=st.integers(1, 9),
    lateness=st.sampled_from([0, 6]),
    late=st.booleans(),
    work=steps,
    sizes=st.lists(st.integers(1, 3)),
)
def test_sessions_are_those_of_a_plain_model(
    backend: Backend,
    make: Make,
    summary: Summary,
    with_span: bool,
    gap: int,
    lateness: int,
    late: bool,
    work: list[Step],
    sizes: list[int],
) -> None:
    model = SessionModel(gap, lateness, summary, with_span)
    compare(lambda: make(Session(f"{gap}ms"), lateness, late), model, work, sizes, backend, late)


def test_a_row_that_comes_a_gap_later_begins_another_session(tmp_path: Path) -> None:
    with OperatorHarness(aggregate(Session("10ms")), tmp_path) as harness:
        harness.rows([("a", 1), ("a", 2), ("a", 3)], [0, 9, 19])
        harness.watermark(18)
        assert harness.emitted() == []
        harness.watermark(LATEST)
        assert [tuple(row)[:5] for row in harness.emitted()] == [
            ("a", moment(0), moment(19), 2, 3),
            ("a", moment(19), moment(29), 1, 3),
        ]


SHOP_USER = pa.struct([("shop", pa.int64()), ("user", pa.string())])


@pytest.mark.parametrize(
    ("kind", "one", "same", "other"),
    [
        (pa.float64(), 0.0, -0.0, 1.0),
        (SHOP_USER, {"shop": 1, "user": "a"}, {"shop": 1, "user": "a"}, {"shop": 1, "user": None}),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a", None),
    ],
    ids=["float", "struct", "dictionary"],
)
def test_rows_of_one_key_are_in_one_session_whatever_type_keys_are_of(
    tmp_path: Path, kind: pa.DataType, one: object, same: object, other: object
) -> None:
    taken = Input(pa.schema([("key", kind), ("amount", pa.int64())]), ("key",), True)
    declared = WindowAggregate(Session("10ms"), {"sum": Sum("amount")}, taken)
    assert declared.check() == []
    with OperatorHarness(declared, tmp_path) as harness:
        harness.rows([(one, 1)], [0])
        harness.rows([(one, 2), (same, 4), (other, 8)], [5, 6, 7])
        harness.watermark(20)
        assert [(row.key, row.sum) for row in harness.emitted()] == [(one, 7), (other, 8)]


def test_sessions_that_a_late_row_joins_say_first_and_last_by_their_order(tmp_path: Path) -> None:
    outputs = {"first": First("amount"), "last": Last("amount")}
    with OperatorHarness(WindowAggregate(Session("10ms"), outputs, INPUT), tmp_path) as harness:
        harness.rows([("a", 1), ("a", 2)], [20, 5])
        harness.rows([("a", 3)], [13])
        harness.watermark(30)
        assert [tuple(row) for row in harness.emitted()] == [("a", moment(5), moment(30), 2, 3)]


def test_a_session_that_gave_its_results_and_is_extended_beyond_now_gives_them_again_at_its_new_end(
    tmp_path: Path,
) -> None:
    with OperatorHarness(aggregate(Session("10ms"), lateness=20), tmp_path) as harness:
        harness.rows([("a", 1)], [0])
        harness.watermark(12)
        harness.clear()
        harness.rows([("a", 2)], [5])
        harness.watermark(14)
        assert harness.emitted() == []
        harness.watermark(15)
        assert [tuple(row)[:5] for row in harness.emitted()] == [("a", moment(0), moment(15), 2, 3)]


@pytest.mark.parametrize("lateness", [0, 20])
def test_rows_at_the_ends_of_time_are_in_sessions_that_end_there(tmp_path: Path, lateness: int) -> None:
    with OperatorHarness(aggregate(Session("10ms"), lateness), tmp_path) as harness:
        harness.rows([("a", 1), ("a", 2), ("a", 4), ("a", 8)], [LATEST, 0, EARLIEST, LATEST - 5])
        harness.rows([("b", 16)], [LATEST])
        harness.watermark(LATEST)
        rows = harness.emitted_rows()
        assert rows is not None
        columns = [
            rows.batch.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end", "sum")
        ]
        assert list(zip(*columns, strict=True)) == [
            (EARLIEST, EARLIEST + 10, 4),
            (0, 10, 2),
            (LATEST - 5, LATEST, 9),
            (LATEST - 1, LATEST, 16),
        ]


def test_a_row_that_would_be_late_is_taken_if_one_of_its_batch_joins_it_to_a_session_that_is_not(
    tmp_path: Path,
) -> None:
    for batches in ([[85, 94]], [[94], [85]], [[85], [94]]):
        with OperatorHarness(aggregate(Session("10ms"), late=True), tmp_path) as harness:
            harness.watermark(100)
            for times in batches:
                harness.rows([("a", time) for time in times], times)
            taken = batches != [[85], [94]]
            assert [row.amount for row in harness.emitted("late")] == ([] if taken else [85])
            harness.watermark(LATEST)
            assert [row.sum for row in harness.emitted()] == [85 + 94 if taken else 94]


def test_sessions_of_processing_time_end_a_gap_after_their_last_row(tmp_path: Path) -> None:
    declared = aggregate(Session.processing("10ms"), timed=False)
    with OperatorHarness(declared, tmp_path) as harness:
        harness.now = 100
        harness.rows([("a", 1), ("b", 2)])
        harness.now = 105
        harness.rows([("a", 3)])
        snapshot = harness.cut()
    with OperatorHarness(declared, tmp_path, parallelism=2, snapshot=snapshot) as harness:
        assert harness.wakes_at() == 110
        harness.wake(110)
        assert [tuple(row)[:5] for row in harness.emitted()] == [("b", moment(100), moment(110), 1, 2)]
        assert harness.wakes_at() == 115
        harness.clear()
        harness.watermark(LATEST)
        assert [tuple(row)[:5] for row in harness.emitted()] == [("a", moment(100), moment(115), 2, 4)]
        assert harness.wakes_at() is None


def test_mistakes_are_found_without_running() -> None:
    assert aggregate(Session("5s")).check() == []
    assert aggregate(Session("0s")).check() == ["sessions end after a gap of more than 0 ms: give Session a gap"]
    longest = WindowAggregate(Session("1ms"), {"longest": Longest("user")}, INPUT)
    assert longest.check() == [
        "longest: Longest('user') has no method merge(accumulators, into, others), which sessions need"
    ]
