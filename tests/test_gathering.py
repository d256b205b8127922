"""Batches that wait become larger ones: which come together, that none is lost or overtaken, what is left of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.host.flow.gathering import RowGatherer
from snapshot.ids import ChannelId
from snapshot.operators.rows import Rows
from statebackend.ids import Partition, Uid

SCHEMA = pa.schema([("n", pa.int64())])
CHANNELS = [ChannelId(Uid("source"), Uid("stage"), Partition(sender), Partition(0)) for sender in range(3)]
ALL = 1 << 20


def rows(*numbers: int, timed: bool = False) -> Rows:
    times = np.array(numbers, dtype=np.int64) if timed else None
    return Rows(pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA), times)


def numbers_of(some: Rows) -> list[int]:
    numbers: list[int] = some.batch.column(0).to_pylist()
    return numbers


class Taken:
    """What was handed on, batch by batch; `takes` are how many rows of each it takes at most, all behind the last."""

    def __init__(self, most: int, takes: list[int] | None = None) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.gathering = RowGatherer(self._take, most, self._note)
        self._takes = takes or []
        self.of: dict[ChannelId, int] = {}

    def _note(self, channel: ChannelId, count: int) -> None:
        self.of[channel] = self.of.get(channel, 0) + count

    def _take(self, input: str, some: Rows) -> int:
        taken = min(len(some), self._takes.pop(0)) if self._takes else len(some)
        self.batches.append((input, numbers_of(some)[:taken]))
        return taken

    def add(self, input: str, some: Rows, channel: ChannelId = CHANNELS[0]) -> None:
        self.gathering.add(input, channel, some)


def test_batches_of_an_input_come_together_when_they_are_wanted() -> None:
    taken = Taken(most=10)
    for number in range(3):
        taken.add("a", rows(number))
    before = list(taken.batches)
    taken.gathering.flush()
    taken.gathering.flush()
    assert before == []
    assert taken.batches == [("a", [0, 1, 2])]


def test_rows_of_different_inputs_stay_apart() -> None:
    taken = Taken(most=10)
    for number in range(4):
        taken.add("ab"[number % 2], rows(number))
    taken.gathering.flush()
    assert taken.batches == [("a", [0, 2]), ("b", [1, 3])]


@pytest.mark.parametrize("most", [1, 3])
def test_a_batch_that_is_large_by_itself_is_handed_on_as_it_is_behind_what_came_before(most: int) -> None:
    taken = Taken(most)
    taken.add("a", rows(0))
    taken.add("a", rows(1, 2, 3, 4))
    assert taken.gathering.is_enough
    taken.gathering.hand_on(ALL)
    taken.gathering.hand_on(ALL)
    assert taken.batches == [("a", [0]), ("a", [1, 2, 3, 4])]


def test_an_input_that_has_enough_comes_first() -> None:
    taken = Taken(most=3)
    taken.add("a", rows(0))
    taken.add("b", rows(1, 2, 3))
    taken.gathering.hand_on(ALL)
    assert taken.batches == [("b", [1, 2, 3])]
    assert not taken.gathering.is_enough


def test_of_large_rows_few_are_enough() -> None:
    large = Rows(pa.record_batch([pa.array(range(50_000), pa.int64())], schema=SCHEMA))
    batches: list[int] = []

    def take(_: str, some: Rows) -> int:
        batches.append(len(some))
        return min(len(some), 70_000)

    gathering = RowGatherer[str](take, ALL, lambda *_: None)
    gathering._most = ALL
    for _ in range(3):
        assert not gathering.is_enough
        gathering.add("a", CHANNELS[0], large)
        assert gathering.bytes == sum(rows.size for some in gathering.left().values() for rows in some)
    assert gathering.is_enough
    for _ in range(3):
        gathering.hand_on(ALL)
        assert gathering.bytes == sum(rows.size for some in gathering.left().values() for rows in some)
    assert batches == [100_000, 80_000, 10_000]


def test_event_times_stay_with_their_rows() -> None:
    found: list[Rows] = []

    def take(_: str, some: Rows) -> int:
        found.append(some)
        return len(some)

    gathering = RowGatherer[str](take, 10, lambda *_: None)
    gathering.add("a", CHANNELS[0], rows(1, 2, timed=True))
    gathering.add("a", CHANNELS[1], rows(3, timed=True))
    gathering.hand_on(2)
    gathering.hand_on(ALL)
    assert [some.times.tolist() for some in found if some.times is not None] == [[1, 2], [3]]
    assert [numbers_of(some) for some in found] == [[1, 2], [3]]


def test_what_was_not_taken_stays_in_front_with_its_channel() -> None:
    taken = Taken(10, takes=[3])
    for channel, some in zip((0, 1, 0), (rows(0, 1), rows(2, 3, 4), rows(5)), strict=True):
        taken.add("a", some, CHANNELS[channel])
    taken.gathering.hand_on(ALL)
    left = {channel: [numbers_of(some) for some in pieces] for channel, pieces in taken.gathering.left().items()}
    assert left == {CHANNELS[1]: [[3, 4]], CHANNELS[0]: [[5]]}
    taken.add("a", rows(6), CHANNELS[1])
    taken.gathering.flush()
    assert taken.batches == [("a", [0, 1, 2]), ("a", [3, 4, 5, 6])]
    assert not taken.gathering
    assert taken.gathering.left() == {}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=30),
    st.integers(1, 9),
    st.lists(st.integers(1, 6), max_size=20),
)
def test_no_row_is_lost_or_overtakes_one_of_its_input_however_many_are_taken(
    added: list[tuple[str, int, int, bool]], most: int, takes: list[int]
) -> None:
    taken, expected, sent = Taken(most, takes), dict[str, list[int]](), dict[ChannelId, list[int]]()
    number = 0
    for input, count, channel, flushed in added:
        numbers = list(range(number, number + count))
        number += count
        expected.setdefault(input, []).extend(numbers)
        sent.setdefault(CHANNELS[channel], []).extend(numbers)
        taken.add(input, rows(*numbers), CHANNELS[channel])
        if flushed and taken.gathering:
            taken.gathering.hand_on(most)
        done = {n for _, some in taken.batches for n in some}
        left = {c: [n for some in pieces for n in numbers_of(some)] for c, pieces in taken.gathering.left().items()}
        for of, all_of in sent.items():
            assert sorted(left.get(of, [])) == [n for n in all_of if n not in done]
            assert taken.of.get(of, 0) == len([n for n in all_of if n in done])
    taken.gathering.flush()
    for input, numbers in expected.items():
        assert [n for of, some in taken.batches if of == input for n in some] == numbers
    assert all(len(some) <= max(most, 5) for _, some in taken.batches)
