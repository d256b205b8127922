"""Columns of Arrow to and from the canonical bytes of the keys in them.

Invariant: the bytes of a row are those that `KeyType.encode` gives for its value in Python; a column whose type
may hold what the declared type does not is refused, except where only the values decide (units of time, scales).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statebackend.keys.packing import (
    BrokenPacking,
    Packed,
    concatenated,
    fields_of,
    of_lengths,
    of_width,
    struct_of,
)
from statebackend.keys.structs import StructKey
from statebackend.keys.times import DateKey, TimestampKey
from statebackend.keys.types import (
    BinaryKey,
    BooleanKey,
    BrokenKey,
    DecimalKey,
    FloatKey,
    IntegerKey,
    KeyType,
    NullKey,
    StringKey,
    UndeclarableKeyType,
    WrongKeyType,
)

Nulls = NDArray[np.bool_] | None

_DAY_MS = 86_400_000
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NAN = np.uint64(0x7FF8000000000000)


def packed(column: pa.Array | pa.ChunkedArray, key_type: KeyType) -> Packed:
    """Return the canonical bytes of the keys in a column, not copied where Arrow has them in that form.

    `WrongKeyType` if the column's type is not one for these keys, or a value in it is not exact in the declared type.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks or [pa.array([], type=column.type)]
        return concatenated([packed(chunk, key_type) for chunk in chunks])
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return _all_null(len(column), key_type.width)
    given = _type_of(column, key_type)
    null = np.asarray(pc.is_null(column)) if column.null_count else None
    match key_type, given:
        case IntegerKey(), IntegerKey() if _holds(key_type, given):
            return _packed_integers(column, key_type, given, null)
        case FloatKey(), FloatKey() if given.bits <= key_type.bits:
            return _packed_floats(column, given, null)
        case BooleanKey(), BooleanKey():
            return _packed_booleans(column, null)
        case StringKey(), StringKey():
            return _packed_strings(column, null)
        case BinaryKey(size=None), BinaryKey(size=None):
            return _packed_strings(column, null)
        case BinaryKey(), BinaryKey(size=int(size)) if key_type.size in {None, size}:
            return _packed_rows(column, size, null)
        case DateKey(), DateKey():
            return _packed_dates(column, key_type, null)
        case TimestampKey(), TimestampKey() if given.zoned == key_type.zoned:
            return _packed_times(column, key_type, given, null)
        case DecimalKey(), DecimalKey():
            return _packed_decimals(column, key_type, given, null)
        case StructKey(), StructKey():
            return _packed_structs(column, key_type, given, null)
        case _:
            raise _refused(column, key_type, "declare the keys as what they are, or cast the column")


def unpacked(keys: Packed, key_type: KeyType) -> pa.Array:
    """Return the column of the keys with these canonical bytes; `BrokenKey` if there are others among them."""
    try:
        return _unpacked(keys, key_type)
    except BrokenPacking as error:
        raise BrokenKey(f"bytes of keys are none of type {key_type.name}: {error}") from error


def _holds(declared: IntegerKey, given: IntegerKey) -> bool:
    if declared.signed == given.signed:
        return given.bits <= declared.bits
    return declared.signed and given.bits < declared.bits


def _type_of(column: pa.Array, key_type: KeyType) -> KeyType:
    try:
        return KeyType.of(column.type)
    except UndeclarableKeyType as error:
        raise _refused(column, key_type, str(error)) from error


def _refused(column: pa.Array, key_type: KeyType, why: str) -> WrongKeyType:
    return WrongKeyType(key_type, f"a column of Arrow's {column.type}", why)


def _values(column: pa.Array, dtype: str) -> NDArray[np.generic]:
    """Return the values of a column of fixed width as they lie in memory, garbage below its nulls included."""
    form = np.dtype(dtype)
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.zeros(len(column), dtype=form)
    return np.frombuffer(buffer, dtype=form, count=len(column), offset=column.offset * form.itemsize)


