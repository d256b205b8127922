"""Rows divided into folders by the values of columns, `day=2026-01-01/country=de`, named as Spark names them.

Invariant: the columns stand in the folder's name and not in the rows; rows of a folder keep their order. A
reader that knows Hive's folders (Spark, `pyarrow.dataset`) finds each value again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.program.problems import unknown_column

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null, and for an empty text, which a folder's name could not tell from it."""
_LONGEST_NAME: Final = 255
"""Bytes that a folder's name may have on the usual file systems."""
_ESCAPED: Final = {ord(char): f"%{ord(char):02X}" for char in (*map(chr, range(32)), *"\"#%'*/:=?\\\x7f{[]^")}
"""The characters that Spark escapes, as in its `ExternalCatalogUtils`, and NUL, which no folder can have in its name.
"""
_PLAIN: Final = r"(?:[^\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^\ud800-\udfff]|%[0-9A-F]{2})"
_FOLDER: Final = re.compile(f"{_PLAIN}+={_PLAIN}+")


def divided(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Return the rows of each folder, in the order of the folders' first rows."""
    place = np.zeros(rows.num_rows, np.int64)
    names: list[list[str]] = []
    for column in columns:
        values = rows.column(column).combine_chunks().dictionary_encode(null_encoding="encode")
        names.append(folders_of(column, values.dictionary))
        place = place * len(names[-1]) + values.indices.to_numpy()
    kept = rows.drop_columns(list(columns))
    _, first, which = np.unique(place, return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for index in np.argsort(first, kind="stable"):
        code, parts = int(place[first[index]]), []
        for of_column in reversed(names):
            code, value = divmod(code, len(of_column))
            parts.append(of_column[value])
        start = ends[index - 1] if index else 0
        yield "/".join(reversed(parts)), kept.take(pa.array(order[start : ends[index]]))


def folders_of(column: str, values: pa.Array) -> list[str]:
    """Return the names of the folders for these values of a column."""
    start = column.translate(_ESCAPED)
    return [f"{start}={text.translate(_ESCAPED) if text else NO_VALUE}" for text in _texts(values)]


def is_folder(name: str) -> bool:
    """True if this is a name of a folder for rows, or of several, each in the one before.

    Such a folder never lies outside of the one in which it is looked for.
    """
    return all(_FOLDER.fullmatch(part) and len(part.encode()) <= _LONGEST_NAME for part in name.split("/"))


def unsuitable_columns(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return why rows cannot be divided by these columns, in sentences."""
    faults = [f"partition_by: {unknown_column(name, schema)}" for name in columns if name not in schema.names]
    if len(set(columns)) < len(columns):
        faults.append("partition_by names a column twice")
    if columns and set(schema.names) <= set(columns):
        faults.append("partition_by names all columns; at least one has to be left for the files")
    known = [schema.field(name) for name in columns if schema.names.count(name) == 1]
    return faults + [
        f"partition_by: the column {field.name!r} of {field.type} cannot name folders; use texts, integers, booleans, "
        f"dates, times or decimals"
        for field in known
        if not _can_name(field.type)
    ]


def too_long(column: str, values: pa.Array) -> str:
    """Return a value for which no folder can be named, as the name would be too long; empty if there is none."""
    if not _is_text(values.type):
        return ""
    most = pc.max(pc.binary_length(values)).as_py() or 0
    if 3 * (most + len(column.encode())) < _LONGEST_NAME:
        return ""
    unique = values.unique()
    names = zip(folders_of(column, unique), unique.to_pylist(), strict=True)
    return next((str(value) for name, value in names if len(name.encode()) > _LONGEST_NAME), "")


def _texts(values: pa.Array) -> list[str | None]:
    type = values.type
    if pa.types.is_timestamp(type):
        texts = pc.cast(values.cast(pa.timestamp(type.unit)), pa.string()).to_pylist()
        return [text and _without_zeros(text) for text in texts]
    if pa.types.is_decimal(type):
        return [None if value is None else _plain(value) for value in values.to_pylist()]
    return list(pc.cast(values, pa.string()).to_pylist())


def _without_zeros(time: str) -> str:
    return time.rstrip("0").rstrip(".") if "." in time else time


def _plain(value: Decimal) -> str:
    return format(value, "f")


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _can_name(type: pa.DataType) -> bool:
    known = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal)
    return _is_text(type) or any(is_of(type) for is_of in known)
