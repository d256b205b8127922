"""The declaration of a table: aggregates per key, updated by whole Arrow batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

from statebackend.columns import SchemaLike, schema_of
from statebackend.states.declarations import Declaration, Place
from statebackend.states.schema import StateKind, StateSpec
from statebackend.states.ttl import Ttl
from statebackend.tables.table import Table
from statebackend.tables.values.accumulators import AggregationError
from statebackend.tables.values.aggregations import Aggregation
from statebackend.tables.values.spec import TableError, TableSpec

_BYTES_PER_KEY: Final = 160
"""The assumed memory of a key besides its accumulators, as long as it is not known: its bytes, its index, its marks."""

_NO_COLUMNS: Final[Mapping[str, object]] = {}


class AggregateTable(Declaration[Table]):
    """A columnar table of aggregates per key, updated by whole Arrow batches.

        totals = AggregateTable({"cents": int}, clicks=Count(), spent=Sum("cents"), most=Max("cents"))

    First give the columns that the table reads, as a schema: an Arrow schema, names with `int`, "timestamp[ms]" and
    the like, or "cents bigint". With a `ttl` a key expires so long after its last update; the methods are told the
    time as `now`, of the kind that the `ttl` names. In a call the attribute is a `Table`: `update`, `update_each`,
    `results`, `read`, `remove`.
    """

    def __init__(self, columns: SchemaLike = _NO_COLUMNS, /, *, ttl: Ttl | None = None, **outputs: Aggregation) -> None:
        schema = schema_of(columns)
        if ttl is not None and ttl.refreshed_by_reading:
            raise TableError(f"{ttl} is refreshed by reading, and the keys of a table only by updates")
        self._outputs: dict[str, Aggregation] = {}
        self._ttl = ttl
        for name, one in outputs.items():
            if not isinstance(cast("object", one), Aggregation):
                raise TableError(f"{name}={one!r} is no aggregation; give one such as Count() or Sum('ms')")
            if one.column is not None and one.column not in schema.names:
                raise TableError(
                    f"{name}={one!r} is over a column of which the type is not said; declare "
                    f"AggregateTable({{{one.column!r}: int, ...}}, {name}={one!r})"
                )
            try:
                self._outputs[name] = one.over(None if one.column is None else schema.field(one.column).type)
            except AggregationError as error:
                raise TableError(f"{name}: {error}") from error

    def spec(self, name: str) -> StateSpec:
        """Return the spec of a table."""
        return StateSpec(name, StateKind.TABLE, detail=json.dumps(self._table(name).declared))

    def open(self, place: Place) -> Table:
        """Open the table in one partition."""
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
        return TableSpec(name, self._outputs, None if self._ttl is None else self._ttl.milliseconds)
