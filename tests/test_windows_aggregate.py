"""AggregateTable in tumbling and sliding windows against plain Python, cut, restored and rescaled at any point."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.operator import Input
from snapshot.operators.windows.aggregate import WindowAggregate
from snapshot.operators.windows.kinds import Session, Sliding, Tumbling, assigned, late_rows
from snapshot.operators.windows.operator import WindowOperator
from snapshot.testing.operators import OperatorHarness
from statebackend.states.namespaces import Window
from statebackend.tables.values.aggregations import Count, Sum
from tests.window_models import AlignedModel, Backend, Step, compare, moment, spans, starts, steps

GROUPS = 8
SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUTS = {"count": Count(), "sum": Sum("amount")}

kinds = st.builds(Tumbling, spans(1, 12), spans(0, 20)) | st.tuples(
    st.integers(1, 12), st.integers(1, 4), spans(0, 5)
).map(lambda sizes: Sliding(f"{max(sizes[:2])}ms", f"{min(sizes[:2])}ms", sizes[2]))


def operator(kind: Tumbling | Sliding, lateness: int = 0, late: bool = False, timed: bool = True) -> WindowAggregate:
    return WindowAggregate(kind, OUTPUTS, Input(SCHEMA, ("user",), timed), lateness, late)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@settings(max_examples=settings().max_examples // 2)
@given(
    kind=kinds, lateness=st.sampled_from([0, 1, 12]), late=st.booleans(), work=steps, sizes=st.lists(st.integers(1, 3))
)
def test_every_result_is_that_of_a_plain_model(
    backend: Backend, kind: Tumbling | Sliding, lateness: int, late: bool, work: list[Step], sizes: list[int]
) -> None:
    model = AlignedModel(kind, lateness)
    compare(lambda: operator(kind, lateness, late), model, work, sizes, backend, late)


def test_windows_fire_by_their_ends_when_the_watermark_jumps(tmp_path: Path) -> None:
    with OperatorHarness(operator(Sliding("10ms", "5ms")), tmp_path) as harness:
        harness.rows([("a", 1), ("a", 2)], [12, 3])
        harness.watermark(9)
        assert [tuple(row) for row in harness.emitted()] == [("a", moment(-5), moment(5), 1, 2)]
        harness.watermark(20)
        assert [row.window_start for row in harness.emitted()] == [moment(-5), moment(0), moment(5), moment(10)]
        assert harness.emitted_times() == [4, 9, 14, 19]


@pytest.mark.parametrize("side", [False, True])
def test_rows_that_are_too_late_are_counted_whatever_becomes_of_them(tmp_path: Path, side: bool) -> None:
    with OperatorHarness(operator(Tumbling("10ms"), lateness=5, late=side), tmp_path) as harness:
        harness.watermark(15)
        harness.rows([("a", 1), ("a", 2), ("b", 3)], [9, 10, 8])
        partition = harness._members[0].operator
        assert isinstance(partition, WindowOperator)
        assert partition.late == 2
        harness.watermark(20)
        assert [tuple(row) for row in harness.emitted()] == [("a", moment(10), moment(20), 1, 2)]
        assert [tuple(row) for row in harness.emitted("late")] == ([("a", 1), ("b", 3)] if side else [])


edges = st.sampled_from([EARLIEST, 0, LATEST])


@given(
    kind=kinds,
    edge=edges,
    offsets=st.lists(st.integers(-30, 30), min_size=1, max_size=8),
    gone=st.tuples(edges, st.integers(-30, 30)),
)
def test_rows_at_the_ends_of_time_are_in_the_windows_that_have_them_as_far_as_there_are_any(
    kind: Tumbling | Sliding, edge: int, offsets: list[int], gone: tuple[int, int]
) -> None:
    times = [min(max(edge + offset, EARLIEST), LATEST) for offset in offsets]
    expected: defaultdict[Window, list[int]] = defaultdict(list)
    for row, time in enumerate(times):
        for start in starts(kind, min(time, LATEST - 1)):
            expected[Window(max(start, EARLIEST), min(start + kind.size, LATEST))].append(row)
    column, every = np.array(times, dtype=np.int64), list(range(len(times)))
    found = {window: every if rows is None else rows.tolist() for window, rows in assigned(kind, column)}
    assert found == expected
    until = min(max(sum(gone), EARLIEST), LATEST)
    late = late_rows(kind, column, until)
    over = [max(window.end for window in expected if row in expected[window]) <= until for row in every]
    assert over == (late.tolist() if late is not None else [False] * len(times))


def test_a_window_that_begins_before_all_times_gives_its_results(tmp_path: Path) -> None:
    with OperatorHarness(operator(Tumbling("1m")), tmp_path) as harness:
        harness.rows([("a", 1), ("a", 2)], [EARLIEST, 0])
        harness.watermark(0)
        rows = harness.emitted_rows()
        assert rows is not None
        assert rows.batch.column("sum").to_pylist() == [1]
        assert harness.emitted_times() == [(EARLIEST // 60_000 + 1) * 60_000 - 1]


@pytest.mark.parametrize("kind", [Tumbling.processing("10ms"), Session.processing("10ms")], ids=str)
def test_windows_of_processing_time_go_on_after_the_end_of_event_time(tmp_path: Path, kind: Tumbling | Session) -> None:
    declared = WindowAggregate(kind, OUTPUTS, Input(SCHEMA, ("user",), False))
    with OperatorHarness(declared, tmp_path) as harness:
        harness.now = 100
        harness.rows([("a", 1)])
        harness.watermark(LATEST)
        harness.now = 120
        harness.rows([("a", 2)])
        harness.wake(130)
        assert [tuple(row) for row in harness.emitted()] == [
            ("a", moment(100), moment(110), 1, 1),
            ("a", moment(120), moment(130), 1, 2),
        ]


def test_windows_of_processing_time_fire_when_they_are_woken_also_after_a_restore(tmp_path: Path) -> None:
    declared = operator(Tumbling.processing("10ms"), timed=False)
    with OperatorHarness(declared, tmp_path) as harness:
        assert harness.wakes_at() is None
        harness.now = 103
        harness.rows([("a", 1), ("b", 2)])
        assert harness.wakes_at() == 110
        snapshot = harness.cut()
    with OperatorHarness(declared, tmp_path, parallelism=2, snapshot=snapshot) as harness:
        assert harness.wakes_at() == 110
        harness.now = 125
        harness.rows([("a", 4)])
        harness.wake(125)
        assert {tuple(row) for row in harness.emitted()} == {
            ("a", moment(100), moment(110), 1, 1),
            ("b", moment(100), moment(110), 1, 2),
        }
        assert harness.emitted_times() == [None, None]
        assert harness.wakes_at() == 130
        harness.clear()
        harness.watermark(LATEST)
        assert [tuple(row) for row in harness.emitted()] == [("a", moment(120), moment(130), 1, 4)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_that_come_when_event_time_had_been_at_its_end_are_not_late(tmp_path: Path, parallelism: int) -> None:
    declared = operator(Tumbling("10ms"), late=True)
    with OperatorHarness(declared, tmp_path) as harness:
        harness.rows([("a", 1), ("b", 2)], [3, 14])
        harness.watermark(LATEST)
        snapshot = harness.cut()
    for number in range(2):
        with OperatorHarness(declared, tmp_path, parallelism=parallelism, snapshot=snapshot) as harness:
            harness.rows([("a", 4), ("b", 8)], [5, 25])
            harness.watermark(10)
            harness.rows([("b", 1)], [9])
            assert [tuple(row) for row in harness.emitted()] == [("a", moment(0), moment(10), 1, 4)], number
            assert [tuple(row) for row in harness.emitted("late")] == [("b", 1)]
            harness.watermark(LATEST)
            assert tuple(harness.emitted()[-1]) == ("b", moment(20), moment(30), 1, 8)
            snapshot = harness.cut()


def test_keys_of_several_columns_come_out_as_they_came_in(tmp_path: Path) -> None:
    schema = pa.schema(
        [("shop", pa.int16()), ("user", pa.large_string()), ("tag", pa.dictionary(pa.int32(), pa.string()))]
    )
    declared = WindowAggregate(Tumbling("10ms"), {"n": Count()}, Input(schema, ("user", "tag", "shop"), True))
    with OperatorHarness(declared, tmp_path) as harness:
        batch = pa.RecordBatch.from_pylist(
            [{"shop": 1, "user": "a", "tag": "x"}, {"shop": None, "user": None, "tag": None}], schema
        )
        harness.rows(batch, [1, 2])
        harness.watermark(10)
        assert {tuple(row)[:3] for row in harness.emitted()} == {("a", "x", 1), (None, None, None)}


def test_mistakes_are_found_without_running() -> None:
    assert operator(Tumbling("5s")).check() == []
    assert operator(Tumbling("0s")).check() == ["windows last longer than 0 ms: give Tumbling a size"]
    assert operator(Sliding("5ms", "0s")).check() == ["windows slide by more than 0 ms: give Sliding a slide"]
    assert operator(Sliding("5s", "1m")).check() == [
        "windows of 5 s that slide by 1 min leave out what is between them: slide by less, or drop those rows with a "
        "filter"
    ]
    assert operator(Sliding("5ms", "5ms"), timed=False).check() == [
        "the rows have no event time: say where it is with with_event_time, or use Sliding.processing"
    ]
    assert operator(Tumbling.processing("5ms"), 7, late=True).check() == [
        "no row is late in processing time: leave lateness and late out"
    ]
    assert operator(Tumbling("5ms"), -1).check() == ["a lateness of -1 ms is negative"]
    twice = WindowAggregate(Tumbling("5ms"), {"window_end": Count()}, Input(SCHEMA, ("user",), True))
    assert twice.check() == ["two columns of the output are called 'window_end': give the aggregate another name"]
