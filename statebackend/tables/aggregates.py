"""The declaration of a table: aggregates per key, updated by whole Arrow batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from statebackend.states.declarations import Declaration, Place
from statebackend.states.schema import StateKind, StateSpec
from statebackend.tables.table import Table
from statebackend.tables.table_spec import Aggregated, TableSpec

_BYTES_PER_KEY: Final = 160
"""What a key is taken to need besides its accumulators, as long as nobody knows: its bytes, its index, its marks."""


class Aggregates(Declaration[Table]):
    """A columnar table: `Aggregates(clicks=Aggregated(Count()), spent=Aggregated(Sum(int), "cents"))`.

    With a `ttl`, in milliseconds, a key expires so long after its last update, in the time that updates are told.
    """

    def __init__(self, *, ttl: int | None = None, **outputs: Aggregated) -> None:
        self._outputs: Mapping[str, Aggregated] = outputs
        self._ttl = ttl

    def spec(self, name: str) -> StateSpec:
        """A table."""
        return StateSpec(name, StateKind.TABLE, detail=json.dumps(self._table(name).declared))

    def open(self, place: Place) -> Table:
        """The table in one partition."""
        context, spec = place.context, self._table(place.spec.stored_as)
        slot = _BYTES_PER_KEY + sum(column.dtype.itemsize for column in spec.accumulators.values())
        slots = max(1, place.cache_bytes // slot)
        return Table(
            spec,
            context.key_type,
            context.groups,
            context.max_parallelism,
            place.rows,
            slots,
            place.cache_bytes,
            restored_epoch=context.restored_epoch,
            new_file=place.new_file,
        )

    def _table(self, name: str) -> TableSpec:
        return TableSpec(name, self._outputs, self._ttl)
