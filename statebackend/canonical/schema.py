"""The columns of a state's canonical table: one row per entry, and metadata that names the state.

Invariant: the columns follow from the state's declaration in the metadata alone; so a table can be read on
any backend, at any parallelism and by any later version; what is not such a table is refused by an error that says
which file, state and column.

    key         the key, in its declared type
    namespace   null, or a window's start and end, or any other namespace's bytes
    map_key     of a map: the key within the map             index   of a list: the place, from 0 on
    time        of timers
    value       the value; for a codec that Arrow has nothing for its bytes, after one byte with the codec's version
    <output>.<accumulator>   of a table of aggregates: what it keeps per key
    key_group   the group that the key belongs to
    expires_at  in milliseconds, of the time that the state counts in; null for never

Where Arrow lacks some values of a codec (whole numbers beyond 64 bits, say), `value` is null for these, and
`value_encoded` has the bytes, again after the version. The same goes for `map_key` and `map_key_encoded`, but for the
version: the bytes of map keys are the same for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from statebackend.canonical.arrow_values import Natural, natural_of
from statebackend.errors import SavepointError
from statebackend.ids import Uid
from statebackend.states.schema import BrokenSchema, Schema, StateKind, StateSpec
from statebackend.tables.values.accumulators import Accumulator
from statebackend.tables.values.spec import EXPIRES

VERSION: Final = 1
"""The version of the format. What is written today is readable for ever."""

KEY: Final = "key"
NAMESPACE: Final = "namespace"
MAP_KEY: Final = "map_key"
INDEX: Final = "index"
TIME: Final = "time"
VALUE: Final = "value"
KEY_GROUP: Final = "key_group"
EXPIRES_AT: Final = "expires_at"

NAMESPACES: Final = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("bytes", pa.binary())])
"""The type of the column of namespaces."""

_FORMAT: Final = b"epochcut.canonical"
_STATE: Final = b"epochcut.state"
_CODEC: Final = b"epochcut.codec"
_SAID: Final = b"epochcut.said"
_IN_ARROW: Final = b"arrow"
_IN_BYTES: Final = b"bytes"
_ACCUMULATORS: Final = re.compile(r"(.*) version ([0-9]+) \((.*)\)", re.DOTALL)


class CanonicalError(SavepointError, ValueError):
    """A table that cannot be taken; the message says which file, which state, which column, and what to do."""


class DamagedTable(CanonicalError):
    """A table that is not as it was written, or was edited into something that is no state."""


class NewerTable(CanonicalError):
    """A table in a format that only a newer version reads."""


class ForeignTable(CanonicalError):
    """A table of another operator, or of another program altogether."""


class TableMismatch(CanonicalError):
    """A table of a state that is not declared, or declared otherwise."""


def encoded_column(column: str) -> str:
    """Return the name of the column with the bytes of the values that `column` cannot say."""
    return f"{column}_encoded"


@dataclass(frozen=True, slots=True)
class TableForm:
    """The canonical table of one state. `schema` is that of the operator, with this state alone."""

    schema: Schema
    value: Natural | None
    map_key: Natural | None
    accumulators: Mapping[str, Accumulator]

    @classmethod
    def of(cls, schema: Schema, spec: StateSpec) -> TableForm:
        """Return the table of a state. Values that Arrow has are given as this version of their codec has them."""
        value = None if spec.codec is None else natural_of(spec.codec.name)
        map_key = None if spec.map_keys is None else natural_of(spec.map_keys)
        alone = replace(schema, states=(spec,), dropped=())
        return cls(alone, value, map_key, accumulators_of(spec))

    def opaque(self) -> TableForm:
        """Return this form with only the values' bytes: for a codec that is not known well enough to be read."""
        return replace(self, value=None)

    @property
    def spec(self) -> StateSpec:
        """Return the state."""
        return self.schema.states[0]

    @property
    def uid(self) -> Uid:
        """Return the operator."""
        return self.schema.uid

    @property
    def arrow(self) -> pa.Schema:
        """Return the columns and metadata."""
        metadata = {_FORMAT: b"%d" % VERSION, _STATE: self.schema.to_json().encode()}
        return pa.schema(self._fields(), metadata=metadata)

    def _fields(self) -> list[pa.Field]:
        kind = self.spec.kind
        fields = [pa.field(KEY, self.schema.key_type.arrow), pa.field(NAMESPACE, NAMESPACES)]
        match kind:
            case StateKind.MAP:
                fields += _said(MAP_KEY, self.map_key, self.spec.map_keys or "")
            case StateKind.LIST:
                fields.append(pa.field(INDEX, pa.int64()))
            case StateKind.TIMERS:
                fields.append(pa.field(TIME, pa.int64()))
            case StateKind.TABLE:
                fields += [pa.field(name, one.arrow) for name, one in self.accumulators.items() if name != EXPIRES]
            case _:
                pass
        if self.spec.codec is not None:
            codec = self.spec.codec
            fields += _said(VALUE, self.value, f"{codec.name} versions {codec.oldest} to {codec.version}")
        fields.append(pa.field(KEY_GROUP, pa.uint16()))
        if kind is not StateKind.TIMERS:
            fields.append(pa.field(EXPIRES_AT, pa.int64()))
        return fields

    @property
    def expires(self) -> bool:
        """True if entries may expire."""
        return self.spec.expires is not None or EXPIRES in self.accumulators


