"""Many byte strings in one piece of memory, and how those of several fields become those of a struct and back.

Invariant: the bytes of a struct are its fields' bytes, each as `entries.delimited` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statebackend.errors import StoreError


class BrokenPacking(StoreError, ValueError):
    """Bytes that are not the fields that they should be."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Byte strings, laid out as `KeyColumn` describes it."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    width: int | None = None
    null: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return how many bytes each string has; a null has none."""
        lengths = np.diff(self.offsets)
        if self.null is not None:
            lengths[self.null] = 0
        return lengths

    def dense(self) -> Packed:
        """Return the same strings, with no bytes for the nulls and none that belong to no string."""
        lengths = self.lengths()
        data, offsets = self.data[self.offsets[0] : self.offsets[-1]], _offsets(lengths)
        if offsets[-1] != len(data):
            data = self.data[_ranges(self.offsets[:-1], lengths)]
        return Packed(data, offsets, None, self.null)

    def rows(self, width: int) -> NDArray[np.uint8]:
        """Return a matrix, zeros for the nulls. `BrokenPacking` if one that is not null has another width."""
        if self.width == width:
            return self.data[self.offsets[0] : self.offsets[-1]].reshape(len(self), width)
        lengths = self.lengths()
        present = np.ones(len(self), dtype=np.bool_) if self.null is None else ~self.null
        if np.any(lengths[present] != width):
            raise BrokenPacking(f"not all are {width} bytes long")
        rows = np.zeros((len(self), width), dtype=np.uint8)
        rows[present] = self.data[_ranges(self.offsets[:-1], lengths)].reshape(-1, width)
        return rows


def of_width(rows: NDArray[np.uint8], width: int, null: NDArray[np.bool_] | None) -> Packed:
    """Pack byte strings of one width that lie one after the other."""
    return Packed(rows, np.arange(0, len(rows) + 1, width, dtype=np.int64), width, null)


def of_lengths(data: NDArray[np.uint8], offsets: NDArray[np.int64], null: NDArray[np.bool_] | None) -> Packed:
    """Pack byte strings of any lengths, with their width if it turns out to be the same."""
    width = None
    if null is None and len(offsets) > 1:
        first = int(offsets[1] - offsets[0])
        if first and bool(np.all(offsets[1:] - offsets[:-1] == first)):
            width = first
    return Packed(data, offsets, width, null)


def concatenated(parts: Sequence[Packed]) -> Packed:
    """Join the strings of all parts, one after the other; at least one part."""
    if len(parts) == 1:
        return parts[0]
    offsets = [np.zeros(1, dtype=np.int64)]
    end = 0
    for part in parts:
        offsets.append(part.offsets[1:] - part.offsets[0] + end)
        end += int(part.offsets[-1] - part.offsets[0])
    null = None
    if any(part.null is not None for part in parts):
        null = np.concatenate(
            [np.zeros(len(part), dtype=np.bool_) if part.null is None else part.null for part in parts]
        )
    data = np.concatenate([part.data[part.offsets[0] : part.offsets[-1]] for part in parts])
    widths = {part.width for part in parts if len(part)} or {parts[0].width}
    return Packed(data, np.concatenate(offsets), widths.pop() if len(widths) == 1 else None, null)


def struct_of(fields: Sequence[Packed], null: NDArray[np.bool_] | None) -> Packed:
    """Pack these fields into structs, which are null where `null` says so; so are their fields there."""
    pieces = []
    for field in fields:
        body = field.dense()
        pieces += [_binary(_marks(body, null)), _binary(body)]
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    _, offsets, data = joined.buffers()
    if offsets is None or len(joined) == 0:
        return Packed(np.zeros(0, dtype=np.uint8), np.zeros(len(joined) + 1, dtype=np.int64), None, null)
    ends = np.frombuffer(offsets, dtype=np.int64, count=len(joined) + 1)
    return of_lengths(np.zeros(0, np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8), ends, null)


def fields_of(structs: Packed, count: int) -> list[Packed]:
    """Return the fields of structs, null in a null struct. `BrokenPacking` if the bytes are no such structs."""
    at, ends = structs.offsets[:-1].copy(), structs.offsets[1:]
    fields = []
    for _ in range(count):
        mark = _read_marks(structs, at, ends)
        null = mark == 0
        lengths = np.maximum(mark - 1, 0)
        if np.any(at + lengths > ends):
            raise BrokenPacking("a field is cut short")
        data = structs.data[_ranges(at, lengths)]
        fields.append(Packed(data, _offsets(lengths), None, null if null.any() else None))
        at += lengths
    wrong = at != ends
    if structs.null is not None:
        wrong &= ~structs.null
    if np.any(wrong):
        raise BrokenPacking("bytes follow the last field")
    return fields


def _binary(strings: Packed) -> pa.Array:
    """Return the strings as an array of Arrow, nulls as empty strings."""
    buffers = [None, pa.py_buffer(strings.offsets), pa.py_buffer(strings.data)]
    return pa.Array.from_buffers(pa.large_binary(), len(strings), buffers)


def _marks(field: Packed, structs_null: NDArray[np.bool_] | None) -> Packed:
    """Return the mark before each: its length and one, 0 for a null, with 7 bits in a byte; nothing in null structs."""
    marks = field.lengths() + 1
    if field.null is not None:
        marks[field.null] = 0
    sizes = np.ones(len(marks), dtype=np.int64)
    bits = 7
    while np.any(larger := marks >> bits > 0):
        sizes += larger
        bits += 7
    if structs_null is not None:
        sizes[structs_null] = 0
    offsets = _offsets(sizes)
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    for byte in range(int(sizes.max(initial=0))):
        here = np.flatnonzero(sizes > byte)
        more = np.where(sizes[here] > byte + 1, 0x80, 0)
        data[offsets[here] + byte] = (marks[here] >> 7 * byte & 0x7F | more).astype(np.uint8)
    return Packed(data, offsets)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _read_marks(structs: Packed, at: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the marks at these places, and move the places after them; 0 in null structs."""
    marks = np.zeros(len(at), dtype=np.int64)
    here = np.arange(len(at)) if structs.null is None else np.flatnonzero(~structs.null)
    shift = 0
    while len(here):
        if shift > 56 or np.any(at[here] >= ends[here]):
            raise BrokenPacking("a field is cut short")
        byte = structs.data[at[here]].astype(np.int64)
        marks[here] |= (byte & 0x7F) << shift
        at[here] += 1
        here = here[byte >= 0x80]
        shift += 7
    return marks


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers from each start on, as many as its length, one range after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
