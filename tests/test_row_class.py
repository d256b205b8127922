"""Batches become named tuples and come back; what does not fit is refused with its row and column."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.operators.row_class import (
    NoPlainValue,
    WrongRow,
    batch_of,
    column_problems,
    mappings_of,
    row_class,
    rows_of,
    shown,
    values_of,
)

SCHEMA = pa.schema([("user", pa.string()), ("clicks", pa.int64())])

_MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text()),
    "large": (pa.large_string(), st.text()),
    "binary": (pa.binary(), st.binary()),
    "date": (pa.date32(), st.dates()),
    "seconds": (pa.timestamp("s"), _MOMENTS.map(lambda at: at.replace(microsecond=0))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "utc": (pa.timestamp("us", "UTC"), _MOMENTS.map(lambda at: at.replace(tzinfo=UTC))),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), _MOMENTS.map(lambda at: at.replace(tzinfo=UTC))),
    "decimal": (pa.decimal128(10, 2), st.decimals(-9999, 9999, places=2)),
    "lists": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=3)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=2)),
}


@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_rows_are_what_arrow_says_and_become_the_same_batch_again(name: str, data: st.DataObject) -> None:
    kind, values = COLUMNS[name]
    given_values = data.draw(st.lists(st.none() | values, max_size=6) | st.lists(values, max_size=6))
    schema = pa.schema([("place", pa.int64()), ("value", kind)])
    batch = pa.record_batch([pa.array(range(len(given_values)), pa.int64()), pa.array(given_values, kind)], schema)
    cut = data.draw(st.integers(0, len(given_values)))
    piece = batch.slice(cut)
    rows = list(rows_of(piece))
    expected = piece.column(1).to_pylist()
    assert [row.value for row in rows] == expected
    assert [type(row.value) for row in rows] == [type(value) for value in expected]
    assert [str(row.value) for row in rows] == [str(value) for value in expected]
    again = batch_of(rows, schema, "test")
    assert again.schema == schema
    assert again.to_pylist() == piece.to_pylist()


def test_timestamps_that_no_datetime_holds_are_refused_as_arrow_refuses_them() -> None:
    for seconds in (-(2**40), 2**40):
        with pytest.raises((ValueError, OverflowError)):
            values_of(pa.array([seconds], pa.timestamp("s")))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([0, 2**63 - 1], pa.int64()).cast(pa.timestamp("ms")), "has 9223372036854775807 in row 1"),
        (pa.array([0, -(2**63)], pa.int64()).cast(pa.timestamp("us", "UTC")), "has -9223372036854775808 in row 1"),
        (pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()), "in row 1"),
        (pa.array([[], [2**60]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("s"))), "in row 1"),
    ],
    ids=["milliseconds", "microseconds", "days", "nested"],
)
def test_a_time_that_python_does_not_have_is_refused_with_its_column_its_row_and_the_limit(
    column: pa.Array, said: str
) -> None:
    batch = pa.record_batch({"user": ["ann", "bob"], "at": column})
    for plain in (rows_of, mappings_of):
        with pytest.raises(NoPlainValue) as refused:
            list(plain(batch))
        assert said in str(refused.value)
        assert "the column 'at'" in str(refused.value)
        assert "'user': 'bob'" in str(refused.value)
    if pa.types.is_temporal(column.type):
        assert "datetime holds the years 1 to 9999" in str(refused.value)


def test_rows_of_the_same_names_are_of_one_class_that_can_be_pickled() -> None:
    other = pa.schema([("user", pa.int8()), ("clicks", pa.float64())])
    assert row_class(SCHEMA) is row_class(other)
    row = next(rows_of(pa.record_batch([["a"], [1]], SCHEMA)))
    assert (row.user, row.clicks, repr(row)) == ("a", 1, "Row(user='a', clicks=1)")
    again = pickle.loads(pickle.dumps(row))
    assert (again, type(again)) == (row, type(row))
    assert row._replace(clicks=2) == ("a", 2)


def test_results_are_tuples_lists_named_tuples_or_mappings_in_one_batch() -> None:
    row = next(rows_of(pa.record_batch([["a"], [1]], SCHEMA)))
    batch = batch_of([row, ("b", 2), ["c", 3], {"clicks": 4, "user": "d"}], SCHEMA, "map(f)")
    assert batch.to_pylist() == [{"user": user, "clicks": at} for at, user in enumerate("abcd", 1)]


def test_no_results_are_an_empty_batch() -> None:
    assert (batch_of([], SCHEMA, "f").num_rows, batch_of([], SCHEMA, "f").schema) == (0, SCHEMA)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "result 1 is a NoneType.*does every path of the function return something"),
        ("ab", "result 1 is a str, not a tuple, a list or a mapping with the columns user, clicks: 'ab'"),
        (("a",), r"result 1 has 1 values, and the output has 2 columns \(user, clicks\): \('a',\)"),
        ({"user": "a"}, "result 1 does not fit the output: it lacks clicks"),
        ({"user": "a", "clicks": 1, "more": 2}, "the output has no more"),
        (("a", "x"), "result 1 does not fit the column 'clicks', which is int64: str 'x'"),
        ((1, 1), "result 1 does not fit the column 'user', which is string: int 1"),
        (("a", 1.5), "result 1 does not fit the column 'clicks', which is int64: float 1.5"),
        (("a", 2**63), "result 1 does not fit the column 'clicks', which is int64: int 9223372036854775808"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_step_row_and_column(wrong: object, said: str) -> None:
    with pytest.raises(WrongRow, match=f"^map\\(f\\): .*{said}"):
        batch_of([("a", 1), wrong, ("c", 3)], SCHEMA, "map(f)")  # type: ignore[list-item]


def test_a_null_is_refused_where_the_schema_has_none() -> None:
    schema = pa.schema([pa.field("user", pa.string(), nullable=False)])
    assert batch_of([("a",)], schema, "f").schema == schema
    with pytest.raises(WrongRow, match=r"result 1 does not fit the column 'user'.*declared without nulls"):
        batch_of([("a",), (None,)], schema, "f")


def test_a_whole_float_and_a_null_fit_into_a_column_of_integers() -> None:
    assert batch_of([("a", 2.0), ("b", None)], SCHEMA, "f").column(1).to_pylist() == [2, None]


@pytest.mark.parametrize("name", ["two words", "class", "_hidden", "1st", ""])
def test_a_column_that_no_attribute_can_be_called_as_is_a_problem(name: str) -> None:
    problems = column_problems(pa.schema([("fine", pa.int64()), (name, pa.int64())]))
    assert len(problems) == 1
    assert repr(name) in problems[0]
    with pytest.raises(ValueError, match="rename it"):
        row_class(pa.schema([(name, pa.int64())]))


def test_columns_of_one_name_and_no_columns_are_problems() -> None:
    assert column_problems(pa.schema([("a", pa.int64()), ("a", pa.int64())])) == ["2 columns are called 'a'"]
    assert column_problems(pa.schema([])) == ["there is no column"]
    assert column_problems(SCHEMA) == []


def test_what_is_shown_of_a_value_is_short_and_never_fails() -> None:
    class Angry:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    assert shown(Angry()) == "a Angry whose repr raises ZeroDivisionError"
    assert len(shown("x" * 10_000)) == 200
    assert shown((date(2026, 1, 1), Decimal(1))) == "(datetime.date(2026, 1, 1), Decimal('1'))"


def test_a_pickled_row_in_stored_state_is_read_by_every_build_and_written_as_ever() -> None:
    stored = (
        b"\x80\x05\x95I\x00\x00\x00\x00\x00\x00\x00\x8c\x1asnapshot.program.row_class\x94\x8c\x06row_of\x94\x93\x94"
        b"\x8c\x04user\x94\x8c\x06amount\x94\x86\x94\x8c\x03ann\x94K\x03\x86\x94\x86\x94R\x94."
    )
    row = next(rows_of(pa.record_batch([["ann"], [3]], ["user", "amount"])))
    assert pickle.loads(stored) == row
    assert pickle.dumps(row, protocol=5) == stored
