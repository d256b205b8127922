"""The stable 64-bit hash of a key, over its canonical bytes: in Python for one key, in numpy for a batch.

Invariant: both ways give the same number, and it is the same for ever, on every platform and in every process,
because it decides the key group in which state on disk lies. Golden values in the tests pin it.

    h = tag * C1 + length * C3                     (mod 2^64, as everything here)
    for each word of 8 bytes, little-endian, the last one filled up with zeros:
        h = (h ^ word) * C1;  h ^= h >> 32
    h ^= h >> 30;  h *= C2;  h ^= h >> 27;  h *= C3;  h ^= h >> 31

A null is hashed as if it had no words and a length of -1.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

_C1: Final = 0x9E3779B97F4A7C15
_C2: Final = 0xBF58476D1CE4E5B9
_C3: Final = 0x94D049BB133111EB
_ALL: Final = (1 << 64) - 1

_N1, _N2, _N3 = np.uint64(_C1), np.uint64(_C2), np.uint64(_C3)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)

_BLOCK_BYTES: Final = 3 << 18
"""The bytes of a batch that are hashed at a time: they stay in a core's cache while their words are passed over."""

_FEW: Final = 24
"""So few keys with words left are finished one by one: a pass of numpy over them would cost more."""

_LONG: Final = 0x7FFF
"""Keys of this many words and more are sorted as if they were equally long, so their last words are not in order."""


_SHORT: Final = 128
"""Below this many bytes, what the hash of a key needs besides the key is at hand."""

_SEEDS: Final = tuple(tuple(tag * _C1 + size * _C3 & _ALL for size in range(_SHORT)) for tag in range(16))
"""The start values of the hash, by tag and length."""

_WORD_SEEDS: Final = tuple(seeds[8] for seeds in _SEEDS)

