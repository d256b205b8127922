"""Rows for functions that take one at a time: named tuples made of a batch's columns, batches made of them, and state.

Invariant: a batch turned into rows and back is the same; a result that does not fit a schema is refused with
the step, the row and the column that do not fit, and never bent into something that does. A row that is kept in state
comes back as an equal named tuple.
"""

from __future__ import annotations

from collections import Counter, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from keyword import iskeyword
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebackend.errors import ProgramError
from statebackend.states.codec_choice import NoCodec, codec_of
from statebackend.states.codec_shapes import StructCodec
from statebackend.states.codecs import Codec, NotEncodable

Row: TypeAlias = Any
"""The row that a function gets: a named tuple with the columns of its input as attributes, as its schema names them."""

RowLike: TypeAlias = Sequence[object] | Mapping[str, object]
"""The row that a function gives: a named tuple, a tuple or a list by position, or a mapping by name."""

_SHOWN: Final = 200
_WHOLE: Final = frozenset({int, type(None)})
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6}
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_800
"""The years 1 to 9999, in seconds since 1970."""


class NoPlainValue(ProgramError, ValueError):
    """A value of a batch that plain Python has no object for; the message names its column, its row and the limit."""


class WrongRow(ProgramError, TypeError):
    """A function gave a result that is no row of the schema declared for its output; `at` says which of its results."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at


def column_problems(schema: pa.Schema) -> list[str]:
    """Return why rows of this schema cannot be given to a function one at a time; each problem is a sentence."""
    problems = [
        f"the column {name!r} cannot be an attribute of a row: rename it to an identifier without an underscore in "
        f"front, or use a function of whole batches"
        for name in schema.names
        if not name.isidentifier() or iskeyword(name) or name.startswith("_")
    ]
    problems += [f"{count} columns are called {name!r}" for name, count in Counter(schema.names).items() if count > 1]
    return problems if schema.names else ["there is no column"]


def row_class(schema: pa.Schema) -> type[tuple[Any, ...]]:
    """Return the named tuple for rows of this schema: the same class for the same names; instances can be pickled.

    Raises `ValueError` for a schema that has `column_problems`.
    """
    return _class_of(tuple(schema.names))


def row_of(names: tuple[str, ...], values: tuple[object, ...]) -> Row:
    """Return the row with these columns; pickled rows are made with it."""
    return tuple.__new__(_class_of(names), values)


row_of.__module__ = "snapshot.program.row_class"  # pickled rows in stored state name it so, wherever it is


@lru_cache(maxsize=1024)
def _class_of(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    problems = column_problems(pa.schema([(name, pa.null()) for name in names]))
    if problems:
        raise ValueError("; ".join(problems))
    plain: type[tuple[Any, ...]] = namedtuple("Row", names)  # type: ignore[misc]  # the names are data
    members = {"__slots__": (), "__reduce__": lambda row: (row_of, (names, tuple(row)))}
    return type("Row", (plain,), members)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Return an iterator that makes each row of the batch when asked for it; raise `NoPlainValue` if one cannot be."""
    make = partial(tuple.__new__, row_class(batch.schema))
    try:
        columns = [values_of(column) for column in batch.columns]
    except (OverflowError, ValueError) as error:
        raise no_plain_value(batch, error) from error
    return map(make, zip(*columns, strict=True))


def mappings_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the batch's rows as mappings from the names of columns; raise `NoPlainValue` if one cannot be made."""
    try:
        return cast("list[dict[str, Any]]", batch.to_pylist())
    except (OverflowError, ValueError) as error:
        raise no_plain_value(batch, error) from error