def _zeroed(values: NDArray[np.generic], null: Nulls) -> NDArray[np.generic]:
    """Return the values with zeros where the nulls are."""
    if null is None:
        return values
    values = values.copy()
    values[null] = np.zeros(1, dtype=values.dtype)
    return values


def _words(values: NDArray[np.generic], null: Nulls) -> Packed:
    return of_width(np.ascontiguousarray(values).view(np.uint8), 8, null)


def _all_null(count: int, width: int | None) -> Packed:
    null = np.ones(count, dtype=np.bool_)
    if width is None:
        return Packed(np.zeros(0, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64), None, null)
    return of_width(np.zeros(count * width, dtype=np.uint8), width, null)


def _packed_integers(column: pa.Array, declared: IntegerKey, given: IntegerKey, null: Nulls) -> Packed:
    values = _values(column, f"<{'i' if given.signed else 'u'}{given.bits // 8}")
    return _words(_zeroed(values, null).astype("<i8" if declared.signed else "<u8", copy=False), null)


def _packed_floats(column: pa.Array, given: FloatKey, null: Nulls) -> Packed:
    # Garbage and signalling NaNs may be what the processor calls invalid.
    with np.errstate(invalid="ignore"):
        values = _values(column, f"<f{given.bits // 8}").astype("<f8") + 0.0
    words = values.view("<u8")
    words[np.isnan(values)] = _NAN
    return _words(_zeroed(words, null), null)


def _packed_booleans(column: pa.Array, null: Nulls) -> Packed:
    return of_width(np.asarray(pc.cast(pc.fill_null(column, False), pa.uint8())), 1, null)


def _packed_strings(column: pa.Array, null: Nulls) -> Packed:
    if pa.types.is_string_view(column.type):
        column = pc.cast(column, pa.large_string())
    elif pa.types.is_binary_view(column.type):
        column = pc.cast(column, pa.large_binary())
    keys = _varying(column, null)
    if null is not None and np.any(np.diff(keys.offsets)[null]):
        filler = pa.scalar("" if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else b"")
        keys = _varying(pc.fill_null(column, filler.cast(column.type)), null)
    return keys


def _varying(column: pa.Array, null: Nulls) -> Packed:
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if offsets is None or len(column) == 0:
        return Packed(np.zeros(0, dtype=np.uint8), np.zeros(len(column) + 1, dtype=np.int64), None, null)
    form = np.dtype("<i8" if large else "<i4")
    found = np.frombuffer(offsets, dtype=form, count=len(column) + 1, offset=column.offset * form.itemsize)
    held = np.zeros(0, dtype=np.uint8) if data is None or data.size == 0 else np.frombuffer(data, dtype=np.uint8)
    return of_lengths(held, found.astype(np.int64, copy=False), null)


def _packed_rows(column: pa.Array, width: int, null: Nulls) -> Packed:
    """Pack values of any fixed width, as they are."""
    return of_width(_zeroed(_values(column, f"V{width}"), null).view(np.uint8), width, null)


def _packed_dates(column: pa.Array, key_type: DateKey, null: Nulls) -> Packed:
    if pa.types.is_date32(column.type):
        return _words(_zeroed(_values(column, "<i4"), null).astype("<i8"), null)
    milliseconds = _zeroed(_values(column, "<i8"), null).astype("<i8", copy=False)
    days = milliseconds // _DAY_MS
    if np.any(days * _DAY_MS != milliseconds) or np.any(days != days.astype("<i4")):
        raise _refused(column, key_type, "not all are whole days in 32 bits")
    return _words(days, null)


def _packed_times(column: pa.Array, declared: TimestampKey, given: TimestampKey, null: Nulls) -> Packed:
    values = _zeroed(_values(column, "<i8"), null).astype("<i8", copy=False)
    wanted, unit = _UNITS[declared.unit], _UNITS[given.unit]
    if wanted > unit:
        factor = wanted // unit
        limit = ((1 << 63) - 1) // factor
        if np.any(values > limit) or np.any(values < -limit):
            raise _refused(column, declared, "not all fit this unit in 64 bits")
        values = values * factor
    elif wanted < unit:
        factor = unit // wanted
        coarse = values // factor
        if np.any(coarse * factor != values):
            raise _refused(column, declared, "not all are exact in this unit")
        values = coarse
    return _words(values, null)


