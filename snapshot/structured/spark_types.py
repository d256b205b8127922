"""The types of Spark for rows of ours.

Invariant: a type that is given here is one that Spark makes of itself, there and back, as it compares the rows that a
reader gives with its own schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyarrow import types

from statebackend.errors import JobError

_MOST_DIGITS: Final = 38


class NoSparkType(JobError, TypeError):
    """A type for which Spark has none; the message names the column."""


def of_spark(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the nearest types that Spark has; `NoSparkType` if it has none for a column."""
    if faults := type_faults(schema):
        raise NoSparkType("; ".join(faults))
    return pa.schema([pa.field(field.name, _type(field.type)) for field in schema])


def type_faults(schema: pa.Schema) -> Sequence[str]:
    """Return a sentence for each column for which Spark has no type."""
    found: list[str] = []
    for field in schema:
        try:
            _type(field.type)
        except NoSparkType as error:
            found.append(f"column {field.name} is {field.type}, and Spark has no type for {error}")
    return found


def with_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the types of a schema that `of_spark` made."""
    columns = [_cast(column, one.type) for column, one in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _type(arrow: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark has; `NoSparkType` names the innermost one for which there is none."""
    if types.is_struct(arrow):
        return pa.struct([pa.field(field.name, _type(field.type)) for field in arrow])
    if types.is_map(arrow):
        return pa.map_(_type(arrow.key_type), _type(arrow.item_type))
    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        return pa.list_(_type(arrow.value_type))
    if types.is_dictionary(arrow):
        return _type(arrow.value_type)
    if types.is_decimal(arrow):
        if 0 <= arrow.scale <= arrow.precision <= _MOST_DIGITS:
            return pa.decimal128(arrow.precision, arrow.scale)
        raise NoSparkType(f"{arrow}: it has up to {_MOST_DIGITS} digits, as many of them after the point as you like")
    return _plain(arrow)


def _plain(arrow: pa.DataType) -> pa.DataType:
    if types.is_unsigned_integer(arrow):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(arrow.bit_width, pa.decimal128(20, 0))
    if types.is_float16(arrow):
        return pa.float32()
    if types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow):
        return pa.binary()
    if types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow):
        return pa.string()
    if types.is_binary_view(arrow):
        return pa.binary()
    if types.is_date(arrow):
        return pa.date32()
    if types.is_time(arrow):
        return pa.time64("ns")
    if types.is_timestamp(arrow):
        return pa.timestamp("us", None if arrow.tz is None else "UTC")
    if types.is_duration(arrow):
        return pa.duration("us")
    if types.is_signed_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow) or types.is_null(arrow):
        return arrow
    raise NoSparkType(str(arrow))


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type == wanted else column.cast(wanted, safe=False)
