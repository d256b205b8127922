"""Steps without state: maps, filters and selections, of one row at a time or of whole Arrow batches.

Invariant: what comes out is of the schema that was declared, and has the event time of the row that it was made
of; an exception of the user's function goes through as it is, with a note that shows the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.operators.operator import Apply, name_of
from snapshot.operators.row_class import Row, RowLike, WrongRow, batch_of, column_problems, rows_of, shown
from snapshot.operators.rows import Rows
from statebackend.errors import ProgramError

Batches: TypeAlias = "pa.RecordBatch | Iterable[pa.RecordBatch] | None"


class WrongResult(ProgramError, TypeError):
    """A function gave a result that its step does not take: another kind of thing, or too many or too few."""


@dataclass(frozen=True, slots=True, eq=False)
class MapRows:
    """One row out for each row in."""

    function: Callable[[Row], RowLike]
    input: pa.Schema
    output: pa.Schema

    @property
    def label(self) -> str:
        """Return a label such as `map(parse)`."""
        return f"map({name_of(self.function)})"

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        return _callable(self.function) + column_problems(self.input) + _columns(self.output)

    def open(self) -> Apply:
        """Make it ready."""
        label, function, output = self.label, self.function, self.output

        def apply(rows: Rows) -> Sequence[Rows]:
            results = _called(label, function, rows.batch)
            try:
                return _some(Rows(batch_of(results, output, label), rows.times))
            except WrongRow as error:
                _name_row(error, label, rows.batch, error.at)
                raise

        return apply


@dataclass(frozen=True, slots=True, eq=False)
class FlatMapRows:
    """Any number of rows out for each row in: the function returns them, or is a generator."""

    function: Callable[[Row], Iterable[RowLike]]
    input: pa.Schema
    output: pa.Schema

    @property
    def label(self) -> str:
        """Return a label such as `flat_map(words)`."""
        return f"flat_map({name_of(self.function)})"

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        return _callable(self.function) + column_problems(self.input) + _columns(self.output)

    def open(self) -> Apply:
        """Make it ready."""
        label, function, output = self.label, self.function, self.output

        def rows_made_of(row: Row) -> list[RowLike]:
            made = cast("object", function(row))
            if isinstance(made, Iterable) and not isinstance(made, (str, bytes)):
                return list(made)
            raise WrongResult(
                f"{label} gave a {type(made).__name__}, {shown(made)}: return a list of rows (an empty one for none), "
                f"or yield them"
            )

        def apply(rows: Rows) -> Sequence[Rows]:
            lists = _called(label, rows_made_of, rows.batch)
            times = rows.times
            if times is not None:
                times = np.repeat(times, [len(made) for made in lists])
            try:
                return _some(Rows(batch_of([row for made in lists for row in made], output, label), times))
            except WrongRow as error:
                ends = np.cumsum([len(made) for made in lists])
                _name_row(error, label, rows.batch, int(np.searchsorted(ends, error.at, side="right")))
                raise

        return apply


@dataclass(frozen=True, slots=True, eq=False)
class FilterRows:
    """The rows for which the function is true."""

    function: Callable[[Row], object]
    input: pa.Schema

    @property
    def label(self) -> str:
        """Return a label such as `filter(is_valid)`."""
        return f"filter({name_of(self.function)})"

    @property
    def output(self) -> pa.Schema:
        """Return the schema of its input."""
        return self.input

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        return _callable(self.function) + column_problems(self.input)

    def open(self) -> Apply:
        """Make it ready."""
        label, function = self.label, self.function

        def apply(rows: Rows) -> Sequence[Rows]:
            answers = _called(label, function, rows.batch)
            if type(None) in set(map(type, answers)):
                at = next(at for at, answer in enumerate(answers) if answer is None)
                row = shown(next(rows_of(rows.batch.slice(at, 1))))
                raise WrongResult(f"{label} gave None for the row {row}: return True or False")
            return _some(rows.where(np.fromiter(map(bool, answers), np.bool_, len(answers))))

        return apply


@dataclass(frozen=True, slots=True, eq=False)
class MapBatches:
    """A function of a batch that gives another, several, or None; just as many rows if they have event times."""

    takes_batches: ClassVar[bool] = True
    function: Callable[[pa.RecordBatch], Batches]
    input: pa.Schema
    output: pa.Schema

    @property
    def label(self) -> str:
        """Return a label such as `map_batches(parse)`."""
        return f"map_batches({name_of(self.function)})"

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        return _callable(self.function) + _columns(self.output)

    def open(self) -> Apply:
        """Make it ready."""
        label, function, output = self.label, self.function, self.output

        def apply(rows: Rows) -> Sequence[Rows]:
            made = function(rows.batch)
            batches = [fitting(batch, output, label) for batch in _batches(made, label)]
            if rows.times is None:
                return [Rows(batch) for batch in batches if batch.num_rows]
            if sum(batch.num_rows for batch in batches) != len(rows):
                given = sum(batch.num_rows for batch in batches)
                raise WrongResult(
                    f"{label} made {given} rows of {len(rows)}, and they have event times: use flat_map_batches, whose "
                    f"function says which row each was made of"
                )
            ends = np.cumsum([0, *(batch.num_rows for batch in batches)])
            return [
                Rows(batch, rows.times[start : start + batch.num_rows])
                for batch, start in zip(batches, ends[:-1], strict=True)
                if batch.num_rows
            ]

        return apply


@dataclass(frozen=True, slots=True, eq=False)
class FlatMapBatches:
    """A function of a batch that also gives, for each row, the place of the row that it was made of, beginning at 0."""

    takes_batches: ClassVar[bool] = True
    function: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Any]]
    input: pa.Schema
    output: pa.Schema

    @property
    def label(self) -> str:
        """Return a label such as `flat_map_batches(words)`."""
        return f"flat_map_batches({name_of(self.function)})"

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        return _callable(self.function) + _columns(self.output)

    def open(self) -> Apply:
        """Make it ready."""
        label, function, output = self.label, self.function, self.output

        def apply(rows: Rows) -> Sequence[Rows]:
            made = cast("object", function(rows.batch))
            if not isinstance(made, tuple) or len(made) != 2:
                raise WrongResult(
                    f"{label} gave a {type(made).__name__}: return a batch, and an array with the place of the row "
                    f"that each of its rows was made of"
                )
            batch = fitting(made[0], output, label)
            places = _places(made[1], batch.num_rows, len(rows), label)
            return _some(Rows(batch, None if rows.times is None else rows.times[places]))

        return apply


@dataclass(frozen=True, slots=True, eq=False)
class FilterBatches:
    """The rows where the function's array is true; where it is null, they are dropped."""

    takes_batches: ClassVar[bool] = True
    function: Callable[[pa.RecordBatch], Any]
    input: pa.Schema

    @property
    def label(self) -> str:
        """Return a label such as `filter_batches(is_valid)`."""
        return f"filter_batches({name_of(self.function)})"

    @property
    def output(self) -> pa.Schema:
        """Return the schema of its input."""
        return self.input

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        return _callable(self.function)

    def open(self) -> Apply:
        """Make it ready."""
        label, function = self.label, self.function

        def apply(rows: Rows) -> Sequence[Rows]:
            return _some(rows.where(_chosen(function(rows.batch), len(rows), label)))

        return apply


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Some of the columns, in this order."""

    columns: tuple[str, ...]
    input: pa.Schema

    @property
    def label(self) -> str:
        """Return a label such as `select(user, amount)`."""
        return f"select({', '.join(self.columns)})"

    @property
    def output(self) -> pa.Schema:
        """Return the chosen columns as they are in the input."""
        return pa.schema([self.input.field(name) for name in self.columns])

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        problems = [] if self.columns else ["it names no column"]
        problems += [f"it names {name!r} twice" for name in dict.fromkeys(self.columns) if self.columns.count(name) > 1]
        return problems + [f"there is no column {name!r}" for name in self.columns if name not in self.input.names]

    def open(self) -> Apply:
        """Make it ready."""
        columns = list(self.columns)
        return lambda rows: _some(Rows(rows.batch.select(columns), rows.times))


def fitting(batch: object, schema: pa.Schema, label: str) -> pa.RecordBatch:
    """Return the batch with exactly this schema; raise `WrongResult` if it is no batch or its columns are others."""
    if not isinstance(batch, pa.RecordBatch):
        raise WrongResult(f"{label} gave a {type(batch).__name__}, {shown(batch)}, where a RecordBatch is expected")
    if batch.schema.equals(schema):
        return batch
    given = [(field.name, field.type) for field in batch.schema]
    if given != [(field.name, field.type) for field in schema]:
        raise WrongResult(f"{label} gave a batch with {_in_words(batch.schema)}; declared is {_in_words(schema)}")
    for column, field in zip(batch.columns, schema, strict=True):
        if column.null_count and not field.nullable:
            raise WrongResult(f"{label} gave nulls in {field.name!r}, which is declared without nulls")
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _in_words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _called(label: str, function: Callable[[Row], Any], batch: pa.RecordBatch) -> list[Any]:
    """Return the function's result for each row; its exception gets a note that names the row."""
    results: list[Any] = []
    add = results.append
    rows, row = rows_of(batch), None
    try:
        for row in rows:
            add(function(row))
    except BaseException as error:
        error.add_note(f"in {label}, for the row {shown(row)}")
        raise
    return results


