"""Many blocks of one key group and namespace become few, however large the group is: divided first, if it is large.

What always holds: about as much is in memory as a few megabytes of blocks need, because what is more lies in a file,
divided by the hashes of the keys: then what is said of a key is all in one part, and each part is merged for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from statebackend.backends.scratch_file import NewFile
from statebackend.keys.types import KeyType
from statebackend.tables.blocks import Block, Encoder, chosen, common_columns, decode, hashed, last_of_each, merge
from statebackend.tables.stored_blocks import in_one

_TOGETHER: Final = 2 << 20
"""So many bytes of blocks are merged at once."""

_BITS: Final = 4
_PARTS: Final = 1 << _BITS
_DEEPEST: Final = 8
"""What was divided so often is merged as it is: only blocks about the very same keys can be left."""


def merge_divided(
    payloads: Iterable[bytes], place: str, key_type: KeyType, new_file: NewFile, depth: int = 0
) -> Iterator[bytes]:
    """What `merge` makes of these blocks, given from the oldest to the newest; all are gone through before the first.

    The keys are of this type. Each time that something was divided before, `depth` is one more.
    """
    waiting: list[bytes] = []
    size = 0
    parts: _Parts | None = None
    for payload in payloads:
        waiting.append(payload)
        size += len(payload)
        if size > _TOGETHER and depth < _DEEPEST:
            parts = parts or _Parts(place, key_type, new_file, depth)
            parts.add(waiting)
            waiting, size = [], 0
    if parts is None:
        yield from merge(waiting, place)
        return
    parts.add(waiting)
    for part in range(_PARTS):
        yield from merge_divided(parts.payloads(part), place, key_type, new_file, depth + 1)


class _Parts:
    """Rows of blocks in a file, divided by some bits of the keys' hashes."""

    def __init__(self, place: str, key_type: KeyType, new_file: NewFile, depth: int) -> None:
        self._place = place
        self._key_type = key_type
        self._file = new_file()
        self._shift = np.uint64(_BITS * depth)
        self._spans: list[list[tuple[int, int]]] = [[] for _ in range(_PARTS)]
        self._end = 0

    def add(self, payloads: Sequence[bytes]) -> None:
        """Take blocks, which are younger than all before."""
        blocks: list[Block] = []
        for payload in payloads:
            block = decode(payload, self._place)
            if block.whole:
                blocks = []
                self._spans = [[] for _ in range(_PARTS)]
            if len(block.keys):
                blocks.append(block)
        if blocks:
            common_columns(blocks, self._place)
            self._add(in_one(blocks))

    def _add(self, said: Block) -> None:
        rows = chosen(said, np.sort(last_of_each(said.keys)))
        hashes = hashed(rows.keys, self._key_type).hashes
        parts = (hashes >> self._shift & np.uint64(_PARTS - 1)).astype(np.uint8)
        order = np.argsort(parts, kind="stable")
        encoder = Encoder(chosen(rows, order))
        ends = np.cumsum(np.bincount(parts, minlength=_PARTS)).tolist()
        for part, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                payload = encoder.encode(start, end, whole=False)
                self._file.append(payload)
                self._spans[part].append((len(payload), self._end))
                self._end += len(payload)

    def payloads(self, part: int) -> Iterator[bytes]:
        """Blocks with the rows of one part, from the oldest to the newest."""
        return (self._file.read(size, start) for size, start in self._spans[part])
