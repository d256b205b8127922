"""Generated rows depend on their number alone, come when they are due and not before, and are as fast as numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapshot.connectors.memory.generate import Generate, GenerateReader
from snapshot.program.source import Batch, Exhausted, Later, Source, SourceError, SplitContext
from snapshot.testing.sources import CHECKS, read_through
from statebackend.ids import Attempt, Partition
from tests.bench.workload_input import SCHEMA, Records, records, truth

START = 1_700_000_000_000_000
"""When the paced sources of these tests were born, in microseconds."""


def squares(indices: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    return {"number": indices, "square": indices * indices}


SQUARES = Generate(squares, pa.schema([("number", pa.int64()), ("square", pa.int64())]), count=100)
TIMED = Generate(
    squares,
    pa.schema([("number", pa.int64()), ("at", pa.int64()), ("square", pa.int64())]),
    rate=1000.0,
    scheduled="at",
)


class Clock:
    """Time that stands still until it is set: seconds since the sources were born."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return START / 1e6 + self.now


def paced(
    source: Generate, clock: Clock, split: int = 0, splits: int = 1, position: int | None = None
) -> GenerateReader:
    name = f"{split} of {splits} from {START}"
    return GenerateReader(source, SplitContext("numbers", name, position, Partition(0), Attempt(1)), clock)


def numbers(reader: GenerateReader, most: int = 1000) -> list[int]:
    """All that is due now."""
    found: list[int] = []
    while isinstance(reading := reader.read(most), Batch):
        found += reading.rows.column("number").to_pylist()
    return found


@pytest.mark.parametrize("source", [SQUARES, replace(SQUARES, count=0), records(100, count=50)])
@pytest.mark.parametrize("check", CHECKS)
def test_a_bounded_generator_passes_the_kit(check: Callable[[Source], None], source: Generate) -> None:
    check(source)


@given(count=st.integers(0, 200), parallelism=st.integers(1, 7))
def test_the_splits_have_all_rows_in_turns(count: int, parallelism: int) -> None:
    source = replace(SQUARES, count=count)
    for split, name in enumerate(source.discover(parallelism)):
        rows = read_through(source, name).rows
        assert rows == [{"number": i, "square": i * i} for i in range(split, count, parallelism)]


def test_the_number_of_splits_can_be_chosen() -> None:
    assert len(replace(SQUARES, splits=5).discover(2)) == 5


def test_without_a_count_it_never_ends() -> None:
    reader = replace(SQUARES, count=None).open(SplitContext("numbers", "0 of 1", 10**12, Partition(0), Attempt(1)))
    reading = reader.read(10)
    assert isinstance(reading, Batch)
    assert reading.rows.column("number").to_pylist() == list(range(10**12, 10**12 + 10))


def test_rows_come_when_they_are_due_and_not_before() -> None:
    clock = Clock()
    reader = paced(TIMED, clock)
    assert numbers(reader) == [0]
    clock.now = 0.0035
    assert numbers(reader) == [1, 2, 3]
    waiting = reader.read(10)
    assert isinstance(waiting, Later)
    assert clock() < waiting.at <= clock() + 0.0011


def test_before_its_start_nothing_is_due() -> None:
    clock = Clock()
    clock.now = -5.0
    waiting = paced(TIMED, clock).read(10)
    assert isinstance(waiting, Later)
    assert waiting.at == pytest.approx(START / 1e6)


def test_what_an_outage_has_delayed_follows_at_once_with_the_time_at_which_it_was_due() -> None:
    clock = Clock()
    clock.now = 10.0
    reader = paced(TIMED, clock, position=2000)
    reading = reader.read(5)
    assert isinstance(reading, Batch)
    assert reading.rows.column("at").to_pylist() == [START + 2_000_000 + n * 1000 for n in range(5)]
    assert numbers(reader, most=1_000_000)[-1] == 10_000


def test_rows_that_fall_due_while_others_are_made_wait_for_the_next_tick_and_come_together() -> None:
    clock = Clock()
    clock.now = 1.0
    reader = paced(replace(TIMED, rate=10_000.0), clock)
    assert len(numbers(reader)) == 10_001
    clock.now = 1.0005
    waiting = reader.read(10)
    assert isinstance(waiting, Later)
    assert waiting.at == pytest.approx(START / 1e6 + 1.001)
    clock.now = 1.0011
    assert len(numbers(reader)) == 11


