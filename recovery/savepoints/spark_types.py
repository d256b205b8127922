"""The types of Spark for rows of ours."""

from __future__ import annotations

import pyarrow as pa


def of_spark(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the nearest types that Spark has."""
    return pa.schema([pa.field(field.name, _type(field.type)) for field in schema])


def with_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the types of a schema that `of_spark` made."""
    columns = [_cast(column, one.type) for column, one in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _type(arrow: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark has."""
    types = pa.types
    if types.is_struct(arrow):
        return pa.struct([pa.field(field.name, _type(field.type)) for field in arrow])
    if types.is_unsigned_integer(arrow):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(arrow.bit_width, pa.decimal128(20, 0))
    if types.is_float16(arrow):
        return pa.float32()
    if types.is_fixed_size_binary(arrow) and not types.is_decimal(arrow):
        return pa.binary()
    if types.is_timestamp(arrow):
        return pa.timestamp("us", arrow.tz)
    return arrow


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type == wanted else column.cast(wanted, safe=False)
