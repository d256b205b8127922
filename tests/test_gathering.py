"""Batches that wait become larger ones: which come together, and that none is lost or overtaken."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.host.gathering import Gathering
from snapshot.program.rows import Rows

SCHEMA = pa.schema([("n", pa.int64())])


def rows(*numbers: int, timed: bool = False) -> Rows:
    times = np.array(numbers, dtype=np.int64) if timed else None
    return Rows(pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA), times)


class Taken:
    """What was handed on, batch by batch."""

    def __init__(self, most: int) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.gathering = Gathering(self._take, most)

    def _take(self, input: str, some: Rows) -> None:
        self.batches.append((input, some.batch.column(0).to_pylist()))


def test_batches_of_an_input_come_together_when_they_are_wanted() -> None:
    taken = Taken(most=10)
    for number in range(3):
        taken.gathering.add("a", rows(number))
    before = list(taken.batches)
    taken.gathering.flush()
    taken.gathering.flush()
    assert before == []
    assert taken.batches == [("a", [0, 1, 2])]


def test_rows_of_different_inputs_stay_apart() -> None:
    taken = Taken(most=10)
    for number in range(4):
        taken.gathering.add("ab"[number % 2], rows(number))
    taken.gathering.flush()
    assert taken.batches == [("a", [0, 2]), ("b", [1, 3])]


@pytest.mark.parametrize("most", [1, 3])
def test_a_batch_that_is_large_by_itself_is_handed_on_as_it_is_behind_what_came_before(most: int) -> None:
    taken = Taken(most)
    large = rows(1, 2, 3, 4)
    taken.gathering.add("a", rows(0))
    taken.gathering.add("a", large)
    assert taken.batches == [("a", [0]), ("a", [1, 2, 3, 4])]


def test_event_times_stay_with_their_rows() -> None:
    found: list[Rows] = []
    gathering = Gathering[str](lambda _, some: found.append(some), 10)
    gathering.add("a", rows(1, 2, timed=True))
    gathering.add("a", rows(3, timed=True))
    gathering.flush()
    (both,) = found
    assert both.times is not None
    assert both.times.tolist() == both.batch.column(0).to_pylist() == [1, 2, 3]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.booleans()), max_size=30),
    st.integers(1, 9),
)
def test_no_row_is_lost_or_overtakes_one_of_its_input(added: list[tuple[str, int, bool]], most: int) -> None:
    taken, expected, number = Taken(most), dict[str, list[int]](), 0
    for input, count, flushed in added:
        numbers = list(range(number, number + count))
        number += count
        expected.setdefault(input, []).extend(numbers)
        taken.gathering.add(input, rows(*numbers))
        if flushed:
            taken.gathering.flush()
            assert sum(len(some) for _, some in taken.batches) == number
    taken.gathering.flush()
    for input, numbers in expected.items():
        assert [n for of, some in taken.batches if of == input for n in some] == numbers
    assert all(len(some) <= max(most, 5) for _, some in taken.batches)
