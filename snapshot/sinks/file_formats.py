"""Rows as the bytes of one file: Parquet, JSON lines or CSV, so that `Files` with the same schema reads them back.
Texts with line breaks it does not read from CSV.

What always holds: what cannot be written in a format is refused when the program is checked, not when rows come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

WrittenFormat: TypeAlias = Literal["parquet", "jsonl", "csv"]

EXTENSIONS: Final = {"parquet": "parquet", "jsonl": "jsonl", "csv": "csv"}


def encoded(format: WrittenFormat, table: pa.Table) -> pa.Buffer:
    """The bytes of a file with these rows."""
    out = pa.BufferOutputStream()
    _WRITERS[format](table, out)
    return out.getvalue()


def unsuitable(format: WrittenFormat, schema: pa.Schema) -> Sequence[str]:
    """Which columns the format cannot hold; sentences."""
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
    """Times are texts; what JSON has no number for (NaN, infinities) is null."""
    for batch in table.to_batches(max_chunksize=4096):
        columns = [pc.cast(column, pa.string()) if _is_time(column.type) else column for column in batch.columns]
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
        out.write("".join(_json_line(row) for row in rows).encode())


def _json_line(row: object) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError:
        return _json_line(_finite(row))


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case _:
            return value


def _fits_json(type: pa.DataType) -> bool:
    """Times are converted in columns only, not inside of lists and structs."""
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