def _name_row(error: Exception, label: str, batch: pa.RecordBatch, at: int) -> None:
    error.add_note(f"in {label}, for the row {shown(next(rows_of(batch.slice(at, 1))))}")


def _some(rows: Rows) -> Sequence[Rows]:
    return (rows,) if len(rows) else ()


def _batches(made: object, label: str) -> list[object]:
    if made is None:
        return []
    if isinstance(made, pa.RecordBatch):
        return [made]
    if isinstance(made, pa.Table):
        return cast("list[object]", made.to_batches())
    if isinstance(made, Iterable) and not isinstance(made, (str, bytes)):
        return list(made)
    raise WrongResult(f"{label} gave a {type(made).__name__}: return a RecordBatch, an iterable of them, or None")


def _places(given: object, count: int, limit: int, label: str) -> NDArray[np.int64]:
    places = np.asarray(given)
    if places.ndim != 1 or len(places) != count or (count and places.dtype.kind not in "iu"):
        raise WrongResult(
            f"{label}: {count} rows came with {places.size} places of type {places.dtype}: return an array with one "
            f"integer for each row"
        )
    if count and not 0 <= places.min() <= places.max() < limit:
        raise WrongResult(f"{label}: places from {places.min()} to {places.max()} in a batch of {limit} rows")
    return places.astype(np.int64)


def _chosen(given: object, count: int, label: str) -> NDArray[np.bool_]:
    if isinstance(given, (pa.Array, pa.ChunkedArray)) and pa.types.is_boolean(given.type):
        chosen = np.asarray(given.fill_null(False))
    else:
        chosen = np.asarray(given)
    if chosen.ndim != 1 or len(chosen) != count or (count and chosen.dtype != np.bool_):
        raise WrongResult(
            f"{label} gave {chosen.size} values of type {chosen.dtype} for {count} rows: return an array with True or "
            f"False for each"
        )
    return chosen.astype(np.bool_)


def _callable(function: object) -> list[str]:
    return [] if callable(function) else [f"{function!r} cannot be called"]


def _columns(schema: pa.Schema) -> list[str]:
    return [] if schema.names else ["the output has no columns"]