def _said(column: str, natural: Natural | None, codec: str) -> list[pa.Field]:
    metadata = {_CODEC: codec.encode(), _SAID: _IN_BYTES if natural is None else _IN_ARROW}
    if natural is None:
        return [pa.field(column, pa.binary(), metadata=metadata)]
    field = pa.field(column, natural.arrow, metadata=metadata)
    return [field] if natural.total else [field, pa.field(encoded_column(column), pa.binary())]


def accumulators_of(spec: StateSpec) -> dict[str, Accumulator]:
    """Return the columns that a table of aggregates keeps, as its declaration in files says; none for other states."""
    if spec.kind is not StateKind.TABLE:
        return {}
    found: dict[str, Accumulator] = {}
    for output, text in json.loads(spec.detail).items():
        if output == EXPIRES:
            found[EXPIRES] = Accumulator.named("int64")
            continue
        columns = _ACCUMULATORS.fullmatch(text)
        if columns is None:
            raise BrokenSchema(f"table {spec.name!r}: {text!r} says nothing about what output {output!r} keeps")
        for column in columns[3].split(", "):
            name, _, type_name = column.rpartition(": ")
            found[f"{output}.{name}"] = Accumulator.named(type_name)
    return found


def is_canonical(arrow: pa.Schema) -> bool:
    """True if a table says of itself which state it is of."""
    return _FORMAT in (arrow.metadata or {})


def state_of(arrow: pa.Schema, place: str) -> str:
    """Return the name of the state whose table this is, whatever columns are there."""
    return _form_said_by(arrow, place).spec.name


def form_of(arrow: pa.Schema, place: str) -> TableForm:
    """Return the form that the table in `place` says it has; all columns are there and of their types (see `fits`)."""
    form = _form_said_by(arrow, place)
    place = f"{place}, state {form.spec.name!r} of {form.uid}"
    form = replace(
        form, value=_as_said(VALUE, form.value, arrow, place), map_key=_as_said(MAP_KEY, form.map_key, arrow, place)
    )
    _check_columns(form, arrow, place)
    return form


def _form_said_by(arrow: pa.Schema, place: str) -> TableForm:
    metadata = arrow.metadata or {}
    version = metadata.get(_FORMAT)
    if version is None:
        raise ForeignTable(
            f"{place} is no table of state: it lacks the metadata that the export wrote; other tools drop it when they "
            f"rewrite a file, so bring it back with Arrow's replace_schema_metadata"
        )
    if not re.fullmatch(rb"[1-9][0-9]{0,8}", version):
        raise DamagedTable(f"{place} says that its format is {version!r}; export it anew")
    if int(version) > VERSION:
        raise NewerTable(
            f"{place} has format {int(version)}, and this version reads up to {VERSION}; use a release at least as new"
        )
    try:
        schema = Schema.from_json(metadata.get(_STATE, b"").decode())
        (spec,) = schema.states
        return TableForm.of(schema, spec)
    except (ValueError, TypeError) as error:
        raise DamagedTable(f"{place} does not say which state it holds: {error}; export it anew") from error


def _as_said(column: str, natural: Natural | None, arrow: pa.Schema, place: str) -> Natural | None:
    """Return how a column says its values: it may have been written as bytes though Arrow has the values."""
    at = arrow.get_field_index(column)
    said = None if at < 0 else (arrow.field(at).metadata or {}).get(_SAID)
    if said == _IN_ARROW and natural is None:
        raise NewerTable(f"{place}: column {column!r} is of a codec that this version does not know; use a newer one")
    return None if said == _IN_BYTES else natural


def _check_columns(form: TableForm, arrow: pa.Schema, place: str) -> None:
    for field in form.arrow:
        found = arrow.get_all_field_indices(field.name)
        if len(found) != 1:
            raise DamagedTable(f"{place}: column {field.name!r} is there {len(found)} times; export it anew")
        given = arrow.field(found[0]).type
        if field.name != KEY and not fits(given, field.type):
            raise DamagedTable(f"{place}: column {field.name!r} is of type {given} instead of {field.type}")


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """True if a column of one type says the same as one of the other: in another width, unit or encoding."""
    types = pa.types
    if given == wanted or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return fits(given.value_type, wanted)
    if types.is_struct(wanted):
        return (
            types.is_struct(given)
            and [field.name for field in given] == [field.name for field in wanted]
            and all(fits(one.type, other.type) for one, other in zip(given, wanted, strict=True))
        )
    if types.is_timestamp(wanted):
        return types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None)
    return (_is_text(given) and _is_text(wanted)) or (_is_bytes(given) and _is_bytes(wanted))


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_binary_view(arrow))
