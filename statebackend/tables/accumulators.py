"""The columns in which a table keeps something of each key: numbers of a fixed width, or texts, or bytes.

What always holds: numbers lie in numpy arrays of their type; texts and bytes are Python objects in an array of objects,
which has None where no key is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

Column = NDArray[np.generic]

OBJECTS: Final[np.dtype[np.generic]] = np.dtype(object)
"""The numpy type of a column of texts or bytes."""

_OF_OBJECT: Final = 50
"""What an object takes besides its letters or bytes."""

_WEIGHED: Final = 256
"""What a column of objects takes is known from so many of them."""


class AggregationError(ValueError):
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
        """The name of its type in a table's declaration."""
        return type(self.initial).__name__ if self.dtype == OBJECTS else self.dtype.name

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the column in front of people."""
        if self.dtype == OBJECTS:
            return pa.string() if isinstance(self.initial, str) else pa.binary()
        return pa.from_numpy_dtype(self.dtype)


def blank(items: int, dtype: np.dtype[np.generic]) -> Column:
    """Return a column of so many items that no key has written to."""
    return np.full(items, None) if dtype == OBJECTS else np.zeros(items, dtype=dtype)


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
