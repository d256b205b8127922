"""Rows as records of Kafka: which columns become key, value, headers, partition and time, and their bytes.

Invariant: the bytes of a record follow from its rows alone, and are not more than a producer takes; what can be
told from the schema is refused when the program is checked.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapshot.connectors.files.formats import encoded, refuse_unsayable, unsuitable
from snapshot.connectors.kafka.avro import avro_schema_of
from snapshot.connectors.kafka.sink_client import LARGEST_RECORD
from snapshot.program.problems import unknown_column

RecordFormat: TypeAlias = Literal["json", "avro", "arrow"]
FORMATS: Final = ("json", "avro", "arrow")
_ARROW_BYTES: Final = 256 << 10
"""About so large are records that hold many rows, and twice as large at most, but for those with a single one."""
_AROUND: Final = 36
"""Bytes that are around a record at most, as a producer counts them."""
_AROUND_HEADER: Final = 10


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The columns of a row that become the parts of its record.

    `value` is a column whose bytes are the value; without, all columns but those of `headers`, `partition`,
    `timestamp` and `tombstone` are in it, in the `format`. A row whose `tombstone` is true has no value.
    `largest` are the bytes of the largest record that a producer takes.
    """

    key: str | None = None
    value: str | None = None
    format: RecordFormat = "json"
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    tombstone: str | None = None
    largest: int = LARGEST_RECORD

    def encode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Turn rows into records: a row each, with the columns `key`, `value`, and those of the others that are used.

        Any error is about a row that is not as the schema promises, or too large.
        """
        records = self._of_many_rows(rows) if self._many_rows_in_each else self._of_one_row(rows)
        _refuse_too_large(records, self.largest)
        return records

    def unsuitable(self, schema: pa.Schema) -> Iterator[str]:
        """Yield why rows of this schema cannot be written as records, in sentences."""
        for use, fits, wanted in _COLUMNS:
            column = getattr(self, use)
            if column is not None and column not in schema.names:
                yield f"{use}: {unknown_column(column, schema)}"
            elif column is not None and not fits(schema.field(column).type):
                yield f"the {use} cannot be in the column {column!r} of {schema.field(column).type}; it takes {wanted}"
        if self.tombstone is not None and self.key is None:
            yield "rows without a value say that a key is gone, so tombstone needs a key"
        if self.format == "arrow" and self.value is None and not self._many_rows_in_each:
            yield "a record of Arrow holds many rows, so it has no key, headers, partition, timestamp or tombstone"
        if self.format not in FORMATS:
            yield f"there is no format {self.format!r}; known are {', '.join(FORMATS)}"
        elif self.value is None:
            yield from self._unsuitable_values(self._in_value(schema))

    def _unsuitable_values(self, schema: pa.Schema) -> Iterator[str]:
        if self.format == "json":
            yield from unsuitable("jsonl", schema)
        if self.format == "avro":
            try:
                avro_schema_of(schema)
            except ValueError as error:
                yield str(error)

    def _of_one_row(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = {"key": self._keys(rows), "value": self._values(rows)}
        for name, convert in _OTHERS.items():
            if (column := getattr(self, name)) is not None:
                columns[name] = convert(rows.column(column))
        return pa.RecordBatch.from_pydict(columns)

    def _of_many_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        most = min(2 * _ARROW_BYTES, self.largest - _AROUND)
        values = [stream for part in _parts(rows) for stream in _streams(part, most)]
        return pa.RecordBatch.from_pydict({"key": pa.nulls(len(values), pa.binary()), "value": values}, _PLAIN)

    @property
    def _many_rows_in_each(self) -> bool:
        others = (self.key, self.value, self.headers, self.partition, self.timestamp, self.tombstone)
        return self.format == "arrow" and others == (None,) * len(others)

    def _in_value(self, schema: pa.Schema) -> pa.Schema:
        apart = {self.headers, self.partition, self.timestamp, self.tombstone}
        return pa.schema([field for field in schema if field.name not in apart])

    def _keys(self, rows: pa.RecordBatch) -> pa.Array:
        if self.key is None:
            return pa.nulls(len(rows), pa.binary())
        refuse_unsayable("jsonl", rows.select([self.key]))
        return _plain_bytes(rows.column(self.key))

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        if self.value is not None:
            values = _plain_bytes(rows.column(self.value))
        else:
            data = rows.select(self._in_value(rows.schema).names)
            if self.tombstone is not None:
                return self._with_tombstones(data, rows.column(self.tombstone))
            values = pa.array(_ENCODERS[self.format](data), pa.binary())
        if self.tombstone is None:
            return values
        gone = pc.fill_null(rows.column(self.tombstone), False)
        return pc.if_else(gone, pa.scalar(None, pa.binary()), values)

    def _with_tombstones(self, data: pa.RecordBatch, tombstone: pa.Array) -> pa.Array:
        """Encode the values of the rows that have one; the other rows need not be fit to be written."""
        gone = pc.fill_null(tombstone, False)
        values = iter(_ENCODERS[self.format](data.filter(pc.invert(gone))))
        return pa.array([None if is_gone else next(values) for is_gone in gone.to_pylist()], pa.binary())


def are_records(schema: pa.Schema) -> bool:
    """True if `RecordShape.encode` gives rows of this schema."""
    return (
        set(_RECORD) - set(_OTHERS) <= set(schema.names) <= set(_RECORD)
        and len(set(schema.names)) == len(schema.names)
        and all(field.type == _RECORD[field.name] for field in schema)
    )


def _plain_bytes(column: pa.Array) -> pa.Array:
    """Convert a column to bytes: bytes as they are, texts in UTF-8, anything else as JSON; nulls stay."""
    if _is_bytes(column.type):
        return column.cast(pa.binary())
    lines = _json(pa.RecordBatch.from_arrays([column], names=["k"]))
    return pa.array(
        [line[len('{"k":') : -1] if valid else None for line, valid in zip(lines, column.is_valid(), strict=True)],
        pa.binary(),
    )


# --- the formats of values --------------------------------------------------------------------------------------------


def _json(rows: pa.RecordBatch) -> list[bytes]:
    lines: list[bytes] = encoded("jsonl", pa.Table.from_batches([rows])).to_pybytes().split(b"\n")
    return lines[:-1]


def _avro(rows: pa.RecordBatch) -> list[bytes]:
    from fastavro import schemaless_writer

    parsed, found = _parsed(avro_schema_of(rows.schema)), []
    for row in rows.to_pylist(maps_as_pydicts="strict"):
        out = io.BytesIO()
        schemaless_writer(out, parsed, row)
        found.append(out.getvalue())
    return found


@cache
def _parsed(schema: str) -> dict[str, object]:
    from fastavro import parse_schema

    parsed = parse_schema(json.loads(schema))
    assert isinstance(parsed, dict)
    return parsed


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the rows into parts, each about as many as a record takes if all are of one size."""
    each = max(1, len(rows) * _ARROW_BYTES // max(rows.nbytes, 1))
    return (rows.slice(first, each) for first in range(0, len(rows), each))


def _streams(rows: pa.RecordBatch, most: int) -> Iterator[bytes]:
    """Yield the rows as streams, halved until each has at most `most` bytes or a single row."""
    stream = _stream(rows)
    if len(stream) <= most or len(rows) == 1:
        yield stream
    else:
        middle = len(rows) // 2
        yield from _streams(rows.slice(0, middle), most)
        yield from _streams(rows.slice(middle), most)


def _stream(rows: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    data: bytes = out.getvalue().to_pybytes()
    return data


def _refuse_too_large(records: pa.RecordBatch, largest: int) -> None:
    """Raise `ValueError` if a producer does not take one of the records.

    Such a record would stay too large, so it is better refused now than at its commit.
    """
    sizes = _AROUND + _lengths(records.column("key")) + _lengths(records.column("value"))
    if "headers" in records.schema.names:
        headers = records.column("headers")
        each = _AROUND_HEADER + _lengths(headers.keys) + _lengths(headers.items)
        sizes += np.diff(np.concatenate(([0], np.cumsum(each)))[headers.offsets.to_numpy()])
    if sizes.max(initial=0) <= largest:
        return
    place = int(sizes.argmax())
    key = records.column("key")[place].as_py()
    shown = "no key" if key is None else f"the key {key[:100].decode(errors='replace')!r}"
    raise ValueError(
        f"the record with {shown} has {sizes[place]} bytes, and a producer takes {largest}; for more, give the option "
        f"message.max.bytes, and the topic max.message.bytes"
    )


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    """Return the number of bytes of each value; 0 for a null."""
    lengths: NDArray[np.int64] = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return lengths


_ENCODERS: Final[Mapping[str, Callable[[pa.RecordBatch], list[bytes]]]] = {"json": _json, "avro": _avro}
_PLAIN: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])

