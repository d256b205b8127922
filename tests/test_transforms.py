"""Maps, filters and selections: the declared schema comes out, with the times of what went in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.operators.operator import Transform
from snapshot.operators.row_class import WrongRow
from snapshot.operators.transforms import (
    FilterBatches,
    FilterRows,
    FlatMapBatches,
    FlatMapRows,
    MapBatches,
    MapRows,
    Select,
    WrongResult,
)
from snapshot.testing.operators import transformed

TEXT = pa.schema([("line", pa.string()), ("size", pa.int64())])
WORD = pa.schema([("word", pa.string())])
ROWS = [("a b", 1), ("", 2), ("c", 3)]
TIMES = [10, 20, 30]


def outcome(transform: Transform, times: list[int] | None = TIMES) -> list[tuple[tuple[object, ...], int | None]]:
    """The rows that come out, each with its time."""
    assert transform.check() == []
    found: list[tuple[tuple[object, ...], int | None]] = []
    for rows in transformed(transform, ROWS, TEXT, times):
        assert len(rows) > 0
        given_times = [None] * len(rows) if rows.times is None else rows.times.tolist()
        found += zip([tuple(row.values()) for row in rows.batch.to_pylist()], given_times, strict=True)
    return found


def gives(value: object) -> Any:
    """A function that gives this, whatever it is called with."""

    def constant(given: object) -> object:
        return value

    return constant


def double(row: Any) -> tuple[str]:
    return (row.line * 2,)


def words(row: Any) -> Iterator[tuple[str]]:
    for word in row.line.split():
        yield (word,)


def test_map_gives_a_row_for_each_row() -> None:
    assert outcome(MapRows(double, TEXT, WORD)) == [(("a ba b",), 10), (("",), 20), (("cc",), 30)]
    assert outcome(MapRows(double, TEXT, WORD), None) == [(("a ba b",), None), (("",), None), (("cc",), None)]


def test_flat_map_gives_any_number_with_the_time_of_their_row() -> None:
    assert outcome(FlatMapRows(words, TEXT, WORD)) == [(("a",), 10), (("b",), 10), (("c",), 30)]
    assert outcome(FlatMapRows(lambda row: [], TEXT, WORD)) == []


def test_filter_keeps_the_rows_for_which_the_function_is_true() -> None:
    assert outcome(FilterRows(lambda row: row.size != 2, TEXT)) == [(("a b", 1), 10), (("c", 3), 30)]
    assert outcome(FilterRows(lambda row: row.line, TEXT)) == [(("a b", 1), 10), (("c", 3), 30)]
    assert outcome(FilterRows(lambda row: False, TEXT)) == []


def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pc.utf8_upper(batch.column("line"))], names=["word"])


def test_map_of_batches_gives_one_batch_several_or_none() -> None:
    expected = [(("A B",), 10), (("",), 20), (("C",), 30)]
    assert outcome(MapBatches(upper, TEXT, WORD)) == expected
    assert outcome(MapBatches(lambda b: [upper(b.slice(0, 1)), upper(b.slice(1))], TEXT, WORD)) == expected
    assert outcome(MapBatches(lambda b: pa.Table.from_batches([upper(b)]), TEXT, WORD)) == expected
    assert outcome(MapBatches(lambda b: None, TEXT, WORD), None) == []
    assert outcome(MapBatches(lambda b: upper(b.slice(2)), TEXT, WORD), None) == [(("C",), None)]


def test_flat_map_of_batches_says_which_row_each_row_came_from() -> None:
    def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        lists = pc.utf8_split_whitespace(batch.column("line"))
        return pa.record_batch([pc.list_flatten(lists)], names=["word"]), pc.list_parent_indices(lists)

    assert outcome(FlatMapBatches(split, TEXT, WORD)) == [
        (("a",), 10), (("b",), 10), (("",), 20), (("c",), 30),
    ]  # fmt: skip
    assert outcome(FlatMapBatches(lambda b: (upper(b).slice(0, 0), []), TEXT, WORD)) == []


def test_filter_of_batches_drops_false_and_null() -> None:
    keep = [(("a b", 1), 10), (("c", 3), 30)]
    for chosen in (pa.array([True, None, True]), pa.chunked_array([[True, False], [True]]), [True, False, True]):
        assert outcome(FilterBatches(gives(chosen), TEXT)) == keep
    assert outcome(FilterBatches(lambda b: np.array([True, False, True]), TEXT)) == keep


def test_select_takes_columns_in_the_order_that_is_asked_for() -> None:
    assert outcome(Select(("size",), TEXT)) == [((1,), 10), ((2,), 20), ((3,), 30)]
    assert Select(("size", "line"), TEXT).output.names == ["size", "line"]


@given(st.lists(st.tuples(st.text("ab ", max_size=5), st.integers(0, 9), st.integers(0, 99)), max_size=8))
def test_times_stay_with_their_rows_however_many_each_becomes(rows: list[tuple[str, int, int]]) -> None:
    made = transformed(FlatMapRows(words, TEXT, WORD), [row[:2] for row in rows], TEXT, [row[2] for row in rows])
    expected = [(word, time) for line, _, time in rows for word in line.split()]
    found = [
        pair
        for piece in made
        if piece.times is not None
        for pair in zip(piece.batch.column(0).to_pylist(), piece.times.tolist(), strict=True)
    ]
    assert found == expected


WRONG: list[tuple[Transform, type[Exception], str]] = [
    (MapRows(gives(None), TEXT, WORD), WrongRow, "map.constant.: result 0 is a NoneType"),
    (MapRows(gives((3,)), TEXT, WORD), WrongRow, "column 'word', which is string: int 3"),
    (FlatMapRows(gives(None), TEXT, WORD), WrongResult, "flat_map.constant. gave a NoneType.*empty one for none"),
    (FlatMapRows(lambda row: "ab", TEXT, WORD), WrongResult, "gave a str"),
    (FlatMapRows(lambda row: ["ab"], TEXT, WORD), WrongRow, "result 0 is a str"),
    (FilterRows(lambda row: None, TEXT), WrongResult, "gave None for the row Row.line='a b', size=1.: return True"),
    (MapBatches(lambda b: upper(b).slice(1), TEXT, WORD), WrongResult, "made 2 rows of 3.*use flat_map_batches"),
    (MapBatches(lambda b: None, TEXT, WORD), WrongResult, "made 0 rows of 3"),
    (MapBatches(lambda b: b, TEXT, WORD), WrongResult, "line: string, size: int64; declared is word: string"),
    (MapBatches(lambda b: 3, TEXT, WORD), WrongResult, "gave a int: return a RecordBatch"),
    (MapBatches(lambda b: [3], TEXT, WORD), WrongResult, "gave a int, 3, where a RecordBatch is expected"),
    (FlatMapBatches(lambda b: upper(b), TEXT, WORD), WrongResult, "return a batch, and an array"),
    (FlatMapBatches(lambda b: (upper(b), [0]), TEXT, WORD), WrongResult, "3 rows came with 1 places"),
    (FlatMapBatches(lambda b: (upper(b), [0, 1, 3]), TEXT, WORD), WrongResult, "places from 0 to 3 in a batch of 3"),
    (FlatMapBatches(lambda b: (upper(b), [0.0, 1.0, 2.0]), TEXT, WORD), WrongResult, "of type float64"),
    (FilterBatches(lambda b: [True], TEXT), WrongResult, "gave 1 values of type bool for 3 rows"),
    (FilterBatches(lambda b: [0, 1, 2], TEXT), WrongResult, "of type int64 for 3 rows"),
]


@pytest.mark.parametrize(("transform", "error", "said"), WRONG)
def test_a_wrong_result_is_an_error_that_names_the_step(
    transform: Transform, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        outcome(transform)


def test_nulls_in_a_column_declared_without_are_refused() -> None:
    strict = pa.schema([pa.field("word", pa.string(), nullable=False)])
    assert outcome(MapBatches(upper, TEXT, strict))[0] == (("A B",), 10)
    with pytest.raises(WrongResult, match="nulls in 'word'"):
        outcome(MapBatches(lambda b: pa.record_batch([pa.nulls(3, pa.string())], names=["word"]), TEXT, strict))


def test_an_exception_goes_through_as_it_is_with_a_note_that_shows_the_row() -> None:
    def first(row: Any) -> tuple[str]:
        return (row.line[0],)

    def firsts(row: Any) -> Iterator[tuple[str]]:
        yield first(row)

    steps: list[Transform] = [MapRows(first, TEXT, WORD), FlatMapRows(firsts, TEXT, WORD), FilterRows(first, TEXT)]
    for step in steps:
        with pytest.raises(IndexError) as caught:
            outcome(step)
        assert caught.value.__notes__ == [f"in {step.label}, for the row Row(line='', size=2)"]


def test_what_can_be_seen_to_be_wrong_before_it_runs_is_found() -> None:
    odd = pa.schema([("two words", pa.int64())])
    assert MapRows(double, odd, WORD).check() == FilterRows(double, odd).check()
    assert "'two words'" in MapRows(double, odd, WORD).check()[0]
    assert MapBatches(upper, odd, WORD).check() == FilterBatches(upper, odd).check() == []
    assert MapRows(3, TEXT, pa.schema([])).check() == ["3 cannot be called", "the output has no columns"]  # type: ignore[arg-type]
    assert Select(("line", "nothing", "line"), TEXT).check() == [
        "it names 'line' twice", "there is no column 'nothing'",
    ]  # fmt: skip
    assert Select((), TEXT).check() == ["it names no column"]


def test_labels_are_what_a_user_wrote() -> None:
    assert MapRows(double, TEXT, WORD).label == "map(double)"
    assert FilterBatches(lambda b: b, TEXT).label == "filter_batches(lambda)"
    assert Select(("line", "size"), TEXT).label == "select(line, size)"
