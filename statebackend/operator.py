"""The declaration of an operator's keyed state, and the partition that owns a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from statebackend.ids import Partition, Uid
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM, KeyGroupRange, range_of
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType
from statebackend.states.declarations import Declaration
from statebackend.states.schema import Schema


@dataclass(frozen=True, slots=True)
class Operator:
    """A declaration of keyed state, the same in all partitions. `key` is what `KeyType.of` takes.

    The maximum parallelism is fixed when a job is born: it decides which key belongs to which key group.
    """

    uid: str
    key: object
    states: Mapping[str, Declaration[Any]]
    max_parallelism: int = DEFAULT_MAX_PARALLELISM

    def schema(self) -> Schema:
        """Return the schema of the states as it stands in files."""
        states = tuple(declaration.spec(name) for name, declaration in self.states.items())
        return Schema(Uid(self.uid), KeyType.of(self.key), self.max_parallelism, states)

    @property
    def all_groups(self) -> KeyGroupRange:
        """Return the key groups of all partitions together."""
        return KeyGroupRange.of_all(self.max_parallelism)

    def groups_of(self, partition: int, parallelism: int) -> KeyGroupRange:
        """Return the key groups of one partition out of so many."""
        return range_of(Partition(partition), parallelism, self.max_parallelism)

    def owners_of(self, keys: pa.Array, parallelism: int) -> pa.Array:
        """Return for each key the number of the partition, out of so many, that owns it: that has its key group.

        In PySpark, rows go there by that number, and each task opens the state of `TaskContext.partitionId()`:

            def with_owner(batches):
                for batch in batches:
                    yield batch.append_column("owner", visits.owners_of(batch.column("user"), 4))

            rows.mapInArrow(with_owner, "user string, owner int").repartitionById(4, "owner").mapInArrow(count, ...)

        Keys of several columns are a column of structs, with the fields in the order in which the key declares them.
        """
        groups = key_column(keys, KeyType.of(self.key)).groups(self.max_parallelism).astype(np.int64)
        return pa.array((groups * parallelism // self.max_parallelism).astype(np.int32))