@given(rate=st.floats(0.1, 1e7), split=st.integers(0, 3), elapsed=st.floats(0, 1e5), position=st.integers(0, 10**9))
def test_no_row_is_early_and_none_is_late_by_more_than_a_tick(
    rate: float, split: int, elapsed: float, position: int
) -> None:
    clock = Clock()
    clock.now = elapsed
    reader = paced(replace(TIMED, rate=rate), clock, split, 4, position)
    match reader.read(1):
        case Batch(rows):
            assert rows.column("at")[0].as_py() <= START + elapsed * 1e6 + 2
        case Later(at):
            due = START / 1e6 + (split + 4 * position) / rate
            assert due >= clock() - 2e-6
            assert at <= max(due, clock() + 0.001) + 1e-6
        case Exhausted():
            pytest.fail("it never ends")


def test_all_splits_together_keep_the_rate() -> None:
    clock = Clock()
    clock.now = 1.0
    found = [number for split in range(3) for number in numbers(paced(TIMED, clock, split, 3))]
    assert sorted(found) == list(range(1001))


def test_a_bounded_paced_split_ends_when_its_last_row_has_come() -> None:
    clock = Clock()
    reader = paced(replace(TIMED, count=3), clock)
    assert numbers(reader) == [0]
    clock.now = 1.0
    assert numbers(reader) == [1, 2]
    assert reader.read(1) == Exhausted()


@pytest.mark.parametrize(("type", "step"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
def test_the_scheduled_time_may_be_a_timestamp_of_any_unit(type: str, step: int) -> None:
    schema = pa.schema([("number", pa.int64()), ("square", pa.int64()), ("at", pa.timestamp(type, "UTC"))])
    clock = Clock()
    clock.now = 100.0
    reading = paced(replace(TIMED, schema=schema, rate=1.0), clock).read(3)
    assert isinstance(reading, Batch)
    assert reading.rows.schema == schema
    assert reading.rows.column("at").cast(pa.int64()).to_pylist() == [(START // 10**6 + n) * step for n in range(3)]


def test_the_start_is_part_of_the_name_so_that_rows_keep_their_times_when_read_from_the_beginning() -> None:
    name = TIMED.discover(1)[0]
    first, again = read_through(TIMED, name).rows[0], read_through(TIMED, name).rows[0]
    assert first == again


def test_mistakes_are_found_by_check() -> None:
    wrong = Generate(None, TIMED.schema, count=-1, rate=0, scheduled="when", splits=0)  # type: ignore[arg-type]
    assert len(wrong.check()) == 5
    assert "rate" in replace(TIMED, rate=None).check()[0]
    assert "double" in replace(TIMED, schema=pa.schema([("at", pa.float64())])).check()[0]
    assert TIMED.check() == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda indices: {"number": indices}, "gave no column 'square'"),
        (lambda indices: {"number": indices, "square": indices[1:]}, "was asked for 7 rows, and gave 6"),
        (lambda indices: {"number": indices, "square": ["x"] * len(indices)}, "is not int64"),
    ],
)
def test_a_function_that_gives_something_else_is_named(function: Callable[..., object], message: str) -> None:
    with pytest.raises(SourceError, match=f"split 0 of 1.*lambda.*{message}"):
        read_through(replace(SQUARES, function=function), "0 of 1")


def test_a_function_may_give_record_batches() -> None:
    source = replace(SQUARES, function=lambda indices: pa.RecordBatch.from_pydict(squares(indices)))
    assert read_through(source, "0 of 50").rows[1] == {"number": 50, "square": 2500}


@pytest.mark.parametrize("split", ["part-0.parquet", "0 of 0", "0 of 1"])
def test_a_split_of_another_source_is_refused(split: str) -> None:
    with pytest.raises(SourceError, match="Give the source a new uid"):
        read_through(TIMED, split)


def test_the_truth_of_the_workload_is_that_of_its_rows() -> None:
    rows = [row for name in records(10, count=1000).discover(3) for row in read_through(records(10, 1000), name).rows]
    counts, sums = truth(10, 1000)
    for key in range(10):
        values = np.array([row["value"] for row in rows if row["key"] == key], np.float64)
        assert (len(values), values.sum()) == (counts[key], sums[key])


def test_the_workload_makes_columns_without_a_copy() -> None:
    indices = np.arange(10, dtype=np.int64)
    columns = Records(7)(indices)
    assert [columns[name].dtype for name in SCHEMA.names] == [np.int64, np.float64]
    assert indices.tolist() == list(range(10))
