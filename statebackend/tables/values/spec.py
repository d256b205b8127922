"""The declaration of a table, the keys that it has in a partition, and what follows from both for a batch.

Invariant: the accumulator columns of a table follow from its declaration alone, so two declarations with equal
`declared` texts can read each other's blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.entries import StateId, state_id
from statebackend.errors import ProgramError
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn
from statebackend.keys.types import KeyType
from statebackend.tables.values.accumulators import Accumulator, Column
from statebackend.tables.values.aggregations import Aggregation, Slots

EXPIRES: Final = "_expires"
"""The accumulator column of a table with a time to live: from when on a key does not exist any more."""

NEVER: Final = 2**63 - 1

_NOTHING: Final = np.empty(0, dtype=np.uint8)
_NOWHERE: Final = np.zeros(1, dtype=np.int64)


class TableError(ProgramError, ValueError):
    """A table that is declared or used wrongly; the message says which table, and what to do."""


class ForeignKeys(TableError):
    """Keys of key groups that belong to another partition: the exchange before the table sent them here by mistake."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table of aggregates per key: by the name of each output column what is in it, bound to its column's type.

    With a `ttl` a key expires that long after its last update, in the time that `update` is told.
    """

    name: str
    outputs: Mapping[str, Aggregation]
    ttl: int | None = None

    def __post_init__(self) -> None:
        if not self.outputs:
            raise TableError(f"table {self.name!r} has no output; name at least one aggregation")
        if self.ttl is not None and self.ttl <= 0:
            raise TableError(f"table {self.name!r} keeps a key for {self.ttl}; a time to live is positive, or None")

    @property
    def accumulators(self) -> dict[str, Accumulator]:
        """Return every column that is kept per key."""
        columns = {
            column_of(output, name): accumulator
            for output, aggregation in self.outputs.items()
            for name, accumulator in aggregation.accumulators.items()
        }
        if self.ttl is not None:
            columns[EXPIRES] = Accumulator.of(np.int64, NEVER)
        return columns

    @property
    def declared(self) -> dict[str, str]:
        """Return texts that decide how blocks and rows of this table are read: for the schema in a file."""
        texts = {output: _text_of(aggregation) for output, aggregation in self.outputs.items()}
        return texts if self.ttl is None else texts | {EXPIRES: "time to live"}

    def accumulators_of(self, output: str, columns: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return those of a table's columns that an output is made of, as its aggregation names them."""
        return {name: columns[column_of(output, name)] for name in self.outputs[output].accumulators}

    def results(self, columns: Mapping[str, Column], rows: Slots) -> pa.RecordBatch:
        """Return the results of these rows of a table's columns; one column for each output."""
        arrays = {
            output: aggregation.result(self.accumulators_of(output, columns), rows)
            for output, aggregation in self.outputs.items()
        }
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def time(self, now: int | None) -> int:
        """Return the time that a call was told, which a table with a time to live needs; else raise `TableError`."""
        if now is None:
            raise TableError(f"table {self.name!r} has a time to live, so it has to be told the time: give `now`")
        return now

    def unexpired(self, columns: Mapping[str, Column], rows: Slots, now: int | None) -> Slots:
        """Return those of these rows that have not expired."""
        return rows if self.ttl is None else rows[expiries(columns)[rows] > self.time(now)]

    def check_inputs(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        """Raise `TableError` unless every input column is there, with so many rows."""
        for aggregation in self.outputs.values():
            name = aggregation.column
            if name is not None and name not in columns:
                raise TableError(f"table {self.name!r} needs column {name!r}; given are {', '.join(columns)}")
            if name is not None and len(columns[name]) != rows:
                raise TableError(
                    f"column {name!r} for table {self.name!r} has {len(columns[name])} rows, and there are {rows} keys"
                )


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys that a table has in this partition, and the columns of each."""

    table: str
    columns: Mapping[str, Accumulator]
    key_type: KeyType
    groups: KeyGroupRange
    max_parallelism: int
    _least_hash: np.uint64 = field(init=False)
    _greatest_hash: np.uint64 = field(init=False)

    def __post_init__(self) -> None:
        least = -(-(self.groups.first << 64) // self.max_parallelism)
        greatest = -(-(self.groups.end << 64) // self.max_parallelism) - 1
        object.__setattr__(self, "_least_hash", np.uint64(least))
        object.__setattr__(self, "_greatest_hash", np.uint64(greatest))

    @property
    def state(self) -> StateId:
        """Return the id that the table's entries are named with."""
        return state_id(self.table)

    def places(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the key groups of keys with these hashes, counted from the first group of the partition."""
        groups = KeyColumn(_NOTHING, _NOWHERE, hashes).groups(self.max_parallelism)
        return groups.astype(np.int64) - self.groups.first

    def no_groups(self) -> NDArray[np.bool_]:
        """Return a mask of the partition's groups, with none of them set."""
        return np.zeros(len(self.groups), dtype=np.bool_)

    def check_keys(self, keys: KeyColumn) -> None:
        """Raise `ForeignKeys` unless all of these keys are of the partition's groups."""
        hashes = keys.hashes
        if len(hashes) and (hashes.min() < self._least_hash or hashes.max() > self._greatest_hash):
            foreign = np.count_nonzero((hashes < self._least_hash) | (hashes > self._greatest_hash))
            raise ForeignKeys(
                f"{foreign} of {len(hashes)} keys given to table {self.table!r} are not of its key groups "
                f"{self.groups}; send each key to the partition that owns its group (see Operator.owners_of)"
            )


def expiries(columns: Mapping[str, Column]) -> NDArray[np.int64]:
    """Return from when on each row of a table with a time to live does not exist any more."""
    return columns[EXPIRES].view(np.int64)


def column_of(output: str, accumulator: str) -> str:
    """Return the name of the column of an output's accumulator in a block."""
    return f"{output}.{accumulator}"


def _text_of(aggregation: Aggregation) -> str:
    columns = ", ".join(f"{name}: {one.type_name}" for name, one in aggregation.accumulators.items())
    return f"{aggregation.name} version {aggregation.version} ({columns})"
