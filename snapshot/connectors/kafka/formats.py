"""The values of Kafka records: JSON, Arrow, Avro, bytes, or the result of a function.

Invariant: a record's rows follow from its value alone; which record does not fit is told by decoding again in
smaller and smaller parts, so that good ones are decoded many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from snapshot.connectors.files.line_formats import are_objects, json_objects
from snapshot.connectors.kafka.columns import ERROR, Record, column_of, is_kafkas
from statebackend.errors import JobError

Value: TypeAlias = "bytes | None"
Columns: TypeAlias = Mapping[str, "ArrayLike | pa.Array | Sequence[object]"]
Deserializer: TypeAlias = Callable[[Sequence[Value]], "pa.RecordBatch | Columns"]
"""The values of some records to columns, with one row for each; what it raises means that some value does not fit."""

KafkaFormat: TypeAlias = "Literal['raw', 'json', 'avro', 'arrow'] | Deserializer"
OnBad: TypeAlias = Literal["fail", "skip", "column"]

FORMATS: Final = ("raw", "json", "avro", "arrow")
RAW: Final = pa.schema([pa.field("value", pa.binary())])
"""The schema of raw records, unless another is given."""


class BadRecord(JobError):
    """A record's value that does not fit."""

    def __init__(self, record: Record, problem: object) -> None:
        super().__init__(str(problem))
        self.record = record


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Rows of records. `ends` counts the rows up to the end of each record; None if each has one. `bad` records were
    left out; `why` says which the last one is, and what is wrong with it.
    """

    rows: pa.RecordBatch
    ends: NDArray[np.int64] | None = None
    bad: int = 0
    why: str = ""


class RecordDecoder:
    """Records to rows of a schema."""

    def __init__(self, format: KafkaFormat, schema: pa.Schema, on_bad: OnBad) -> None:
        self._schema = schema
        self._on_bad = on_bad
        self._data = pa.schema([field for field in schema if not is_kafkas(field)])
        self._decode = _decoder(format, self._data)

    def decoded(self, records: Sequence[Record]) -> Decoded:
        """Return the rows of all records, in order.

        Raises `BadRecord` for the first record that does not fit, unless bad ones are to be skipped or kept.
        """
        if not records:
            return Decoded(_no_rows(self._schema))
        try:
            return self._whole(records)
        except Exception as error:  # whatever a deserializer does with bytes that it does not expect
            if len(records) == 1:
                return self._bad(records[0], error)
        middle = len(records) // 2
        return _joined(
            (self.decoded(records[:middle]), middle), (self.decoded(records[middle:]), len(records) - middle)
        )

    def _whole(self, records: Sequence[Record]) -> Decoded:
        data = self._decode([record.value() for record in records]) if len(self._data) else None
        columns = {} if data is None else dict(zip(self._data.names, data.rows.columns, strict=True))
        for field in self._schema:
            if is_kafkas(field):
                column = column_of(field, records)
                columns[field.name] = column if data is None else _repeated(column, data.ends)
        return Decoded(_fitted(columns, self._schema), None if data is None else data.ends)

    def _bad(self, record: Record, problem: Exception) -> Decoded:
        match self._on_bad:
            case "fail":
                raise BadRecord(record, problem) from problem
            case "skip":
                why = f"the record at offset {record.offset()} does not fit: {problem}"
                return Decoded(_no_rows(self._schema), np.zeros(1, np.int64), 1, why)
            case "column":
                columns = {field.name: self._of_bad(field, record, problem) for field in self._schema}
                return Decoded(_fitted(columns, self._schema))

    def _of_bad(self, field: pa.Field, record: Record, problem: Exception) -> pa.Array:
        if field.name == ERROR:
            return pa.array([str(problem)], field.type)
        if is_kafkas(field):
            try:
                return column_of(field, [record])
            except pa.ArrowInvalid:  # it is this very one that does not fit
                return pa.nulls(1, field.type)
        return pa.nulls(1, field.type)


def _repeated(column: pa.Array, ends: NDArray[np.int64] | None) -> pa.Array:
    """Repeat the value of each record for each of its rows."""
    if ends is None:
        return column
    return column.take(pa.array(np.repeat(np.arange(len(column)), np.diff(ends, prepend=0))))


def _joined(*parts: tuple[Decoded, int]) -> Decoded:
    """Join parts into one; each comes with the number of its records."""
    before, ends = 0, []
    for decoded, records in parts:
        ends.append(before + (np.arange(1, records + 1) if decoded.ends is None else decoded.ends))
        before += decoded.rows.num_rows
    rows = pa.concat_batches([decoded.rows for decoded, _ in parts])
    bad = sum(decoded.bad for decoded, _ in parts)
    return Decoded(rows, np.concatenate(ends), bad, next((one.why for one, _ in reversed(parts) if one.why), ""))


def _fitted(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    for field in schema:
        if not field.nullable and columns[field.name].null_count:
            raise pa.ArrowInvalid(f"the column {field.name!r} must not be null")
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


# --- the formats ------------------------------------------------------------------------------------------------------

_Decode: TypeAlias = Callable[[Sequence[Value]], Decoded]


def _decoder(format: KafkaFormat, schema: pa.Schema) -> _Decode:
    match format:
        case "raw":
            return lambda values: Decoded(
                pa.RecordBatch.from_arrays([pa.array(values, pa.binary()).cast(schema.field(0).type)], schema=schema)
            )
        case "json":
            return _json(schema)
        case "arrow":
            return lambda values: _arrow(values, schema)
        case "avro":
            from snapshot.connectors.kafka.avro import Avro, avro_schema_of

            return _deserialized(Avro(avro_schema_of(schema)), schema)
        case _:
            return _deserialized(format, schema)


def _json(schema: pa.Schema) -> _Decode:
    """Return a decoder that parses all values at once; each must begin and end as a JSON object does."""
    parse = json_objects(schema)

    def decode(values: Sequence[Value]) -> Decoded:
        texts = [b"{}" if value is None else value for value in values]
        joined = b"\n".join(texts)
        if not (joined.count(b"\n") == len(texts) - 1 and are_objects(joined)):
            texts = [text.strip() for text in texts]
            if not all(text[:1] == b"{" and text[-1:] == b"}" for text in texts):
                raise pa.ArrowInvalid("the value is not a JSON object")
            joined = b"\n".join(texts)
        rows = parse(joined)
        if rows.num_rows != len(texts):
            raise pa.ArrowInvalid(f"{rows.num_rows} JSON objects are in {len(texts)} values; one must be in each")
        return Decoded(rows)

    return decode


def _arrow(values: Sequence[Value], schema: pa.Schema) -> Decoded:
    """Decode values that are IPC streams with any number of rows; a single batch is not copied."""
    batches: list[pa.RecordBatch] = []
    ends = np.zeros(len(values), np.int64)
    rows = 0
    for place, value in enumerate(values):
        for batch in _streamed(value, schema):
            batches.append(batch)
            rows += batch.num_rows
        ends[place] = rows
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches or [_no_rows(schema)])
    return Decoded(whole, ends)


def _streamed(value: Value, schema: pa.Schema) -> Sequence[pa.RecordBatch]:
    if value is None:
        return [pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)]
    with pa.ipc.open_stream(pa.py_buffer(value)) as stream:
        places = [stream.schema.get_field_index(name) for name in schema.names]
        for place, field in zip(places, schema, strict=True):
            if place < 0:
                raise pa.ArrowInvalid(f"it has no column {field.name!r}; it has {', '.join(stream.schema.names)}")
            if stream.schema.field(place).type != field.type:
                raise pa.ArrowInvalid(
                    f"its column {field.name!r} is {stream.schema.field(place).type}; the schema has {field.type}"
                )
        return [
            pa.RecordBatch.from_arrays([batch.column(place) for place in places], schema=schema) for batch in stream
        ]


def _deserialized(deserialize: Deserializer, schema: pa.Schema) -> _Decode:
    def decode(values: Sequence[Value]) -> Decoded:
        made = deserialize(values)
        if isinstance(made, pa.RecordBatch):
            made = dict(zip(made.schema.names, made.columns, strict=True))
        columns = [_column(made, field, len(values)) for field in schema]
        return Decoded(pa.RecordBatch.from_arrays(columns, schema=schema))

    return decode


def _column(made: Columns, field: pa.Field, rows: int) -> pa.Array:
    if field.name not in made:
        raise ValueError(
            f"the deserializer gave no column {field.name!r}; it gave {', '.join(map(str, made)) or 'none'}"
        )
    column = pa.array(made[field.name], field.type)
    if len(column) != rows:
        raise ValueError(
            f"the deserializer was given {rows} values, and gave {len(column)} rows in the column {field.name!r}"
        )
    return column


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