def _packed_decimals(column: pa.Array, declared: DecimalKey, given: DecimalKey, null: Nulls) -> Packed:
    wanted = declared.arrow
    width = wanted.byte_width
    direct = given.scale == declared.scale and given.precision <= declared.precision
    if not direct or column.type.byte_width != width:
        values = np.ascontiguousarray(_zeroed(_values(column, f"V{column.type.byte_width}"), null))
        try:
            column = pc.cast(pa.Array.from_buffers(column.type, len(column), [None, pa.py_buffer(values)]), wanted)
        except pa.ArrowInvalid as error:
            raise _refused(column, declared, f"not all are exact ({error})") from error
    return _packed_rows(column, width, null)


def _packed_structs(column: pa.Array, declared: StructKey, given: StructKey, null: Nulls) -> Packed:
    if declared.names is not None and declared.names != given.names:
        raise _refused(column, declared, "its fields have other names")
    if len(declared.fields) != len(given.fields):
        raise _refused(column, declared, f"it has {len(given.fields)} fields")
    try:
        fields = [packed(field, of) for field, of in zip(column.flatten(), declared.fields, strict=True)]
    except WrongKeyType as error:
        raise _refused(column, declared, str(error)) from error
    return struct_of(fields, null)


def _unpacked(keys: Packed, key_type: KeyType) -> pa.Array:
    match key_type:
        case NullKey():
            return pa.nulls(len(keys))
        case StructKey():
            parts = zip(fields_of(keys, len(key_type.fields)), key_type.fields, strict=True)
            null = None if keys.null is None else pa.array(keys.null)
            arrays = [unpacked(part, of) for part, of in parts]
            return pa.StructArray.from_arrays(arrays, fields=list(key_type.arrow), mask=null)
        case StringKey() | BinaryKey(size=None):
            return _unpacked_strings(keys, key_type)
        case BooleanKey():
            return _array(keys, pa.uint8(), keys.rows(1)).cast(pa.bool_())
        case IntegerKey() | FloatKey() | DateKey():
            return _unpacked_numbers(keys, key_type)
        case _:
            width = key_type.width
            assert width is not None
            return _array(keys, key_type.arrow, keys.rows(width))


def _unpacked_numbers(keys: Packed, key_type: KeyType) -> pa.Array:
    """Unpack numbers that are narrower in Arrow than in the canonical bytes."""
    words = np.ascontiguousarray(keys.rows(8))
    match key_type:
        case FloatKey():
            with np.errstate(over="ignore"):
                values = words.view("<f8").astype(f"<f{key_type.bits // 8}")
        case IntegerKey():
            values = words.view("<i8").astype(f"<{'i' if key_type.signed else 'u'}{key_type.bits // 8}")
        case _:
            values = words.view("<i8").astype("<i4")
    return _array(keys, key_type.arrow, values)


def _unpacked_strings(keys: Packed, key_type: KeyType) -> pa.Array:
    dense = keys.dense()
    large = pa.large_string() if isinstance(key_type, StringKey) else pa.large_binary()
    array = pa.Array.from_buffers(
        large, len(keys), [_validity(keys), pa.py_buffer(dense.offsets), pa.py_buffer(dense.data)]
    )
    return array.cast(key_type.arrow)


def _array(keys: Packed, of: pa.DataType, values: NDArray[np.generic]) -> pa.Array:
    """Make an array of a fixed width, of values that lie as Arrow has them."""
    return pa.Array.from_buffers(of, len(keys), [_validity(keys), pa.py_buffer(np.ascontiguousarray(values))])


def _validity(keys: Packed) -> pa.Buffer | None:
    return None if keys.null is None else pa.py_buffer(np.packbits(~keys.null, bitorder="little"))
