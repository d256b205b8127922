"""Schemas as Spark writes them: DDL such as "user string, n bigint", and `StructType`. Neither needs PySpark here.

Invariant: a type becomes what PySpark makes of it in Arrow; a timestamp is one in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from statebackend.errors import ProgramError


class SparkStruct(Protocol):
    """A `pyspark.sql.types.StructType`."""

    @property
    def fields(self) -> Sequence[Any]:
        """Return its fields."""


class UnreadableSchema(ProgramError, ValueError):
    """A text that is no DDL of a schema, or a type that has no counterpart; the message says where and why."""


_TYPES: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    "double": pa.float64(),
    **dict.fromkeys(("string", "varchar", "char"), pa.string()),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")


def fields_of_ddl(text: str) -> list[pa.Field]:
    """Return the columns that a text of DDL declares; raise `UnreadableSchema` if it declares none."""
    return _Parser(text).columns()


def fields_of_struct(struct: SparkStruct) -> list[pa.Field]:
    """Return the columns of a `StructType`."""
    return [pa.field(field.name, _type_of(field.dataType, field.name), field.nullable) for field in struct.fields]


def _type_of(declared: Any, column: str) -> pa.DataType:
    """Return the Arrow type of one of Spark's types."""
    if hasattr(declared, "fields"):
        return pa.struct(fields_of_struct(declared))
    if hasattr(declared, "elementType"):
        element = _type_of(declared.elementType, column)
        return pa.list_(pa.field("element", element, declared.containsNull))
    if hasattr(declared, "keyType"):
        value = pa.field("value", _type_of(declared.valueType, column), declared.valueContainsNull)
        return pa.map_(_type_of(declared.keyType, column), value)
    return _Parser(str(declared.simpleString())).type_of(column)


class _Parser:
    """The tokens of a text, taken one by one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._at = 0

    def columns(self) -> list[pa.Field]:
        """Return all columns, which may stand in `struct<...>`."""
        whole = [token.lower() for token in self._tokens[:2]] == ["struct", "<"]
        self._at = 2 if whole else 0
        fields = self._fields(">" if whole else "")
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at]!r} is one thing too many")
        return fields

    def _fields(self, end: str) -> list[pa.Field]:
        fields = []
        while True:
            name = self._name()
            self._take(":")
            kind = self.type_of(name)
            nullable = True
            if self._take("not"):
                if not self._take("null"):
                    raise self._wrong(f"column {name!r}: NULL is missing after NOT")
                nullable = False
            if self._take("comment"):
                self._at += 1
            fields.append(pa.field(name, kind, nullable))
            if not self._take(","):
                break
        if end and not self._take(end):
            raise self._wrong(f"{end!r} is missing")
        return fields

    def type_of(self, column: str) -> pa.DataType:
        """Return the type that stands next, of this column."""
        name = self._word(f"column {column!r} has no type").lower()
        if name == "array":
            self._need("<")
            element = self.type_of(column)
            self._need(">")
            return pa.list_(pa.field("element", element))
        if name == "map":
            self._need("<")
            key = self.type_of(column)
            self._need(",")
            value = self.type_of(column)
            self._need(">")
            return pa.map_(key, value)
        if name == "struct":
            self._need("<")
            return pa.struct(self._fields(">"))
        numbers = self._numbers()
        if name in ("decimal", "dec", "numeric"):
            precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
            return pa.decimal128(precision, scale)
        if name not in _TYPES:
            raise self._wrong(
                f"column {column!r} is of type {name!r}, which is none of {', '.join(_TYPES)}, decimal(p, s), "
                "array<...>, map<...> and struct<...>"
            )
        return _TYPES[name]

    def _numbers(self) -> list[int]:
        found: list[int] = []
        if self._take("("):
            while not self._take(")"):
                word = self._word("')' is missing")
                if not word.isdigit():
                    raise self._wrong(f"{word!r} is no number")
                found.append(int(word))
                self._take(",")
        return found

    def _name(self) -> str:
        token = self._word("a column is missing")
        return token[1:-1].replace("``", "`") if token[0] == "`" else token

    def _word(self, missing: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at] in "<>(),:":
            raise self._wrong(missing)
        self._at += 1
        return self._tokens[self._at - 1]

    def _next(self, token: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].lower() == token

    def _take(self, token: str) -> bool:
        found = self._next(token)
        self._at += found
        return found

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self._wrong(f"{token!r} is missing")

    def _split(self) -> Iterator[str]:
        at = 0
        while self._text[at:].strip():
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._wrong(f"{self._text[at:].strip()!r} cannot be read")
            yield match[0].strip()
            at = match.end()

    def _wrong(self, why: str) -> UnreadableSchema:
        return UnreadableSchema(f"the schema {self._text!r} cannot be read: {why}; write 'user string, n bigint'")
