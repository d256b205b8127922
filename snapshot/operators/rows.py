"""A batch of rows on its way through a stage, with the event time of each.

Invariant: a batch is never changed once it is made; code that drops or reorders rows makes another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Times = NDArray[np.int64]
"""Event times in milliseconds, one for each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of one schema; `times` is None in a stream without event time."""

    batch: pa.RecordBatch
    times: Times | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def size(self) -> int:
        """Return about how many bytes of memory the rows refer to."""
        return int(self.batch.nbytes) + (0 if self.times is None else int(self.times.nbytes))

    def take(self, indices: NDArray[np.int64]) -> Rows:
        """Return the rows at these places, in this order."""
        batch = self.batch.take(pa.array(indices))
        return Rows(batch, None if self.times is None else self.times[indices])

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the rows for which `chosen` is true."""
        if chosen.all():
            return self
        return self.take(np.flatnonzero(chosen))

    def slice(self, offset: int, length: int) -> Rows:
        """Return `length` rows beginning at `offset`, without a copy."""
        times = None if self.times is None else self.times[offset : offset + length]
        return Rows(self.batch.slice(offset, length), times)


def joined(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of all pieces in order; there must be at least one piece."""
    if len(pieces) == 1:
        return pieces[0]
    batch = pa.concat_batches([piece.batch for piece in pieces])
    times = [piece.times for piece in pieces if piece.times is not None]
    return Rows(batch, np.concatenate(times) if times else None)


def keys_in(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Return the keys of the rows: the one column, or several as structs of them, in this order."""
    if len(columns) == 1:
        return batch.column(columns[0])
    arrays = [batch.column(name) for name in columns]
    return pa.StructArray.from_arrays(arrays, names=[str(place) for place in range(len(arrays))])
