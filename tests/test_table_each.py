"""Folding a batch in with the results after each row: the same as folding its rows in one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType
from statebackend.tables.table import Table
from statebackend.tables.values.accumulators import Accumulator
from statebackend.tables.values.aggregations import (
    Accumulators,
    Aggregation,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Slots,
    Sum,
    SumOverflow,
)
from statebackend.tables.values.rounds import last_rows
from statebackend.tables.values.spec import TableSpec
from tests.test_table import DictStore

GROUPS = 4
ALL = KeyGroupRange(KeyGroup(0), KeyGroup(GROUPS))
NUMBER = KeyType.of(int)


class Longest(Aggregation):
    """A user's own aggregation: the length of the longest text; it knows nothing of running."""

    name = "longest"
    version = 1

    accumulators = MappingProxyType({"length": Accumulator.of(np.int32, -1)})

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        assert values is not None
        lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy()
        np.maximum.at(accumulators["length"], slots, lengths)

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        return pa.array(accumulators["length"][slots])


OUTPUTS = {
    "rows": Count(),
    "count": Count("whole"),
    "sum": Sum("whole").over(pa.int64()),
    "total": Sum("real").over(pa.float64()),
    "least": Min("whole").over(pa.int64()),
    "low": Min("real").over(pa.float64()),
    "most": Max("whole").over(pa.int64()),
    "high": Max("real").over(pa.float64()),
    "mean": Mean("real"),
    "first": First("real").over(pa.float64()),
    "last": Last("whole").over(pa.int64()),
    "longest": Longest("text"),
}

Row = tuple[int | None, int | None, float | None, str | None]
rows = st.tuples(
    st.none() | st.integers(0, 200),
    st.none() | st.integers(-(2**60), 2**60),
    st.none() | st.floats(),
    st.none() | st.text(max_size=4),
)
few_keys = st.tuples(
    st.none() | st.integers(0, 2),
    st.none() | st.integers(-9, 9),
    st.none() | st.floats(),
    st.none() | st.text(max_size=4),
)


def table(outputs: Mapping[str, Aggregation], ttl: int | None = None) -> Table:
    return Table(TableSpec("running", outputs, ttl), NUMBER, ALL, GROUPS, DictStore(), 1000)


def columns(some: list[Row]) -> dict[str, pa.Array]:
    return {
        "whole": pa.array([row[1] for row in some], pa.int64()),
        "real": pa.array([row[2] for row in some], pa.float64()),
        "text": pa.array([row[3] for row in some], pa.string()),
    }


def keys(some: list[Row]) -> pa.Array:
    return pa.array([row[0] for row in some], pa.int64())


@given(
    st.lists(st.lists(few_keys, max_size=120) | st.lists(rows.filter(lambda row: abs(row[1] or 0) < 2**50)), max_size=3)
)
def test_results_after_each_row_are_those_of_rows_folded_in_one_by_one(batches: list[list[Row]]) -> None:
    at_once, one_by_one = table(OUTPUTS), table(OUTPUTS)
    for batch in batches:
        found = at_once.update_each(key_column(keys(batch), NUMBER), columns(batch))
        expected = []
        for row in batch:
            slots = one_by_one.update(key_column(keys([row]), NUMBER), columns([row]))
            expected += one_by_one.results(slots).to_pylist()
        assert repr(found.to_pylist()) == repr(expected)
        every = key_column(pa.array([None, *range(201)], pa.int64()), NUMBER)
        assert repr(at_once.read(every).to_pylist()) == repr(one_by_one.read(every).to_pylist())


@given(st.integers(0, 2**32), st.integers(1, 90))
def test_rows_of_some_keys_that_come_often_and_others_seldom_are_folded_in_their_order(seed: int, keys: int) -> None:
    random = np.random.default_rng(seed)
    which = np.minimum(random.geometric(min(1.0, 3 / keys), 300) if seed % 2 else random.integers(keys, size=300), keys)
    values = {"whole": pa.array(random.integers(-9, 9, 300))}
    outputs = {
        "last": Last("whole").over(pa.int64()),
        "first": First("whole").over(pa.int64()),
        "n": Count(),
    }
    found = table(outputs).update_each(key_column(pa.array(which), NUMBER), values).to_pylist()
    first: dict[int, int] = {}
    count: dict[int, int] = {}
    for key, value, result in zip(which.tolist(), values["whole"].to_pylist(), found, strict=True):
        count[key] = count.get(key, 0) + 1
        assert result == {"last": value, "first": first.setdefault(key, value), "n": count[key]}


@pytest.mark.parametrize("others", [0, 50])
def test_a_running_sum_that_leaves_64_bits_on_the_way_is_refused_though_it_would_come_back(others: int) -> None:
    numbers = [2**62, 2**62, -(2**62)] + [0] * 60 + [0] * others
    which = [0] * 63 + list(range(1, others + 1))
    one = table({"sum": Sum("whole").over(pa.int64())})
    with pytest.raises(SumOverflow, match=r"9223372036854775808|beyond 64 bits"):
        one.update_each(key_column(pa.array(which), NUMBER), {"whole": pa.array(numbers)})


def test_a_key_that_has_expired_begins_anew_with_the_first_of_its_rows() -> None:
    one = table({"rows": Count()}, ttl=10)
    twice = key_column(pa.array([1, 1]), NUMBER)
    assert one.update_each(twice, {}, now=0).to_pydict() == {"rows": [1, 2]}
    assert one.update_each(twice, {}, now=9).to_pydict() == {"rows": [3, 4]}
    assert one.update_each(twice, {}, now=19).to_pydict() == {"rows": [1, 2]}


@given(st.lists(st.integers(0, 3) | st.integers(0, 1 << 20)))
def test_the_last_rows_of_slots_are_found(slots: list[int]) -> None:
    expected = sorted({slot: at for at, slot in enumerate(slots)}.values())
    assert last_rows(np.array(slots, dtype=np.int64)).tolist() == expected
