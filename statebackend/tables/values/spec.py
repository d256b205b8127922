"""How a table is declared: which aggregations over which input columns, and for how long a key is kept.

What always holds: the accumulator columns of a table follow from its declaration alone, so two declarations with equal
`declared` texts can read each other's blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from statebackend.entries import StateId, state_id
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn
from statebackend.keys.types import KeyType
from statebackend.tables.values.accumulators import Accumulator
from statebackend.tables.values.aggregations import Aggregation

EXPIRES: Final = "_expires"
"""The accumulator column of a table with a time to live: from when on a key does not exist any more."""

NEVER: Final = 2**63 - 1

_NOTHING: Final = np.empty(0, dtype=np.uint8)
_NOWHERE: Final = np.zeros(1, dtype=np.int64)


class TableError(ValueError):
    """A table that is declared or used wrongly; the message says which table, and what to do."""


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


@dataclass(frozen=True, slots=True)
class Layout:
    """Which keys a table has in this partition, and which columns for each."""

    table: str
    columns: Mapping[str, Accumulator]
    key_type: KeyType
    groups: KeyGroupRange
    max_parallelism: int

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


def column_of(output: str, accumulator: str) -> str:
    """Return the name of the column of an output's accumulator in a block."""
    return f"{output}.{accumulator}"


def _text_of(aggregation: Aggregation) -> str:
    columns = ", ".join(f"{name}: {one.type_name}" for name, one in aggregation.accumulators.items())
    return f"{aggregation.name} version {aggregation.version} ({columns})"
