"""States opened as their files say they were declared, without the program that did: to be read and edited.

Invariant: an operator made by `as_stored` fits every file set that the schema is of; what is opened gives no
values to functions, it has rows, tables of accumulators and the form in which they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from statebackend.canonical.arrow_values import natural_of
from statebackend.canonical.schema import accumulators_of
from statebackend.operator import Operator
from statebackend.states.codecs import Codec
from statebackend.states.declarations import Declaration, Place
from statebackend.states.row_form import RowForm, UnreadableValue, WrongValueType
from statebackend.states.schema import CodecSpec, Schema, StateKind, StateSpec
from statebackend.states.ttl import Ttl
from statebackend.tables.table import Table
from statebackend.tables.values.accumulators import Accumulator
from statebackend.tables.values.aggregations import Accumulators, Aggregation, Slots
from statebackend.tables.values.spec import EXPIRES, TableSpec

_ANY_TIME: Final = 1
"""For a state with a time to live: how long it is does not stand in files, and nothing that is done here asks."""


def as_stored(schema: Schema) -> Operator:
    """Return an operator that declares what this schema says, to open its files by."""
    states = {spec.name: _AsStored(spec) for spec in schema.states}
    return Operator(schema.uid, schema.key_type, states, schema.max_parallelism)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A state whose entries are rows or timers. `form` is how its values lie; None for timers."""

    form: RowForm[Any] | None


class _AsStored(Declaration[Any]):
    def __init__(self, spec: StateSpec) -> None:
        self._spec = spec

    def spec(self, name: str) -> StateSpec:
        """Return the spec as it stands in the files."""
        assert name == self._spec.name
        return self._spec

    def open(self, place: Place) -> StoredRows | Table:
        """Open its rows, or its table of accumulators."""
        if self._spec.kind is StateKind.TABLE:
            return _table(place)
        return StoredRows(None if self._spec.codec is None else _form(place, self._spec.codec))


def _form(place: Place, codec: CodecSpec) -> RowForm[Any]:
    spec = place.spec
    ttl = None if spec.expires is None else Ttl("1ms", spec.expires)
    natural = natural_of(codec.name) if codec.version == codec.oldest == 1 else None
    if natural is not None:
        return place.form(natural.codec, ttl)
    return _StoredForm(place.uid, spec.name, spec.id, place.context.key_type, _Unknown(codec), ttl)


class _Unknown(Codec[bytes]):
    """Stands for a codec of which only the name and the versions are known."""

    def __init__(self, spec: CodecSpec) -> None:
        self.name, self.version, self.oldest = spec.name, spec.version, spec.oldest

    def encode(self, value: bytes) -> bytes:
        """Return the value, which is bytes already."""
        return value

    def decode(self, data: bytes) -> bytes:
        """Return the bytes as they are."""
        return data


class _StoredForm(RowForm[bytes]):
    """Values as the bytes that they are in files, behind the version that wrote them."""

    __slots__ = ()

    def accept(self, value: object) -> bytes:
        """Accept bytes of a version that the files may have."""
        codec = self.codec
        if not isinstance(value, bytes) or not value or not codec.oldest <= value[0] <= codec.version:
            expected = f"bytes that begin with a version of it from {codec.oldest} to {codec.version}"
            raise WrongValueType(self.uid, self.name, codec.name, f"without the program it is given as {expected}")
        return value

    def data(self, value: bytes) -> bytes:
        """Return the bytes themselves."""
        return value

    def value(self, data: bytes) -> bytes:
        """Return the bytes themselves."""
        if not data:
            raise UnreadableValue(f"{self.uid}: state {self.name!r}: no bytes are no value of {self.codec.name}")
        return data


class _Accumulated(Aggregation):
    """An aggregation of which only the accumulators are known; its results are these, as structs."""

    name = "stored"

    def __init__(self, accumulators: Mapping[str, Accumulator]) -> None:
        super().__init__()
        self.accumulators = accumulators

    def update(self, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> None:
        """Raise `TypeError`: values cannot be folded into an undeclared aggregation."""
        del accumulators, slots, values
        raise TypeError("a table that is opened as it is stored takes accumulators only")

    def result(self, accumulators: Accumulators, slots: Slots) -> pa.Array:
        """Return the accumulators of each key, as structs."""
        columns = [pa.array(accumulators[name][slots], one.arrow) for name, one in self.accumulators.items()]
        return pa.StructArray.from_arrays(columns, names=list(self.accumulators))


def _table(place: Place) -> Table:
    outputs: dict[str, dict[str, Accumulator]] = {}
    found = accumulators_of(place.spec)
    for column, accumulator in found.items():
        if column != EXPIRES:
            output, _, name = column.rpartition(".")
            outputs.setdefault(output, {})[name] = accumulator
    aggregated = {output: _Accumulated(columns) for output, columns in outputs.items()}
    spec = TableSpec(place.spec.stored_as, aggregated, _ANY_TIME if EXPIRES in found else None)
    context = place.context
    return Table(
        spec,
        context.key_type,
        context.groups,
        context.max_parallelism,
        place.rows,
        max(1, place.cache_bytes // _BYTES_PER_KEY),
        place.cache_bytes,
        restored_epoch=context.restored_epoch,
        new_file=place.new_file,
    )


_BYTES_PER_KEY: Final = 200
"""The assumed memory of a key, as long as it is not known."""
