"""What aggregations keep of the values of a key: against plain Python, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.tables.aggregations import (
    Accumulator,
    Aggregation,
    AggregationError,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    SumOverflow,
)

SLOTS = 4
Rows = list[tuple[int, float | None]]
"""Slots and values."""


def results(aggregation: Aggregation, *batches: tuple[list[int], pa.Array | None]) -> list[object]:
    """What the aggregation says of all slots after these batches."""
    columns = {name: np.full(SLOTS, one.initial, one.dtype) for name, one in aggregation.accumulators.items()}
    for slots, values in batches:
        aggregation.update(columns, np.array(slots, dtype=np.int64), values)
    found: list[object] = aggregation.result(columns, np.arange(SLOTS)).to_pylist()
    return found


def spark_order(value: float) -> tuple[bool, float]:
    """NaN is greater than every number."""
    return math.isnan(value), 0.0 if math.isnan(value) else value


def sum_of(values: list[float]) -> float:
    """Of these values every order gives the same sum, but for infinities, which `math.fsum` refuses."""
    total = 0.0
    for value in values:
        total += value
    return total


EXPECTED: dict[str, Callable[[list[float]], float]] = {
    "sum": sum_of,
    "min": lambda values: min(values, key=spark_order),
    "max": lambda values: max(values, key=spark_order),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "mean": lambda values: sum_of(values) / len(values),
}
FLOATS = {"sum": Sum(float), "min": Min(float), "max": Max(float), "first": First(float), "last": Last(float)}
INTEGERS = {"sum": Sum(int), "min": Min(int), "max": Max(int), "first": First(int), "last": Last(int)}

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


@pytest.mark.parametrize("name", FLOATS)
@given(batches=rows(some_floats))
def test_floats_come_to_what_plain_python_says(name: str, batches: list[Rows]) -> None:
    assert same(results(FLOATS[name], *in_batches(batches, pa.float64())), expected(name, batches))


@pytest.mark.parametrize("name", INTEGERS)
@given(batches=rows(some_integers))
def test_integers_come_to_what_plain_python_says(name: str, batches: list[Rows]) -> None:
    wanted = [None if value is None else int(str(value).split(".")[0]) for value in expected(name, batches)]
    assert results(INTEGERS[name], *in_batches(batches, pa.int64())) == wanted


@given(batches=rows(st.none() | st.integers(-1000, 1000)))
def test_the_mean_of_integers_is_a_float(batches: list[Rows]) -> None:
    assert same(results(Mean(), *in_batches(batches, pa.int16())), expected("mean", batches))


def test_a_count_without_a_column_counts_rows_and_with_one_the_values_that_are_not_null() -> None:
    assert results(Count(), ([0, 1, 1], None)) == [1, 2, 0, 0]
    assert results(Count(), ([0, 1, 1], pa.array([None, "a", "b"]))) == [0, 2, 0, 0]


def test_a_column_of_another_width_or_dictionary_encoded_is_read_as_declared() -> None:
    narrow = pa.array([1, 2, None], pa.int8())
    assert results(Sum(int), ([0, 0, 1], narrow)) == [3, None, None, None]
    assert results(Sum(float), ([0, 0, 1], narrow)) == [3.0, None, None, None]
    assert results(Last(int), ([0, 1, 0], pa.array([7, 8, 7]).dictionary_encode())) == [7, 8, None, None]


def test_a_slice_of_a_column_is_read_from_where_it_begins() -> None:
    assert results(Sum(int), ([0, 1], pa.array([5, None, 6, 7]).slice(1, 2))) == [None, 6, None, None]


@pytest.mark.parametrize("values", [pa.array(["a"]), pa.array([True]), pa.array([1.5]), pa.array([2**63], pa.uint64())])
def test_what_an_aggregation_of_integers_cannot_take_is_refused(values: pa.Array) -> None:
    with pytest.raises(AggregationError, match=r"sum\(int\) cannot take"):
        results(Sum(int), ([0], values))


def test_an_aggregation_of_numbers_needs_a_column() -> None:
    with pytest.raises(AggregationError, match="mean needs an input column"):
        results(Mean(), ([0], None))


def test_a_type_that_a_table_cannot_keep_is_refused_with_what_can() -> None:
    with pytest.raises(
        AggregationError, match=r"Max is over int or float, not .*str.*; a Reducing or Aggregating state"
    ):
        Max(str)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["U8", "datetime64[s]", "bool", "object", "complex128"])
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
        assert results(Sum(int), *batches) == [total, 1, None, None]
    else:
        with pytest.raises(SumOverflow, match=r"declare Sum\(float\) instead"):
            results(Sum(int), *batches)


def test_a_sum_may_leave_64_bits_within_a_batch_if_it_comes_back() -> None:
    assert results(Sum(int), ([0, 0, 0], pa.array([2**63 - 1, 5, -10]))) == [2**63 - 6, None, None, None]


def test_aggregations_are_equal_by_what_they_do_and_over_what() -> None:
    assert Sum(int) == Sum(int)
    assert len({Sum(int), Sum(float), Min(int), Sum(int)}) == 3
    assert [one.name for one in (Sum(int), Max(float), Mean(), Count())] == ["sum(int)", "max(float)", "mean", "count"]
