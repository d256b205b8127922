"""Rows of a stream as they are kept in state.

What always holds: what comes back is a named tuple with the columns of the schema, equal to the row that was kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from snapshot.operators.row_class import Row, column_problems
from statebackend.states.codec_choice import NoCodec, codec_of
from statebackend.states.codec_shapes import StructCodec
from statebackend.states.codecs import Codec, NotEncodable


def row_codec(schema: pa.Schema) -> Codec[Row]:
    """Return the codec of rows; raise `NoCodec` if a column cannot be kept.

    A row that the codec has accepted is of a type of its own, and is set in state without being looked at again.
    """
    codec = StructCodec([(field.name, codec_of(_plain(field.type))) for field in schema])
    codec.exact = type(codec.accept((None,) * len(schema)))
    return codec


def row_problems(schema: pa.Schema) -> Iterator[str]:
    """Yield the reasons why rows of this schema cannot be given to functions and kept in state."""
    yield from column_problems(schema)
    for field in schema:
        kind = _plain(field.type)
        try:
            codec_of(kind)
        except NoCodec:
            yield f"the column {field.name!r} is {field.type}, which cannot be kept in state: cast it, or leave it out"
        else:
            if _has_nanoseconds(kind):
                yield (
                    f"the column {field.name!r} is {field.type}, finer than Python's times: cast it to "
                    "microseconds, or leave it out"
                )


def accepted(codec: Codec[Row], result: object, label: str) -> Row:
    """Return the row that a user's function gave, as it is kept; `NotEncodable` says what does not fit."""
    try:
        return codec.accept(tuple(result) if isinstance(result, list) else result)
    except NotEncodable as error:
        raise NotEncodable(f"{label} gave what is no row of its input: {error}") from error


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(_has_nanoseconds(kind.field(index).type) for index in range(kind.num_fields))
