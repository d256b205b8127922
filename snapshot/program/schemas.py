"""What there is to say about the columns of a schema: in words, and which cannot travel between partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pyarrow as pa

from snapshot.program.problems import near_names


def columns_in_words(schema: pa.Schema) -> str:
    """Describe the columns, as in `user: string, cents: int64`, or say `no columns`."""
    columns = (f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
    return ", ".join(columns) or "no columns"


def unknown_column(column: str, schema: pa.Schema) -> str:
    """Return the sentence that a column is not there, with the names that may be meant."""
    if not isinstance(cast("object", column), str):
        return f"{column!r} is no name of a column; give names as texts, one after the other"
    return f"there is no column {column!r}; {near_names(column, schema.names)}"


def dictionaries(schema: pa.Schema) -> list[str]:
    """Return the columns with a dictionary-encoded type in them."""
    return [field.name for field in schema if _has(field.type, pa.types.is_dictionary)]


def views(schema: pa.Schema) -> list[str]:
    """Return the columns with views of texts or bytes in them, of which Arrow cannot take single rows."""
    return [field.name for field in schema if _has(field.type, _is_view)]


def _is_view(declared: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(declared) or pa.types.is_binary_view(declared))


def _has(declared: pa.DataType, kind: Callable[[pa.DataType], bool]) -> bool:
    return kind(declared) or any(_has(declared.field(index).type, kind) for index in range(declared.num_fields))
