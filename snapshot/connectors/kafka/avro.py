"""Avro in the values of records: one datum without a header in each, of a schema that is known beforehand.

Invariant: the writer's schema is given, and never guessed from bytes; no schema registry is asked.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

if TYPE_CHECKING:
    from fastavro.types import Schema

CONFLUENT_HEADER: Final = 5
"""Bytes that clients of a schema registry put before the datum: a zero, and the number of the schema."""


@dataclass(frozen=True, slots=True)
class Avro:
    """A deserializer of Avro data that were written with this schema, a record as JSON text.

    `skip` bytes before each datum are not looked at. Needs the extra `avro`.
    """

    schema: str
    skip: int = 0

    def __call__(self, values: Sequence[bytes | None]) -> Mapping[str, Sequence[object]]:
        """Decode the values into the columns of the record; a null value has null in each of them."""
        from fastavro import schemaless_reader

        parsed, names = _parsed(self.schema)
        rows = [
            None
            if value is None
            else cast("Mapping[str, object]", schemaless_reader(io.BytesIO(value[self.skip :]), parsed, None))
            for value in values
        ]
        return {name: [None if row is None else row[name] for row in rows] for name in names}


@cache
def _parsed(schema: str) -> tuple[Schema, Sequence[str]]:
    from fastavro import parse_schema

    declared = json.loads(schema)
    if not isinstance(declared, dict) or declared.get("type") != "record":
        raise ValueError(f"the values' Avro schema must be a record; it is {schema[:200]}")
    return parse_schema(declared), [str(field["name"]) for field in declared["fields"]]


def avro_schema_of(schema: pa.Schema) -> str:
    """Return the Avro schema of rows with these columns, in this order; `ValueError` for what Avro has no type for.

    A column that may be null is a union with null first.
    """
    return json.dumps(_record(schema, "row"))


def _record(fields: Iterable[pa.Field], name: str) -> dict[str, object]:
    """Return the Avro record of these columns, named after the column it lies in, so that no two names are the same."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field.name, "type": _type(field, f"{name}_{field.name}")} for field in fields],
    }


def _type(field: pa.Field, name: str) -> object:
    plain = _plain(field.type, name)
    return ["null", plain] if field.nullable else plain


_PLAIN: Final[Mapping[pa.DataType, object]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}
_PER_UNIT: Final = {"ms": "millis", "us": "micros"}


def _plain(type: pa.DataType, name: str) -> object:
    if type in _PLAIN:
        return _PLAIN[type]
    if pa.types.is_timestamp(type) and type.unit in _PER_UNIT:
        zone = "" if type.tz else "local-"
        return {"type": "long", "logicalType": f"{zone}timestamp-{_PER_UNIT[type.unit]}"}
    if pa.types.is_decimal128(type):
        return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return {"type": "array", "items": _type(type.value_field, name)}
    if pa.types.is_map(type) and pa.types.is_string(type.key_type):
        return {"type": "map", "values": _type(type.item_field, name)}
    if pa.types.is_struct(type):
        return _record(type, name)
    raise ValueError(f"Avro has no type for {type}; give an Avro(...) with the schema of the writer as the format")