# --- the other columns ------------------------------------------------------------------------------------------------


def _headers(column: pa.MapArray) -> pa.Array:
    return column.cast(pa.map_(pa.string(), pa.binary()))


def _milliseconds(column: pa.Array) -> pa.Array:
    """Convert times to milliseconds since 1970; a null becomes 0, for the time at which the record is sent."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return pc.fill_null(column.cast(pa.int64()), 0)


def _partitions(column: pa.Array) -> pa.Array:
    """Return the partition of each record; -1 for a null, which leaves the choice to the key."""
    return pc.fill_null(column.cast(pa.int32()), -1)


_OTHERS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    "headers": _headers,
    "partition": _partitions,
    "timestamp": _milliseconds,
}
_RECORD: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
    "partition": pa.int32(),
    "timestamp": pa.int64(),
}
"""The columns of records, and their types."""


def _is_bytes(type: pa.DataType) -> bool:
    is_text = pa.types.is_string(type) or pa.types.is_large_string(type)
    return bool(is_text or pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _is_key(type: pa.DataType) -> bool:
    return _is_bytes(type) or not unsuitable("jsonl", pa.schema([pa.field("key", type)]))


def _is_headers(type: pa.DataType) -> bool:
    return bool(pa.types.is_map(type) and pa.types.is_string(type.key_type) and _is_bytes(type.item_type))


def _is_moment(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) or pa.types.is_int64(type))


_COLUMNS: Final[Sequence[tuple[str, Callable[[pa.DataType], bool], str]]] = (
    ("key", _is_key, "texts, bytes, or what JSON can hold"),
    ("value", _is_bytes, "texts or bytes"),
    ("headers", _is_headers, "maps from texts to texts or bytes"),
    ("partition", pa.types.is_integer, "whole numbers"),
    ("timestamp", _is_moment, "timestamps, or milliseconds since 1970 as int64"),
    ("tombstone", pa.types.is_boolean, "booleans"),
)
