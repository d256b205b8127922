"""Many byte strings in one piece of memory, and how those of several fields become those of a struct and back.

What always holds: the bytes of a struct are its fields' bytes, each as `entries.delimited` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class BrokenPacking(ValueError):
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
        """How many bytes each has; a null has none."""
        lengths = np.diff(self.offsets)
        if self.null is not None:
            lengths[self.null] = 0
        return lengths

    def rows(self, width: int) -> NDArray[np.uint8]:
        """As a matrix, zeros for the nulls. `BrokenPacking` if one that is not null has another width."""
        if self.width == width:
            return self.data[self.offsets[0] : self.offsets[-1]].reshape(len(self), width)
        lengths = self.lengths()
        present = np.ones(len(self), dtype=np.bool_) if self.null is None else ~self.null
        if np.any(lengths[present] != width):
            raise BrokenPacking(f"not all are {width} bytes long")
        rows = np.zeros((len(self), width), dtype=np.uint8)
        rows[present] = self.data[ranges(self.offsets[:-1], lengths)].reshape(-1, width)
        return rows


def of_width(rows: NDArray[np.uint8], width: int, null: NDArray[np.bool_] | None) -> Packed:
    """Byte strings of one width that lie one after the other."""
    return Packed(rows, np.arange(0, len(rows) + 1, width, dtype=np.int64), width, null)


def of_lengths(data: NDArray[np.uint8], offsets: NDArray[np.int64], null: NDArray[np.bool_] | None) -> Packed:
    """Byte strings of any lengths, with their width if it turns out to be the same."""
    width = None
    if null is None and len(offsets) > 1:
        first = int(offsets[1] - offsets[0])
        if first and bool(np.all(offsets[1:] - offsets[:-1] == first)):
            width = first
    return Packed(data, offsets, width, null)


def concatenated(parts: Sequence[Packed]) -> Packed:
    """The strings of all, one after the other; at least one part."""
    if len(parts) == 1:
        return parts[0]
    offsets = [np.zeros(1, dtype=np.int64)]
    for part in parts:
        offsets.append(part.offsets[1:] - part.offsets[0] + offsets[-1][-1])
    null = None
    if any(part.null is not None for part in parts):
        null = np.concatenate(
            [np.zeros(len(part), dtype=np.bool_) if part.null is None else part.null for part in parts]
        )
    data = np.concatenate([part.data[part.offsets[0] : part.offsets[-1]] for part in parts])
    widths = {part.width for part in parts if len(part)} or {parts[0].width}
    return Packed(data, np.concatenate(offsets), widths.pop() if len(widths) == 1 else None, null)


def ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers from each start on, as many as its length, one range after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)


def struct_of(fields: Sequence[Packed], null: NDArray[np.bool_] | None) -> Packed:
    """The structs of these fields. Where `null` is true there is none."""
    present = slice(None) if null is None else np.flatnonzero(~null)
    starts = [field.offsets[:-1][present] for field in fields]
    lengths = [field.lengths()[present] for field in fields]
    marks = [_marks(field, length, present) for field, length in zip(fields, lengths, strict=True)]
    sizes = [_mark_sizes(mark) for mark in marks]
    whole = np.zeros(len(fields[0]), dtype=np.int64)
    whole[present] = sum(sizes) + sum(lengths)
    offsets = np.zeros(len(whole) + 1, dtype=np.int64)
    np.cumsum(whole, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    at = offsets[:-1][present].copy()
    for field, start, length, mark, size in zip(fields, starts, lengths, marks, sizes, strict=True):
        _write_marks(data, at, mark, size)
        at += size
        data[ranges(at, length)] = field.data[ranges(start, length)]
        at += length
    return of_lengths(data, offsets, null)


def fields_of(structs: Packed, count: int) -> list[Packed]:
    """The fields of structs; those of a null struct are null. `BrokenPacking` if the bytes are no such structs."""
    at, ends = structs.offsets[:-1].copy(), structs.offsets[1:]
    fields = []
    for _ in range(count):
        mark = _read_marks(structs, at, ends)
        null = mark == 0
        lengths = np.maximum(mark - 1, 0)
        if np.any(at + lengths > ends):
            raise BrokenPacking("a field is cut short")
        offsets = np.zeros(len(at) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        fields.append(Packed(structs.data[ranges(at, lengths)], offsets, None, null if null.any() else None))
        at += lengths
    wrong = at != ends
    if structs.null is not None:
        wrong &= ~structs.null
    if np.any(wrong):
        raise BrokenPacking("bytes follow the last field")
    return fields


def _marks(field: Packed, lengths: NDArray[np.int64], present: slice | NDArray[np.int64]) -> NDArray[np.int64]:
    """What is written before each: its length and one, 0 for a null."""
    marks = lengths + 1
    if field.null is not None:
        marks[field.null[present]] = 0
    return marks


def _mark_sizes(marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes the marks take, 7 bits in each."""
    sizes = np.ones(len(marks), dtype=np.int64)
    bits = 7
    while np.any(larger := marks >> bits > 0):
        sizes += larger
        bits += 7
    return sizes


def _write_marks(
    data: NDArray[np.uint8], at: NDArray[np.int64], marks: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    for byte in range(int(sizes.max(initial=0))):
        here = np.flatnonzero(sizes > byte)
        more = np.where(sizes[here] > byte + 1, 0x80, 0)
        data[at[here] + byte] = (marks[here] >> 7 * byte & 0x7F | more).astype(np.uint8)


def _read_marks(structs: Packed, at: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The marks at these places, which are moved behind them; 0 in null structs."""
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
