"""Schemas as people declare them: Arrow's own, names with Arrow or Python types, or Spark's, as DDL or a `StructType`.

Invariant: a schema that was declared has no two columns of one name and no metadata, so that rows of two
schemas are alike exactly if the schemas are equal.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, TypeAlias, get_args, get_origin

import pyarrow as pa

from statebackend.errors import ProgramError
from statebackend.spark_schemas import SparkStruct, fields_of_ddl, fields_of_struct

SchemaLike: TypeAlias = "pa.Schema | Mapping[str, object] | str | SparkStruct"
"""An Arrow schema; or for each column's name an Arrow type, the name of one such as "float64", or one of `int`,
`float`, `str`, `bool`, `bytes`, `datetime`, `date`, `time`, `timedelta` (of Python's `datetime`), `list[...]` of one,
or a mapping for a struct; or as Spark writes it, "user string, n bigint" or a `StructType`.
"""

_PYTHON: Final[Mapping[object, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us"),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}


class NotASchema(ProgramError, ValueError):
    """Something that declares no schema; each of `reasons` says which column, and what would do."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def schema_of(declared: SchemaLike) -> pa.Schema:
    """Return the schema that is declared; raise `NotASchema` if it is none."""
    if isinstance(declared, pa.Schema):
        schema = declared.remove_metadata()
    elif isinstance(declared, Mapping):
        schema = pa.schema(_fields_of(declared))
    elif isinstance(declared, str) or hasattr(declared, "fields"):
        schema = pa.schema(_fields_of_spark(declared))
    else:
        raise NotASchema(
            f"{declared!r} is no schema; give a pyarrow.Schema, a dict of column names and types, a StructType of "
            "Spark, or a text such as 'user string, n bigint'"
        )
    twice = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if twice:
        raise NotASchema(f"the schema has more than one column {twice[0]!r}; give each a name of its own")
    return schema


def arrow_schema(declared: SchemaLike) -> pa.Schema:
    """Return an Arrow schema as it is, and what is declared otherwise as `schema_of` does."""
    return declared if isinstance(declared, pa.Schema) else schema_of(declared)


def _fields_of(declared: Mapping[str, object]) -> list[pa.Field]:
    fields, reasons = list[pa.Field](), list[str]()
    for name, kind in declared.items():
        try:
            fields.append(pa.field(_name(name), _type_of(name, kind)))
        except NotASchema as error:
            reasons += error.reasons
    if reasons:
        raise NotASchema(*reasons)
    return fields


def _fields_of_spark(declared: str | SparkStruct) -> list[pa.Field]:
    try:
        return fields_of_ddl(declared) if isinstance(declared, str) else fields_of_struct(declared)
    except ValueError as error:  # a decimal with too many digits is one of Arrow
        raise NotASchema(str(error)) from None


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise NotASchema(f"a column is called {name!r}; a name is a text")
    return name


def _type_of(column: str, declared: object) -> pa.DataType:
    if isinstance(declared, pa.DataType):
        return declared
    if isinstance(declared, Mapping):
        return pa.struct([pa.field(_name(name), _type_of(column, declared[name])) for name in declared])
    if get_origin(declared) is list:
        return pa.list_(_type_of(column, get_args(declared)[0]))
    if isinstance(declared, type) and declared in _PYTHON:
        return _PYTHON[declared]
    if isinstance(declared, str):
        with suppress(ValueError):
            return pa.type_for_alias(declared)
    raise NotASchema(
        f"column {column!r} is declared as {declared!r}; give an Arrow type such as pyarrow.string() or 'string', or "
        "one of int, float, str, bool, bytes, datetime, date, time, timedelta"
    )
