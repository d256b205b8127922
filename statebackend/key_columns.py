"""A batch of keys in their canonical bytes, with their stable hashes: what every vectorised look-up starts from.

What always holds: two keys of one declared type are equal exactly if their canonical bytes are, or if both are null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumn:
    """The keys of a batch, one after the other.

    The canonical bytes of key i are `data[offsets[i]:offsets[i + 1]]`; `offsets` has one more entry than there are
    keys and need not begin at 0. `width` is set if all keys have that many bytes and lie without gaps. Where
    `null` is true the key is null and its bytes are empty (or, with a `width`, zeros that mean nothing).
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    width: int | None = None
    null: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.hashes)

    def groups(self, max_parallelism: int) -> NDArray[np.uint16]:
        """The key group of each key: what `key_group_of` says of its hash."""
        high, low = self.hashes >> np.uint64(32), self.hashes & np.uint64(0xFFFFFFFF)
        scale = np.uint64(max_parallelism)
        return ((high * scale + ((low * scale) >> np.uint64(32))) >> np.uint64(32)).astype(np.uint16)

    def key(self, index: int) -> bytes | None:
        """The canonical bytes of one key, None if it is null."""
        if self.null is not None and self.null[index]:
            return None
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()
