"""The columns in which a table keeps something of each key: numbers of a fixed width, or texts, or bytes.

Invariant: numbers lie in numpy arrays of their type; texts and bytes are Python objects in an array of objects,
which has None where no key is.

Values are ordered in an accumulator as they are in their type, and come out as they went in; but integers and floats of
all widths are kept, and come out, with 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from statebackend.errors import ProgramError

Column = NDArray[np.generic]

OBJECTS: Final[np.dtype[np.generic]] = np.dtype(object)
"""The numpy type of a column of texts or bytes."""

_OF_OBJECT: Final = 50
"""The memory of an object besides its letters or bytes."""

_WEIGHED: Final = 256
"""The number of objects from which the memory of a column is estimated."""

_MANY: Final = 1 << 16
"""Arrays of so many items grow in great steps: room that nothing was written to takes no memory, copies take time."""

_Item = TypeVar("_Item", bound=np.generic)


class AggregationError(ProgramError, ValueError):
    """An aggregation that is declared or fed with what it cannot handle; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A column of integers, floats, texts or bytes, and what a key begins with in it."""

    dtype: np.dtype[np.generic]
    initial: int | float | str | bytes = 0

    @classmethod
    def of(cls, dtype: DTypeLike, initial: int | float | str | bytes = 0) -> Accumulator:
        """Return the accumulator of this numpy type, of `str` or of `bytes`; `AggregationError` for any other."""
        if dtype is str or dtype is bytes:
            return cls(OBJECTS, initial or ("" if dtype is str else b""))
        found = np.dtype(dtype)
        if found.kind not in "iuf" or found.itemsize > 8:
            raise AggregationError(
                f"an accumulator of {found} cannot be kept; use integers or floats up to 64 bits, str or bytes"
            )
        return cls(np.dtype(found.type), initial)

    @classmethod
    def named(cls, name: str) -> Accumulator:
        """Return the accumulator with this `type_name`; its initial value is not known."""
        return cls.of({"str": str, "bytes": bytes}.get(name, name))

    @property
    def type_name(self) -> str:
        """Return the name of its type in a table's declaration."""
        return type(self.initial).__name__ if self.dtype == OBJECTS else self.dtype.name

    @property
    def arrow(self) -> pa.DataType:
        """Return the Arrow type of the column as people see it."""
        if self.dtype == OBJECTS:
            return pa.string() if isinstance(self.initial, str) else pa.binary()
        return pa.from_numpy_dtype(self.dtype)


def blank(items: int, dtype: np.dtype[np.generic]) -> Column:
    """Return a column of so many items that no key has written to."""
    return np.full(items, None) if dtype == OBJECTS else np.zeros(items, dtype=dtype)


def grown(array: NDArray[_Item], least: int) -> NDArray[_Item]:
    """Return the same items with nothing after them, at least so many as asked for."""
    result = cast("NDArray[_Item]", blank(max(least, (2 if len(array) < _MANY else 8) * len(array)), array.dtype))
    result[: len(array)] = array
    return result


def clear(column: Column, at: NDArray[np.int64] | NDArray[np.bool_]) -> None:
    """Let go of what keys have written there."""
    items: NDArray[Any] = column
    items[at] = None if column.dtype == OBJECTS else 0


def to_arrow(column: Column) -> pa.Array:
    """Return the column as Arrow stores it; `from_arrow` gives the same one back."""
    if column.dtype != OBJECTS:
        return pa.array(column)
    some = next((one for one in column if one is not None), b"")
    return pa.array(column, pa.large_string() if isinstance(some, str) else pa.large_binary())


def from_arrow(array: pa.Array) -> Column:
    """Return the column that was stored; `ValueError` if it is of a type that none has."""
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        objects: Column = array.to_numpy(zero_copy_only=False)
        return objects
    numbers: Column = array.to_numpy()
    return numbers


def bytes_of(column: Column) -> int:
    """Return the memory that a column takes, about."""
    if column.dtype != OBJECTS or not len(column):
        return column.nbytes
    some = column[:: -(-len(column) // _WEIGHED)].tolist()
    sizes = [_OF_OBJECT + len(one) for one in some if one is not None]
    return column.nbytes + sum(sizes) * len(column) // len(some)


_MOST_DIGITS: Final = 18
"""Decimals of so many digits are integers of 64 bits with a point."""

Kept = type[np.int64] | type[np.float64] | type[str] | type[bytes]


@dataclass(frozen=True, slots=True)
class ValueForm:
    """The form in which values of one Arrow type are kept. `name` stands in files; `type` is that of the results."""

    name: str
    type: pa.DataType
    kept: Kept

    def into(self, values: pa.Array, taker: str) -> Column:
        """Return values without nulls as they are kept; `AggregationError` names the taker if they cannot be."""
        if values.type != self.type:
            values = self._cast(values, taker)
        found: Column
        if self.name in ("int", "float"):
            found = values.to_numpy()
        elif self.kept is str or self.kept is bytes:
            found = values.to_numpy(zero_copy_only=False)
        elif pa.types.is_decimal(self.type):
            found = np.frombuffer(values.buffers()[1] or b"", np.int64)[::2][values.offset :][: len(values)]
        else:
            found = _ticks(values).to_numpy(zero_copy_only=False)
        return found

    def out(self, column: Column, none: NDArray[np.bool_]) -> pa.Array:
        """Return what is kept of some keys as an array of `type`, null where there is `none`."""
        if self.kept is not np.int64 or self.name == "int":
            return pa.array(column, self.type, mask=none)
        if pa.types.is_decimal(self.type):
            words = np.stack((column, column.astype(np.int64) >> 63), axis=1)
            return pa.Array.from_buffers(
                self.type, len(column), [pa.array(~none).buffers()[1], pa.py_buffer(words.tobytes())]
            )
        ticks = pa.array(column, mask=none)
        if pa.types.is_boolean(self.type):
            return ticks.cast(self.type)
        return (ticks.cast(pa.int32()) if self.type.bit_width == 32 else ticks).view(self.type)

    def _cast(self, values: pa.Array, taker: str) -> pa.Array:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
            if values.type == self.type:
                return values
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
            "times, booleans, texts and bytes; a ValueState or ReducingState keeps anything"
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
