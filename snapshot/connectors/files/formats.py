"""Rows as the bytes of one file: Parquet, JSON lines or CSV, so that `Files` with the same schema reads them back.
Texts with line breaks it does not read from CSV.

Invariant: columns that cannot be written in a format are refused when the program is checked; and a value that
JSON has no way to say, as no reader would get it back, is refused when it comes, and never written as another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from snapshot.operators.row_class import shown_row
from statebackend.errors import JobError

WrittenFormat: TypeAlias = Literal["parquet", "jsonl", "csv"]

_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""The years 1 to 9999, in days since 1970."""
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

EXTENSIONS: Final = {"parquet": "parquet", "jsonl": "jsonl", "csv": "csv"}


class Unsayable(JobError, ValueError):
    """A value that the format has no way to say; the message names its column and its row, and says what to do."""


def refuse_unsayable(format: WrittenFormat, batch: pa.RecordBatch) -> None:
    """Raise `Unsayable` for a row with a number that JSON does not have, or a time that text cannot say."""
    if format == "parquet":
        return
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        place = _first_time_out_of_bounds(column)
        if place is not None:
            raise Unsayable(
                f"the time {column[place].value} in the column {name!r}, which is {column.type}, is not within the "
                f"years 1 to 9999, and {format} cannot say it; the row is {shown_row(batch, place)}. Drop such rows "
                f"before the sink, give them another time, or write parquet"
            )
        place = _first_that_is_no_number(column) if format == "jsonl" else None
        if place is not None:
            raise Unsayable(
                f"JSON has no number for NaN or infinity, and the column {name!r} has one; the row is "
                f"{shown_row(batch, place)}. Drop such rows before the sink, make the value null or text, or write "
                f"a format that has it, such as parquet, Avro or Arrow"
            )


def encoded(format: WrittenFormat, table: pa.Table) -> pa.Buffer:
    """Encode rows as the bytes of one file; `Unsayable` if the format has no way to say one of them."""
    for batch in table.to_batches():
        refuse_unsayable(format, batch)
    out = pa.BufferOutputStream()
    _WRITERS[format](table, out)
    return out.getvalue()


def unsuitable(format: WrittenFormat, schema: pa.Schema) -> Sequence[str]:
    """Return which columns the format cannot hold, in sentences."""
    if format == "parquet":
        return []
    fits = _fits_json if format == "jsonl" else _is_plain
    return [
        f"{format} cannot hold the column {field.name!r} of {field.type}; use parquet, or convert it to a string"
        for field in schema
        if not fits(field.type)
    ]


def _write_parquet(table: pa.Table, out: pa.NativeFile) -> None:
    pq.write_table(table, out)


def _write_csv(table: pa.Table, out: pa.NativeFile) -> None:
    csv.write_csv(table, out)


def _write_json_lines(table: pa.Table, out: pa.NativeFile) -> None:
    """Write the rows as JSON lines, with times as texts."""
    for batch in table.to_batches(max_chunksize=4096):
        columns = [pc.cast(column, pa.string()) if _is_time(column.type) else column for column in batch.columns]
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
        out.write("".join(map(_json_line, rows)).encode())


def _json_line(row: object) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _first_that_is_no_number(column: pa.Array) -> int | None:
    """Return the first row of a column with a NaN or an infinity in it, however deep; None if there is none."""
    kind = column.type
    if pa.types.is_floating(kind):
        finite = np.isfinite(pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False))
        return None if finite.all() else int(np.argmin(finite))
    if pa.types.is_struct(kind):
        places = [_first_that_is_no_number(field) for field in column.flatten()]
        return min((place for place in places if place is not None), default=None)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        place = _first_that_is_no_number(column.flatten())
        if place is None:
            return None
        # A null list may have values, which `flatten` leaves out, and `list_parent_indices` does not.
        ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False))
        return int(np.searchsorted(ends, place, side="right"))
    return None


def _first_time_out_of_bounds(column: pa.Array) -> int | None:
    if not _is_time(column.type) or column.type == pa.timestamp("ns") or len(column) == column.null_count:
        return None
    # Of days, and of times of any zone, the text is bounded as that of times without one.
    days = pa.types.is_date32(column.type)
    per_day = 1 if days else 86_400_000 if pa.types.is_date64(column.type) else 86_400 * _PER_SECOND[column.type.unit]
    numbers = column.cast(pa.int32() if days else pa.int64())
    first, last = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1
    bounds = pc.min_max(numbers)
    if first <= bounds["min"].as_py() and bounds["max"].as_py() <= last:
        return None
    fits = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return int(pc.index(pc.fill_null(fits, True), False).as_py())


def _fits_json(type: pa.DataType) -> bool:
    """True if JSON lines can hold the type; times are converted in columns only, not inside of lists and structs."""
    return _is_time(type) or _fits_nested(type)


def _fits_nested(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return all(_fits_nested(field.type) for field in type)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return _fits_nested(type.value_type)
    return _is_simple(type)


def _is_plain(type: pa.DataType) -> bool:
    return _is_simple(type) or _is_time(type) or bool(pa.types.is_decimal(type))


def _is_simple(type: pa.DataType) -> bool:
    is_number = pa.types.is_integer(type) or pa.types.is_floating(type)
    return bool(is_number or pa.types.is_boolean(type) or pa.types.is_string(type) or pa.types.is_large_string(type))


def _is_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) or pa.types.is_date(type))


_WRITERS: dict[str, Callable[[pa.Table, pa.NativeFile], None]] = {
    "parquet": _write_parquet,
    "jsonl": _write_json_lines,
    "csv": _write_csv,
}
