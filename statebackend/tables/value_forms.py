"""Values of a column as a table keeps one of them per key: which types have an order, and the way there and back.

What always holds: values are ordered in an accumulator as they are in their type, and come out as they went in; but
integers and floats of all widths are kept, and come out, with 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statebackend.tables.accumulators import AggregationError, Column

_MOST_DIGITS: Final = 18
"""Decimals of so many digits are integers of 64 bits with a point."""

Kept = type[np.int64] | type[np.float64] | type[str] | type[bytes]


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How values of one Arrow type are kept. `name` stands in files; `type` is that of the results."""

    name: str
    type: pa.DataType
    kept: Kept

    def into(self, values: pa.Array, taker: str) -> Column:
        """Return values without nulls as they are kept; `AggregationError` names the taker if they cannot be."""
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if values.type != self.type:
            values = self._cast(values, taker)
        found: Column
        if self.kept is str or self.kept is bytes:
            found = values.to_numpy(zero_copy_only=False)
        elif pa.types.is_decimal(self.type):
            found = np.frombuffer(values.buffers()[1] or b"", np.int64)[::2][values.offset :][: len(values)]
        elif self.name in ("int", "float"):
            found = values.to_numpy()
        else:
            found = _ticks(values).to_numpy(zero_copy_only=False)
        return found

    def out(self, column: Column, none: NDArray[np.bool_]) -> pa.Array:
        """Return what is kept of some keys as an array of `type`, null where there is `none`."""
        if pa.types.is_decimal(self.type):
            words = np.stack((column, column.astype(np.int64) >> 63), axis=1)
            return pa.Array.from_buffers(
                self.type, len(column), [pa.array(~none).buffers()[1], pa.py_buffer(words.tobytes())]
            )
        if self.kept is not np.int64 or self.name == "int":
            return pa.array(column, self.type, mask=none)
        ticks = pa.array(column, mask=none)
        if pa.types.is_boolean(self.type):
            return ticks.cast(self.type)
        return (ticks.cast(pa.int32()) if self.type.bit_width == 32 else ticks).view(self.type)

    def _cast(self, values: pa.Array, taker: str) -> pa.Array:
        given, types = values.type, pa.types
        number = types.is_integer(given) or types.is_floating(given)
        to_float = self.name == "float"
        if self.name in ("int", "float") and (not number or (types.is_floating(given) and not to_float)):
            raise AggregationError(f"{taker} cannot take a column of {given}; cast it to {self.type}")
        try:
            return pc.cast(values, self.type, safe=not to_float)
        except pa.ArrowException as error:
            raise AggregationError(f"{taker} cannot take a value of this batch: {error}") from error


def form_of(type: pa.DataType, taker: str) -> ValueForm:
    """Return the form for values of this type; `AggregationError` names the taker if they have no order."""
    found = _form_of(type.value_type if pa.types.is_dictionary(type) else type)
    if found is None:
        raise AggregationError(
            f"{taker} cannot be over a column of {type}: it takes numbers, decimals of up to {_MOST_DIGITS} digits, "
            "times, booleans, texts and bytes; a Value or Reducing state keeps anything"
        )
    return found


@lru_cache(maxsize=256)
def _form_of(type: pa.DataType) -> ValueForm | None:
    types = pa.types
    if types.is_integer(type):
        return ValueForm("int", pa.int64(), np.int64)
    if types.is_floating(type):
        return ValueForm("float", pa.float64(), np.float64)
    if types.is_string(type) or types.is_large_string(type) or types.is_string_view(type):
        return ValueForm("string", type if types.is_large_string(type) else pa.string(), str)
    if types.is_fixed_size_binary(type):
        return ValueForm(str(type), type, bytes)
    if types.is_binary(type) or types.is_large_binary(type) or types.is_binary_view(type):
        return ValueForm("binary", type if types.is_large_binary(type) else pa.binary(), bytes)
    if types.is_decimal(type) and type.precision <= _MOST_DIGITS:
        return ValueForm(str(type), pa.decimal128(type.precision, type.scale), np.int64)
    if types.is_boolean(type) or (types.is_temporal(type) and not types.is_interval(type)):
        return ValueForm(str(type), type, np.int64)
    return None


def _ticks(values: pa.Array) -> pa.Array:
    """Return times as integers since their beginning, and booleans as 0 and 1."""
    if pa.types.is_boolean(values.type):
        return values.cast(pa.int64())
    return values.view(pa.int32()).cast(pa.int64()) if values.type.bit_width == 32 else values.view(pa.int64())
