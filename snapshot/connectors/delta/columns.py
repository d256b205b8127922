"""Columns of Delta tables: how Arrow's types are written there, and whether rows fit the columns of a table.

Invariant: what is said here is said before anything starts, in sentences that name the column and what to do.
A type is written as it is or as one that holds the same values, never rounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_NO_NAME: Final = frozenset(" ,;{}()\n\t=")
"""The characters that names of columns must not have in Delta, unless the table maps them to others."""
_MADE_BY_WRITERS: Final = ("delta.generationExpression", "delta.identity", "delta.invariants")
_CONSTRAINT: Final = "delta.constraints."
_HARMLESS: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)
"""Features that ask nothing of who adds files, once it is known that the table does not use those that would."""


@dataclass(frozen=True, slots=True)
class FoundDelta:
    """A Delta table as it is: its schema as JSON, as the log has it."""

    schema: str
    partitioned_by: Sequence[str] = ()
    configuration: Mapping[str, str] | None = None
    features: Sequence[str] = ()
    """The features that the table asks of its writers."""


def written_as(type: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of this one are written to a data file; None if Delta has none for them."""
    types = pa.types
    if types.is_signed_integer(type) or types.is_boolean(type) or types.is_date32(type):
        return type
    if types.is_float32(type) or types.is_float64(type):
        return type
    if types.is_string(type) or types.is_large_string(type) or types.is_string_view(type):
        return pa.string()
    if types.is_binary(type) or types.is_large_binary(type) or types.is_binary_view(type):
        return pa.binary()
    if types.is_fixed_size_binary(type):
        return pa.binary()
    if types.is_decimal128(type):
        return type if 0 <= type.scale <= type.precision else None
    if types.is_timestamp(type):
        return None if type.unit == "ns" else pa.timestamp("us", None if type.tz is None else "UTC")
    if types.is_dictionary(type):
        return written_as(type.value_type)
    return _nested_as(type)


def _nested_as(type: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(type):
        inner = [(field, written_as(field.type)) for field in type]
        if not inner or any(written is None for _, written in inner):
            return None
        return pa.struct([pa.field(field.name, written, field.nullable) for field, written in inner])
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        item = written_as(type.value_type)
        return None if item is None else pa.list_(pa.field("element", item, type.value_field.nullable))
    if pa.types.is_map(type):
        key, value = written_as(type.key_type), written_as(type.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    return None


def written_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a data file, for rows in which `unsuitable` finds no fault."""
    return pa.schema([pa.field(field.name, written_as(field.type), field.nullable) for field in schema])


def unsuitable(schema: pa.Schema) -> list[str]:
    """Return what Delta could not store in any table, in sentences."""
    faults = [
        f"Delta has no column for {field.name!r} of {field.type}; cast it in the stream"
        for field in schema
        if written_as(field.type) is None
    ]
    faults += [
        f"Delta has no column of the name {name!r}; give it one without spaces and none of ,;{{}}()="
        for name in schema.names
        if not name or _NO_NAME & set(name)
    ]
    if len({name.lower() for name in schema.names}) < len(schema.names):
        faults.append("the rows have two columns whose names are the same for Delta, which does not look at the case")
    if not schema.names:
        faults.append("the rows have no column")
    return faults


def misfits(ours: str, found: FoundDelta) -> list[str]:
    """Return why rows with these columns cannot be added to the table; both schemas are JSON, as in Delta's log."""
    if found.partitioned_by:
        columns = ", ".join(found.partitioned_by)
        return [f"it is partitioned by {columns}, and only tables that are not can be written"]
    unknown = sorted(set(found.features) - _HARMLESS)
    faults = [f"it has the feature {name}, of which we do not know what writers owe to it" for name in unknown]
    configuration = found.configuration or {}
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        faults.append("its columns are mapped to other names (delta.columnMapping.mode), which we do not know")
    faults += [
        f"it has the constraint {name.removeprefix(_CONSTRAINT)}, which would not be checked; drop it, filter the rows"
        for name in sorted(configuration)
        if name.startswith(_CONSTRAINT)
    ]
    return [*faults, *_column_misfits(json.loads(ours)["fields"], json.loads(found.schema)["fields"])]


def _column_misfits(ours: Sequence[Any], table: Sequence[Any]) -> list[str]:
    there = {field["name"]: field for field in table}
    faults = []
    for field in ours:
        name = field["name"]
        target = there.pop(name, None)
        if target is None:
            known = ", ".join(repr(one["name"]) for one in table)
            faults.append(f"it has no column {name!r}; it has {known}")
        elif made := [key for key in target["metadata"] if key.startswith(_MADE_BY_WRITERS)]:
            faults.append(f"what its column {name!r} holds is for the writer to compute or check ({made[0]})")
        elif not _is_same(field["type"], target["type"]):
            faults.append(
                f"its column {name!r} is of {_said(target['type'])}, and the rows bring {_said(field['type'])}; "
                f"cast it in the stream"
            )
        elif field["nullable"] and not target["nullable"]:
            faults.append(f"its column {name!r} must not be null, and that of the rows may be; drop NOT NULL there")
    for name, other in there.items():
        if not other["nullable"]:
            faults.append(f"it wants a value for {name!r}, which the rows have not; drop NOT NULL there")
    return faults


def _is_same(ours: Any, table: Any) -> bool:
    """True if a column of the table takes these values: the same type, and null allowed where they may be null."""
    if isinstance(ours, str) or isinstance(table, str):
        return bool(ours == table)
    if ours["type"] != table["type"]:
        return False
    match ours["type"]:
        case "struct":
            return len(ours["fields"]) == len(table["fields"]) and all(
                mine["name"] == other["name"]
                and mine["nullable"] <= other["nullable"]
                and _is_same(mine["type"], other["type"])
                for mine, other in zip(ours["fields"], table["fields"], strict=True)
            )
        case "array":
            return ours["containsNull"] <= table["containsNull"] and _is_same(ours["elementType"], table["elementType"])
        case _:
            return ours["valueContainsNull"] <= table["valueContainsNull"] and all(
                _is_same(ours[part], table[part]) for part in ("keyType", "valueType")
            )


def _said(type: Any) -> str:
    return type if isinstance(type, str) else json.dumps(type)
