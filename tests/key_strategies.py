"""Declared key types and keys of them, drawn by hypothesis, and the Arrow columns in which the same keys may come."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import strategies as st

from statebackend.keys.structs import StructKey
from statebackend.keys.times import DateKey, TimestampKey
from statebackend.keys.types import BinaryKey, BooleanKey, DecimalKey, FloatKey, IntegerKey, KeyType, NullKey, StringKey

SCALARS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.binary(5), pa.binary(16)),
    *(pa.date32(), pa.null(), pa.decimal128(9, 2), pa.decimal128(38, -3), pa.decimal256(38, 38), pa.decimal256(70, 5)),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
]

ZONES: list[dt.tzinfo] = [dt.UTC, dt.timezone(dt.timedelta(hours=-7, minutes=-30)), ZoneInfo("Europe/Berlin")]

scalar_types = st.sampled_from([KeyType.of(declared) for declared in SCALARS])


def structs(fields: st.SearchStrategy[KeyType]) -> st.SearchStrategy[KeyType]:
    some = st.lists(fields, min_size=1, max_size=4)
    names = st.lists(st.text(max_size=5), min_size=4, max_size=4, unique=True)
    unnamed = some.map(lambda parts: StructKey(tuple(parts)))
    return unnamed | st.builds(
        lambda parts, all_names: StructKey(tuple(parts), tuple(all_names[: len(parts)])), some, names
    )


key_types = st.one_of(scalar_types, st.recursive(scalar_types, structs, max_leaves=6))


def keys_of(key_type: KeyType) -> st.SearchStrategy[object]:
    """Keys in Python, the null key among them."""
    return st.none() | _keys_that_are_not_null(key_type)


def _keys_that_are_not_null(key_type: KeyType) -> st.SearchStrategy[object]:
    match key_type:
        case IntegerKey(bits=bits, signed=True):
            return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        case IntegerKey(bits=bits):
            return st.integers(0, (1 << bits) - 1)
        case FloatKey(bits=16 | 32 | 64 as bits):
            return st.floats(width=bits)
        case BooleanKey():
            return st.booleans()
        case StringKey():
            return st.text(max_size=30)
        case BinaryKey(size=None):
            return st.binary(max_size=200)
        case BinaryKey(size=int(size)):
            return st.binary(min_size=size, max_size=size)
        case DateKey():
            return st.dates()
        case TimestampKey():
            return _times(key_type)
        case DecimalKey(precision=precision, scale=scale):
            # Arrow's own conversion of a number with more digits than the precision before its point goes wrong.
            most = 10 ** (precision + min(scale, 0)) - 1
            return st.integers(-most, most).map(lambda unscaled: exact(unscaled, scale))
        case NullKey():
            return st.none()
        case StructKey():
            return st.tuples(*map(keys_of, key_type.fields))
        case _:
            raise AssertionError(key_type)


def exact(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _times(key_type: TimestampKey) -> st.SearchStrategy[object]:
    first, last = dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)
    if key_type.zoned:
        times = st.datetimes(first, last, timezones=st.sampled_from(ZONES), allow_imaginary=False)
    else:
        times = st.datetimes(first, last)
    kept = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[key_type.unit]
    return times.map(lambda time: time.replace(microsecond=time.microsecond // kept * kept))


def array_of(keys: Sequence[object], key_type: KeyType) -> pa.Array:
    """The column that Arrow itself makes of these keys."""
    return pa.array([_as_arrow_takes_it(key, key_type) for key in keys], type=key_type.arrow)


def _as_arrow_takes_it(key: object, key_type: KeyType) -> object:
    if not isinstance(key_type, StructKey) or not isinstance(key, tuple):
        return key
    names = [field.name for field in key_type.arrow]
    parts = (_as_arrow_takes_it(part, field) for part, field in zip(key, key_type.fields, strict=True))
    return dict(zip(names, parts, strict=True))


def sliced(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array, array, array[:1]])[len(array) : 2 * len(array)]


def chunked(array: pa.Array) -> pa.ChunkedArray:
    middle = len(array) // 2
    return pa.chunked_array([array[:middle], array[:0], array[middle:]], type=array.type)


def dictionary(array: pa.Array) -> pa.Array:
    """Encoded with a dictionary in another order that has nulls, and entries that no row has."""
    entries = pa.concat_arrays(
        [array[:1], pa.nulls(1, array.type), array.take(pa.array(range(len(array) - 1, -1, -1), pa.int64()))]
    )
    indices = [None if not item.is_valid else len(array) + 1 - index for index, item in enumerate(array)]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), entries)


def large(array: pa.Array) -> pa.Array:
    return array.cast({pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(array.type, array.type))


def view(array: pa.Array) -> pa.Array:
    return array.cast({pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}.get(array.type, array.type))


FORMS: dict[str, Callable[[pa.Array], pa.Array | pa.ChunkedArray]] = {
    "plain": lambda array: array,
    "sliced": sliced,
    "chunked": chunked,
    "dictionary": dictionary,
    "sliced dictionary": lambda array: sliced(dictionary(array)),
    "large": lambda array: sliced(large(array)),
    "view": lambda array: sliced(view(array)),
    "dictionary of views": lambda array: dictionary(view(array)),
}
"""The forms in which the same keys may come."""
