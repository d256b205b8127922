"""Rows that replace each other: what is left of a batch when for each key the last row counts.

What always holds: rows are in the order in which they came; a key is left once, either as a row or as a deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What is to be done to a table: `rows` are put, those with the keys of `deleted` are deleted."""

    rows: pa.Table
    deleted: pa.Table


def changes(rows: pa.Table, key: Sequence[str], deleted: str) -> Changes:
    """For each key the last of the rows; a deletion if its column `deleted` is true. Without a key, all rows."""
    if not key:
        return Changes(rows, rows.slice(0, 0))
    last = _last_of_each(rows, key)
    if not deleted:
        return Changes(last, last.select(list(key)).slice(0, 0))
    gone = pc.fill_null(last.column(deleted), False)
    kept = last.filter(pc.invert(gone)).drop_columns([deleted])
    return Changes(kept, last.filter(gone).select(list(key)))


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    rows = rows.unify_dictionaries()  # each batch may have its own, which cannot be compared
    names = [str(place) for place in range(len(key))]
    columns = [rows.column(name) for name in key]
    keyed = pa.table([*columns, pa.array(np.arange(len(rows)))], names=[*names, "place"])
    places = keyed.group_by(names).aggregate([("place", "max")]).column("place_max")
    return rows.take(places.combine_chunks().sort())


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
