"""What aggregations keep of the values of a key: against plain Python, and what they refuse."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.tables.values.accumulators import Accumulator, AggregationError, Column
from statebackend.tables.values.aggregations import (
    Aggregation,
    Count,
    First,
    Last,
    Max,
    Mean,
    Merging,
    Min,
    Sum,
    SumOverflow,
)

SLOTS = 4
Rows = list[tuple[int, float | None]]
"""Slots and values."""


def instant(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=milliseconds)


def nothing_of(aggregation: Aggregation) -> dict[str, Column]:
    return {name: np.full(SLOTS, one.initial, one.dtype) for name, one in aggregation.accumulators.items()}


def results(aggregation: Aggregation, *batches: tuple[list[int], pa.Array | None]) -> list[object]:
    """What the aggregation says of all slots after these batches."""
    columns = nothing_of(aggregation)
    for slots, values in batches:
        aggregation.update(columns, np.array(slots, dtype=np.int64), values)
    found: list[object] = aggregation.result(columns, np.arange(SLOTS)).to_pylist()
    return found


def spark_order(value: float) -> tuple[bool, float]:
    """NaN is greater than every number."""
    return math.isnan(value), 0.0 if math.isnan(value) else value


def in_order(value: Any) -> tuple[bool, Any]:
    return spark_order(value) if isinstance(value, float) else (False, value)


def sum_of(values: list[float]) -> float:
    """Of these values every order gives the same sum, but for infinities, which `math.fsum` refuses."""
    total = 0.0
    for value in values:
        total += value
    return total


EXPECTED: dict[str, Callable[[list[Any]], Any]] = {
    "sum": sum_of,
    "min": lambda values: min(values, key=in_order),
    "max": lambda values: max(values, key=in_order),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "mean": lambda values: sum_of(values) / len(values),
}
OF_ANY_ORDER: dict[str, Aggregation] = {"min": Min("v"), "max": Max("v"), "first": First("v"), "last": Last("v")}
OF_NUMBERS: dict[str, Aggregation] = {"sum": Sum("v"), **OF_ANY_ORDER}

INTEGERS = Sum("v").over(pa.int64())

some_floats = st.none() | st.sampled_from([0.0, 1.5, -2.25, 1e9, math.inf, -math.inf, math.nan])
some_integers = st.none() | st.integers(-(2**40), 2**40)


def rows(values: st.SearchStrategy[float | None]) -> st.SearchStrategy[list[Rows]]:
    return st.lists(st.lists(st.tuples(st.integers(0, SLOTS - 1), values), max_size=12), max_size=4)


def in_batches(batches: list[Rows], of_type: pa.DataType) -> list[tuple[list[int], pa.Array | None]]:
    return [([slot for slot, _ in batch], pa.array([value for _, value in batch], of_type)) for batch in batches]


def expected(name: str, batches: list[Rows]) -> list[object]:
    of_slot: list[list[float]] = [[] for _ in range(SLOTS)]
    for batch in batches:
        for slot, value in batch:
            if value is not None:
                of_slot[slot].append(value)
    return [EXPECTED[name](values) if values else None for values in of_slot]


def same(found: list[object], wanted: list[object]) -> bool:
    return [repr(value) for value in found] == [repr(value) for value in wanted]


@pytest.mark.parametrize("name", OF_NUMBERS)
@given(batches=rows(some_floats))
def test_floats_come_to_what_plain_python_says(name: str, batches: list[Rows]) -> None:
    assert same(
        results(OF_NUMBERS[name].over(pa.float64()), *in_batches(batches, pa.float64())), expected(name, batches)
    )


@pytest.mark.parametrize("name", OF_NUMBERS)
@given(batches=rows(some_integers))
def test_integers_come_to_what_plain_python_says(name: str, batches: list[Rows]) -> None:
    wanted = [None if value is None else int(str(value).split(".")[0]) for value in expected(name, batches)]
    assert results(OF_NUMBERS[name].over(pa.int64()), *in_batches(batches, pa.int64())) == wanted


ORDERED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), st.text(max_size=3)),
    "large_string": (pa.large_string(), st.sampled_from(["", "a", "\0", "a\0", "\U0001f600", "\uffff"])),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "fixed binary": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "instant": (pa.timestamp("ms", "Europe/Berlin"), st.integers(-(2**40), 2**40).map(instant)),
    "date": (pa.date32(), st.dates()),
    "date of 64 bits": (pa.date64(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "short time": (pa.time32("s"), st.times().map(lambda one: one.replace(microsecond=0))),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(days=-9), dt.timedelta(days=9))),
    "bool": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(18, 3), st.decimals(-(10**15) + 1, 10**15 - 1, places=3)),
}


@pytest.mark.parametrize("name", OF_ANY_ORDER)
@pytest.mark.parametrize("of", ORDERED)
@given(data=st.data())
def test_values_of_every_type_with_an_order_come_to_what_plain_python_says(
    of: str, name: str, data: st.DataObject
) -> None:
    arrow, values = ORDERED[of]
    aggregation = OF_ANY_ORDER[name].over(arrow)
    batches = data.draw(rows(st.none() | values))
    found = results(aggregation, *in_batches(batches, arrow))
    assert found == [None if one is None else pa.scalar(one, arrow).as_py() for one in expected(name, batches)]
    assert aggregation.result(nothing_of(aggregation), np.arange(0)).type == arrow


@pytest.mark.parametrize("name", OF_ANY_ORDER)
@given(some=st.lists(st.none() | st.text(max_size=2)), others=st.lists(st.none() | st.text(max_size=2)))
def test_what_two_keys_have_come_to_can_be_merged(name: str, some: list[str | None], others: list[str | None]) -> None:
    aggregation = OF_ANY_ORDER[name].over(pa.string())
    assert isinstance(aggregation, Merging)
    columns = nothing_of(aggregation)
    values = pa.array([*some, *others], pa.string())
    aggregation.update(columns, np.array([0] * len(some) + [1] * len(others), dtype=np.int64), values)
    aggregation.merge(columns, np.array([0]), np.array([1]))
    both: list[Any] = [value for value in (*some, *others) if value is not None]
    assert aggregation.result(columns, np.array([0])).to_pylist() == [EXPECTED[name](both) if both else None]


@given(batches=rows(st.none() | st.integers(-1000, 1000)))
def test_the_mean_of_integers_is_a_float(batches: list[Rows]) -> None:
    assert same(results(Mean("v").over(pa.int16()), *in_batches(batches, pa.int16())), expected("mean", batches))


def test_a_count_without_a_column_counts_rows_and_with_one_the_values_that_are_not_null() -> None:
    assert results(Count(), ([0, 1, 1], None)) == [1, 2, 0, 0]
    assert results(Count(), ([0, 1, 1], pa.array([None, "a", "b"]))) == [0, 2, 0, 0]


def test_a_column_of_another_width_or_dictionary_encoded_is_read_as_declared() -> None:
    narrow = pa.array([1, 2, None], pa.int8())
    assert results(INTEGERS, ([0, 0, 1], narrow)) == [3, None, None, None]
    assert results(Sum("v").over(pa.float64()), ([0, 0, 1], narrow)) == [3.0, None, None, None]
    assert results(
        Last("v").over(pa.dictionary(pa.int8(), pa.int64())), ([0, 1, 0], pa.array([7, 8, 7]).dictionary_encode())
    ) == [7, 8, None, None]


def test_a_slice_of_a_column_is_read_from_where_it_begins() -> None:
    assert results(INTEGERS, ([0, 1], pa.array([5, None, 6, 7]).slice(1, 2))) == [None, 6, None, None]


@pytest.mark.parametrize("values", [pa.array(["a"]), pa.array([True]), pa.array([1.5]), pa.array([2**63], pa.uint64())])
def test_what_an_aggregation_of_integers_cannot_take_is_refused(values: pa.Array) -> None:
    with pytest.raises(AggregationError, match=r"sum\(int\) cannot take"):
        results(INTEGERS, ([0], values))


def test_an_aggregation_of_numbers_needs_a_column() -> None:
    with pytest.raises(AggregationError, match=r"Mean\('v'\) needs its column, and none is given"):
        results(Mean("v"), ([0], None))
    with pytest.raises(AggregationError, match=r"Sum\('v'\) does not know the type of its column yet"):
        results(Sum("v"), ([0], pa.array([1])))
    with pytest.raises(
        AggregationError, match="Sum takes the name of a column, such as Sum\\('ms'\\), not <class 'int'>"
    ):
        Sum(int)  # type: ignore[arg-type]
    with pytest.raises(AggregationError, match=r"Mean needs the name of a column, such as Mean\('ms'\)"):
        Mean()  # type: ignore[call-arg]


def test_a_type_that_a_table_cannot_keep_is_refused_with_what_can() -> None:
    with pytest.raises(
        AggregationError, match=r"Max\('v'\) cannot be over a column of list<.*>: it takes numbers, decimals"
    ):
        Max("v").over(pa.list_(pa.int8()))
    with pytest.raises(AggregationError, match=r"cannot be over a column of decimal128\(30, 2\): .* up to 18 digits"):
        Max("v").over(pa.decimal128(30, 2))
    for aggregation in (Sum("v"), Mean("v")):
        with pytest.raises(
            AggregationError, match=r"'v'\) is over integers or floats, and its column is of string; cast it before"
        ):
            aggregation.over(pa.string())


@pytest.mark.parametrize("dtype", ["U8", "datetime64[s]", "bool", "complex128"])
def test_an_accumulator_that_is_no_plain_number_is_refused(dtype: str) -> None:
    with pytest.raises(AggregationError, match="use integers or floats"):
        Accumulator.of(dtype)


@given(st.lists(st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62), 1, -1, 0]), min_size=1, max_size=6))
def test_a_sum_of_integers_is_exact_or_refused(values: list[int]) -> None:
    so_far = 0
    for value in values[:-1]:
        so_far += value if abs(so_far + value) < 2**63 else 0
    batches = [([0], pa.array([so_far])), ([0, 1], pa.array([values[-1], 1]))]
    total = so_far + values[-1]
    if -(2**63) <= total < 2**63:
        assert results(INTEGERS, *batches) == [total, 1, None, None]
    else:
        with pytest.raises(SumOverflow, match=r"Sum\('v'\) of integers reaches .*; have the column as float64"):
            results(INTEGERS, *batches)


def test_a_sum_may_leave_64_bits_within_a_batch_if_it_comes_back() -> None:
    assert results(INTEGERS, ([0, 0, 0], pa.array([2**63 - 1, 5, -10]))) == [2**63 - 6, None, None, None]


def test_aggregations_are_equal_by_what_they_do_and_over_what() -> None:
    assert Sum("v") == Sum("v") != Sum("w")
    assert len({INTEGERS, Sum("v").over(pa.int64()), Sum("v").over(pa.float64()), Min("v").over(pa.int64())}) == 3
    names = {Max("v").over(one).name for one in (pa.int8(), pa.uint32(), pa.large_string(), pa.timestamp("ms", "UTC"))}
    assert names == {"max(int)", "max(string)", "max(timestamp[ms, tz=UTC])"}
    assert [one.over(pa.float32()).name for one in (Sum("v"), Mean("v"), Count("v"))] == ["sum(float)", "mean", "count"]