def no_plain_value(batch: pa.RecordBatch, error: Exception) -> Exception:
    """Return the error that names the first value that plain Python cannot hold, or the given one if there is none."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for place, value in enumerate(column):
            if _has_no_plain_value(value):
                limit = "datetime holds the years 1 to 9999" if pa.types.is_temporal(column.type) else str(error)
                return NoPlainValue(
                    f"the column {name!r}, which is {column.type}, has {_number(value)} in row {place} of a batch, and "
                    f"Python has no such value: {limit}; the row is {shown_row(batch, place)}. Drop such rows before, "
                    f"or use functions of whole batches, which take them as they are"
                )
    return error


def shown_row(batch: pa.RecordBatch, place: int) -> str:
    """Return a row of a batch as text for an error message, whatever its values are."""
    row = {name: column[place] for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    values = {name: _number(value) if _has_no_plain_value(value) else value.as_py() for name, value in row.items()}
    return shown(values)


def _has_no_plain_value(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (OverflowError, ValueError):
        return True
    return False


def _number(value: pa.Scalar) -> object:
    """Return a time as the number that it is of its unit; for a nested value its type."""
    inner = getattr(value, "value", None)
    return inner if isinstance(inner, int) else f"a {value.type}"


def values_of(column: pa.Array) -> list[Any]:
    """Return a column in plain Python: the values of `to_pylist`, faster where possible."""
    kind, nulls = column.type, column.null_count > 0
    if pa.types.is_dictionary(kind):
        return values_of(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        return _moments(column)
    if _is_text(kind) or (not nulls and _is_plain(kind)):
        return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
    return cast("list[Any]", column.to_pylist())


def _is_text(kind: pa.DataType) -> bool:
    known = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in known)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _moments(column: pa.Array) -> list[Any]:
    """Return plain values of timestamps, made by numpy if `datetime` can hold all and they have no zone, or UTC."""
    kind = column.type
    bounds = pc.min_max(column.cast(pa.int64()))
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is None or kind.unit == "ns" or kind.tz not in (None, "UTC"):
        return cast("list[Any]", column.to_pylist())
    per_second = _PER_SECOND[kind.unit]
    if not _FIRST_SECOND * per_second <= least <= most < _LAST_SECOND * per_second:
        return cast("list[Any]", column.to_pylist())
    moments = column.to_numpy(zero_copy_only=False).astype(f"datetime64[{kind.unit}]").tolist()
    if kind.tz is None:
        return cast("list[Any]", moments)
    zone = pa.scalar(0, kind).as_py().tzinfo
    return [None if moment is None else moment.replace(tzinfo=zone) for moment in moments]


def batch_of(results: Sequence[RowLike], schema: pa.Schema, label: str) -> pa.RecordBatch:
    """Return a function's results as a batch; raise `WrongRow`, with the step's `label`, if one does not fit."""
    if not results:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    if not all(issubclass(kind, (tuple, list)) for kind in set(map(type, results))):
        results = [_in_order(result, schema, label, at) for at, result in enumerate(results)]
    width = len(schema)
    if set(map(len, results)) != {width}:
        at = next(at for at, result in enumerate(results) if len(result) != width)
        raise WrongRow(
            f"{label}: result {at} has {len(results[at])} values, and the output has {width} columns "
            f"({', '.join(schema.names)}): {shown(results[at])}",
            at,
        )
    columns = zip(*results, strict=True)
    arrays = [_column(values, field, label, results) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_order(result: object, schema: pa.Schema, label: str, at: int) -> Sequence[object]:
    if isinstance(result, (tuple, list)):
        return result
    if not isinstance(result, Mapping):
        hint = "; does every path of the function return something?" if result is None else ""
        raise WrongRow(
            f"{label}: result {at} is a {type(result).__name__}, not a tuple, a list or a mapping with the columns "
            f"{', '.join(schema.names)}: {shown(result)}{hint}",
            at,
        )
    if result.keys() != set(schema.names):
        lacking = [name for name in schema.names if name not in result]
        unknown = [str(name) for name in result if name not in schema.names]
        said = [f"it lacks {', '.join(lacking)}"] if lacking else []
        said += [f"the output has no {', '.join(unknown)}"] if unknown else []
        raise WrongRow(f"{label}: result {at} does not fit the output: {' and '.join(said)}: {shown(result)}", at)
    return [result[name] for name in schema.names]


def _column(values: Sequence[object], field: pa.Field, label: str, results: Sequence[object]) -> pa.Array:
    try:
        column = _array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for at, value in enumerate(values):
            try:
                _array((value,), field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise _misfit(label, at, field, value, results[at], str(error)) from None
        raise
    if column.null_count and not field.nullable:
        at = next(at for at, value in enumerate(column) if not value.is_valid)
        raise _misfit(label, at, field, values[at], results[at], "the column is declared without nulls")
    return column


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return the values as an Arrow array; raise `ValueError` where a number would lose its fraction."""
    if pa.types.is_integer(kind) and not _WHOLE.issuperset(map(type, values)):
        fraction = next((value for value in values if isinstance(value, (float, np.floating)) and value % 1), None)
        if fraction is not None:
            raise ValueError(f"{fraction!r} is not a whole number")
    return pa.array(values, kind)


def _misfit(label: str, at: int, field: pa.Field, value: object, result: object, why: str) -> WrongRow:
    return WrongRow(
        f"{label}: result {at} does not fit the column {field.name!r}, which is {field.type}: "
        f"{type(value).__name__} {shown(value)} ({why}); the result is {shown(result)}",
        at,
    )


def shown(value: object) -> str:
    """Return the beginning of a value as text for an error message; raise nothing, also where `repr` does."""
    try:
        text = repr(value)
    except Exception as error:
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def row_codec(schema: pa.Schema) -> Codec[Row]:
    """Return the codec of rows; raise `NoCodec` if a column cannot be kept.

    A row that the codec has accepted is of a type of its own, and is set in state without being looked at again.
    """
    codec = StructCodec([(field.name, codec_of(_plain(field.type))) for field in schema])
    codec.exact = type(codec.accept((None,) * len(schema)))
    return codec


def row_problems(schema: pa.Schema) -> Iterator[str]:
    """Yield the reasons why rows of this schema cannot be given to functions and kept in state."""
    yield from column_problems(schema)
    for field in schema:
        kind = _plain(field.type)
        try:
            codec_of(kind)
        except NoCodec:
            yield f"the column {field.name!r} is {field.type}, which cannot be kept in state: cast it, or leave it out"
        else:
            if _has_nanoseconds(kind):
                yield (
                    f"the column {field.name!r} is {field.type}, finer than Python's times: cast it to "
                    "microseconds, or leave it out"
                )


def accepted(codec: Codec[Row], result: object, label: str) -> Row:
    """Return the row that a user's function gave, as it is kept; `NotEncodable` says what does not fit."""
    try:
        return codec.accept(tuple(result) if isinstance(result, list) else result)
    except NotEncodable as error:
        raise NotEncodable(f"{label} gave what is no row of its input: {error}") from error


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(_has_nanoseconds(kind.field(index).type) for index in range(kind.num_fields))
