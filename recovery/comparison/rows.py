"""The rows of an output as numbers that are equal for equal rows, and the difference from the truth.

Invariant: rows are compared as they are, each as often as it is there, and in no order; the columns that hold a
moment of the run are left out, as they differ from run to run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Identities = NDArray[np.uint64]
"""A number for each row."""


def identities(output: str, batches: Sequence[pa.RecordBatch], left_out: Collection[str]) -> Identities:
    """Return the numbers of an output's rows, without these columns."""
    found: list[int] = []
    for batch in batches:
        names = [name for name in batch.schema.names if name not in left_out]
        columns = [batch.column(name).to_pylist() for name in names]
        rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
        found += [_number(output, row) for row in rows]
    return np.array(found, np.uint64)


def _number(output: str, row: tuple[object, ...]) -> int:
    return int.from_bytes(blake2b(repr((output, *row)).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows of a run beside those that should be there."""

    expected: int
    lost: int
    """Rows that are not there, or not as often as they should."""
    twice: int
    """Rows that are there more often than they should."""
    wrong: int
    """Rows that should not be there at all."""

    @property
    def differs(self) -> bool:
        """True if there is a difference."""
        return bool(self.lost or self.twice or self.wrong)

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            self.expected + other.expected, self.lost + other.lost, self.twice + other.twice, self.wrong + other.wrong
        )


def difference(truth: Identities, found: Identities) -> Difference:
    """Return the difference of what was found from the truth."""
    rows, place = np.unique(np.concatenate((truth, found)), return_inverse=True)
    should = np.bincount(place[: len(truth)], minlength=len(rows))
    there = np.bincount(place[len(truth) :], minlength=len(rows))
    more, known = np.maximum(there - should, 0), should > 0
    lost = int(np.maximum(should - there, 0).sum())
    return Difference(len(truth), lost, int(more[known].sum()), int(more[~known].sum()))


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The rows that should come, by output; outputs whose rows are not known are not among them."""

    rows: Mapping[str, Identities]

    @classmethod
    def of_two(cls, first: Mapping[str, Identities], second: Mapping[str, Identities]) -> tuple[Truth, str]:
        """Return the rows of the outputs in which two runs agree, and what differs in the others."""
        differ = {uid: found for uid, rows in first.items() if (found := difference(rows, second[uid])).differs}
        said = "; ".join(f"{uid}: {found.lost + found.twice + found.wrong} rows" for uid, found in differ.items())
        return cls({uid: rows for uid, rows in first.items() if uid not in differ}), said

    def judge(
        self, found: Mapping[str, Identities], once: Collection[str], *, more: bool = False
    ) -> tuple[Difference, str]:
        """Return the difference of all outputs together, and what is not right about it, if anything is not.

        Rows of outputs that are in `once` may not come twice; those of others may, after a roll-back. With `more` rows
        may be processed twice, so that there are others as well: then only lost ones are not right.
        """
        total, complaints = Difference(0, 0, 0, 0), []
        for uid, rows in self.rows.items():
            one = difference(rows, found[uid])
            total += one
            if one.lost or (not more and (one.wrong or (one.twice and uid in once))):
                complaints.append(f"{uid}: {one.lost} rows lost, {one.twice} twice, {one.wrong} wrong")
        return total, "; ".join(complaints)