_WORDS: Final = tuple(struct.Struct(f"<{count}Q").unpack for count in range(_SHORT // 8 + 1))
"""The functions that turn bytes into words, by the number of words."""


def hash_word(tag: int, word: int) -> int:
    """Hash a key of 8 bytes, given as the unsigned little-endian number that they are."""
    h = (_WORD_SEEDS[tag] ^ word) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    h ^= h >> 32
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    h = (h ^ h >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return h ^ h >> 31


def hash_bytes(tag: int, canonical: bytes) -> int:
    """Hash a key that is not null."""
    size = len(canonical)
    seed = _SEEDS[tag][size] if size < _SHORT else tag * _C1 + size * _C3 & _ALL
    return _finished(_folded(seed, canonical))


def hash_null(tag: int) -> int:
    """Hash a key that is null."""
    return _finished((tag * _C1 - _C3) & _ALL)


def hash_column(
    tag: int,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    width: int | None,
    null: NDArray[np.bool_] | None,
) -> NDArray[np.uint64]:
    """Hash a batch whose bytes, offsets, width and nulls are as `KeyColumn` describes them."""
    if width is None:
        hashes = _hash_of_varying(tag, data, offsets)
    else:
        hashes = _hash_of_equal(tag, data[offsets[0] : offsets[-1]], len(offsets) - 1, width)
    if null is not None:
        hashes[null] = np.uint64(hash_null(tag))
    return hashes


def _folded(h: int, part: bytes) -> int:
    """Return the state `h` after the words of these bytes."""
    count = len(part) + 7 >> 3
    if len(part) & 7:
        part = part.ljust(count << 3, b"\x00")
    for word in _WORDS[count](part) if count < len(_WORDS) else struct.unpack(f"<{count}Q", part):
        h = ((h ^ word) * _C1) & _ALL
        h ^= h >> 32
    return h


def _finished(h: int) -> int:
    h = ((h ^ h >> 30) * _C2) & _ALL
    h = ((h ^ h >> 27) * _C3) & _ALL
    return h ^ h >> 31


def _fold(h: NDArray[np.uint64], words: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """Take one word into each state, in place."""
    np.bitwise_xor(h, words, out=h)
    np.multiply(h, _N1, out=h)
    np.right_shift(h, _S32, out=scratch)
    np.bitwise_xor(h, scratch, out=h)


def _finish(h: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    np.right_shift(h, _S30, out=scratch)
    np.bitwise_xor(h, scratch, out=h)
    np.multiply(h, _N2, out=h)
    np.right_shift(h, _S27, out=scratch)
    np.bitwise_xor(h, scratch, out=h)
    np.multiply(h, _N3, out=h)
    np.right_shift(h, _S31, out=scratch)
    np.bitwise_xor(h, scratch, out=h)


def _hash_of_equal(tag: int, data: NDArray[np.uint8], count: int, width: int) -> NDArray[np.uint64]:
    """Hash keys of one width: their words are the columns of a matrix."""
    rows = max(1, min(count, _BLOCK_BYTES // (width + 16)))
    if rows <= _FEW and width >= _SHORT:
        keys = (data[start : start + width].tobytes() for start in range(0, count * width, width))
        return np.array([hash_bytes(tag, key) for key in keys], dtype=np.uint64)
    if width & 7:
        filled = np.zeros((count, width + 7 & ~7), dtype=np.uint8)
        filled[:, :width] = data.reshape(count, width)
        data = filled.reshape(-1)
    words = data.view("<u8").reshape(count, width + 7 >> 3)
    hashes = np.full(count, tag * _C1 + width * _C3 & _ALL, dtype=np.uint64)
    scratch = np.empty(rows, dtype=np.uint64)
    for start in range(0, count, rows):
        h = hashes[start : start + rows]
        block, spare = words[start : start + rows], scratch[: len(h)]
        for column in range(words.shape[1]):
            _fold(h, block[:, column], spare)
        _finish(h, spare)
    return hashes


def _hash_of_varying(tag: int, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash keys of any widths, most words first: keys that have a word left are then always the first ones."""
    count = len(offsets) - 1
    lengths = np.diff(offsets)
    words = lengths + 7 >> 3
    order = np.argsort(-np.minimum(words, _LONG).astype(np.int16), kind="stable")
    lengths = lengths[order]
    words = words[order]
    starts = offsets[:-1][order] - offsets[0]
    h = lengths.astype(np.uint64) * _N3 + np.uint64(tag * _C1 & _ALL)
    # A key's last word may reach past it, into the next key and, at the end, into bytes that have to be there.
    readable = np.zeros(int(offsets[-1] - offsets[0]) + 8, dtype=np.uint8)
    readable[:-8] = data[offsets[0] : offsets[-1]]
    word_at: NDArray[np.uint64] = np.ndarray((len(readable) - 7,), dtype="<u8", buffer=readable, strides=(1,))
    scratch = np.empty(count, dtype=np.uint64)
    done = 0
    left = _with_more_words(words, 0)
    while left > _FEW and done < _LONG - 1:
        taken = word_at[starts[:left] + (done << 3)]
        more = _with_more_words(words, done + 1)
        taken[more:left] &= _kept_bits(lengths[more:left] - (done << 3))
        _fold(h[:left], taken, scratch[:left])
        done, left = done + 1, more
    for index in range(left):
        begin = int(starts[index])
        rest = readable[begin + (done << 3) : begin + int(lengths[index])].tobytes()
        h[index] = _folded(int(h[index]), rest)
    _finish(h, scratch)
    hashes = np.empty(count, dtype=np.uint64)
    hashes[order] = h
    return hashes


def _with_more_words(descending: NDArray[np.int64], than: int) -> int:
    """Count how many of these counts of words, the most first, are greater."""
    return len(descending) - int(np.searchsorted(descending[::-1], than, side="right"))


def _kept_bits(remaining: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return which bits of a last word belong to the key, of which 1 to 8 bytes remain."""
    return np.uint64(_ALL) >> (64 - 8 * remaining).astype(np.uint64)
