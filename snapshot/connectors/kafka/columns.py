"""The columns of a Kafka source that are not in the records' values: key, offset, time and what else Kafka keeps.

Invariant: a column whose name begins with `kafka_` is one of these, and is filled for every record alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

_NO_TIME: Final = 0
"""The mark of a Kafka record without a timestamp."""


class Record(Protocol):
    """A record as the client library gives it."""

    def value(self) -> bytes | None:
        """Return the bytes of the record; None marks a deleted key in a compacted topic."""

    def key(self) -> bytes | None:
        """Return the key of the record; None if it has none."""

    def offset(self) -> int | None:
        """Return the offset of the record in its partition."""

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the record's time, and the time in milliseconds since 1970."""

    def headers(self) -> Headers:
        """Return names and values; in order, unless it is a mapping."""

    def topic(self) -> str | None:
        """Return the topic of the record."""

    def partition(self) -> int | None:
        """Return the partition of the record."""


Headers: TypeAlias = "Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None"
Values = Sequence[object]
Fill = Callable[[Sequence[Record]], Values]

ERROR: Final = "kafka_error"
"""The column that says what is wrong with a record, if bad ones are kept."""

_HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


def _timestamps(records: Sequence[Record]) -> Values:
    times = [record.timestamp() for record in records]
    return [None if kind == _NO_TIME else at for kind, at in times]


def _headers(records: Sequence[Record]) -> Values:
    return [_named(record.headers()) for record in records]


def _named(headers: Headers) -> list[dict[str, object]]:
    items = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [{"name": name, "value": value.encode() if isinstance(value, str) else value} for name, value in items]


_NATURAL: Final[dict[str, tuple[pa.DataType, Fill]]] = {
    "kafka_topic": (pa.string(), lambda records: [record.topic() for record in records]),
    "kafka_partition": (pa.int32(), lambda records: [record.partition() for record in records]),
    "kafka_offset": (pa.int64(), lambda records: [record.offset() for record in records]),
    "kafka_timestamp": (pa.timestamp("ms", "UTC"), _timestamps),
    "kafka_key": (pa.binary(), lambda records: [record.key() for record in records]),
    "kafka_value": (pa.binary(), lambda records: [record.value() for record in records]),
    "kafka_headers": (_HEADERS, _headers),
    ERROR: (pa.string(), lambda records: [None] * len(records)),
}

_TYPES: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "kafka_topic": (pa.string(),),
    "kafka_partition": (pa.int32(), pa.int64()),
    "kafka_offset": (pa.int64(),),
    "kafka_timestamp": (
        *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in ("UTC", None)),
        pa.int64(),
    ),
    "kafka_key": (pa.binary(), pa.string()),
    "kafka_value": (pa.binary(), pa.string()),
    "kafka_headers": (_HEADERS, pa.map_(pa.string(), pa.binary())),
    ERROR: (pa.string(),),
}
"""The types that each may have in the schema; the first is the natural one."""


def is_kafkas(field: pa.Field) -> bool:
    """True if the column is filled from what Kafka keeps beside a record's value."""
    return str(field.name).startswith("kafka_")


def column_problems(schema: pa.Schema) -> list[str]:
    """Return what is wrong with the columns `kafka_...` of a schema, in sentences."""
    problems = []
    for field in filter(is_kafkas, schema):
        types = _TYPES.get(field.name)
        if types is None:
            problems.append(f"there is no column {field.name!r}; Kafka has {', '.join(_TYPES)}")
        elif field.type not in types:
            known = " or ".join(dict.fromkeys(map(str, types)))
            problems.append(f"the column {field.name!r} is {field.type}; it can be {known}")
    return problems


def column_of(field: pa.Field, records: Sequence[Record]) -> pa.Array:
    """Return one of these columns for the records; `pa.ArrowInvalid` if it is text and a key or value is not UTF-8."""
    natural, fill = _NATURAL[field.name]
    column = pa.array(fill(records), natural)
    if column.type == field.type:
        return column
    if pa.types.is_map(field.type):
        pairs = column.values
        return pa.MapArray.from_arrays(column.offsets, pairs.field("name"), pairs.field("value"))
    if pa.types.is_timestamp(field.type):
        column = column.cast(pa.timestamp("ms", field.type.tz))
    return column.cast(field.type)
