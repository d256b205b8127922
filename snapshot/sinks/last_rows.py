"""Rows that replace each other: what is left of a batch when for each key the last row counts.

What always holds: rows are in the order in which they came; of those whose keys are equal to Arrow, the last is left.
To a database more keys may be equal (texts without regard to case, 0.0 and -0.0), so the rows that are left replace
each other there as well, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last of the rows for each key."""
    rows = rows.unify_dictionaries()  # each batch may have its own, which cannot be compared
    names = [str(place) for place in range(len(key))]
    columns = [rows.column(name) for name in key]
    keyed = pa.table([*columns, pa.array(np.arange(len(rows)))], names=[*names, "place"])
    places = keyed.group_by(names).aggregate([("place", "max")]).column("place_max")
    return rows.take(places.combine_chunks().sort())


def parted(rows: pa.Table, deleted: str) -> tuple[pa.Table, pa.ChunkedArray]:
    """The rows as a table has them, and which of them delete: those whose column `deleted` is true, which is left out.
    Without such a column none does.
    """
    if not deleted:
        return rows, pa.chunked_array([pa.array(np.zeros(len(rows), dtype=bool))])
    return rows.drop_columns([deleted]), pc.fill_null(rows.column(deleted), False)


def in_chunks(batches: Iterable[pa.RecordBatch], rows: int = 1 << 16) -> Iterator[pa.Table]:
    """The same rows in tables of about so many, in order."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += len(batch)
        if count >= rows:
            yield pa.Table.from_batches(some)
            some, count = [], 0
    if count:
        yield pa.Table.from_batches(some)
