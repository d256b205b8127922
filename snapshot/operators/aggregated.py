"""The base of operators over aggregates: their outputs as columns, and the errors in them.

Invariant: the output columns follow from the declaration alone; the key's columns come first, as they came in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from snapshot.operators.operator import Input
from statebackend.keys.columns import KeyColumn, decode_keys
from statebackend.keys.types import KeyType, UndeclarableKeyType
from statebackend.states.aggregates import AggregateTable
from statebackend.tables.values.accumulators import blank
from statebackend.tables.values.aggregations import Accumulators, Aggregation

_NO_SLOTS = np.empty(0, dtype=np.int64)

RESERVED = frozenset({"ttl"})
"""The names that mean something else in the declaration of a table."""


def declared(outputs: Mapping[str, Aggregation], input: Input) -> AggregateTable:
    """Return the table with these outputs."""
    return AggregateTable(input.schema, ttl=None, **outputs)


def over_columns(outputs: Mapping[str, Aggregation], input: Input) -> dict[str, Aggregation]:
    """Return the outputs for the types of their columns; raise `AggregationError` if one takes no such values."""
    return {name: _over_column(one, input) for name, one in outputs.items()}


def key_fields(input: Input) -> list[pa.Field]:
    """Return the columns of the key."""
    return [input.schema.field(name) for name in input.keys]


def result_fields(outputs: Mapping[str, Aggregation], input: Input) -> list[pa.Field]:
    """Return the columns of the results."""
    return [pa.field(name, _result_type(one)) for name, one in over_columns(outputs, input).items()]


def read_columns(outputs: Mapping[str, Aggregation], batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of the batch that the aggregations are over."""
    return {one.column: batch.column(one.column) for one in outputs.values() if one.column is not None}


def key_arrays(keys: KeyColumn, key_type: KeyType, input: Input) -> list[pa.Array]:
    """Return the columns of these keys, in the types that they have in the input."""
    column = decode_keys(keys, key_type)
    columns = [column] if len(input.keys) == 1 else column.flatten()
    return [_cast(one, field.type) for one, field in zip(columns, key_fields(input), strict=True)]


def key_problems(input: Input) -> Iterator[str]:
    """Yield the reasons why rows of this input cannot be divided by key."""
    if not input.keys:
        yield "the input is not divided by key: use key_by before"
    lacking = [name for name in input.keys if name not in input.schema.names]
    for name in lacking:
        yield f"there is no column {name!r} to be the key; there are {', '.join(input.schema.names)}"
    if input.keys and not lacking:
        try:
            _ = input.key_type
        except UndeclarableKeyType as error:
            yield f"{', '.join(input.keys)} cannot be the key: {error}"


def output_problems(outputs: Mapping[str, Aggregation], input: Input, others: Sequence[str]) -> Iterator[str]:
    """Yield the problems of aggregates over this input, whose results stand beside the columns `others`."""
    if not outputs:
        yield "no output is named: name at least one aggregation"
    for name, count in Counter([*others, *outputs]).items():
        if count > 1:
            yield f"two columns of the output are called {name!r}: give the aggregate another name"
    for name, one in outputs.items():
        if name in RESERVED:
            yield f"an aggregate cannot be called {name!r}: give it another name"
        if one.column is not None and one.column not in input.schema.names:
            yield f"{name}: there is no column {one.column!r}; there are {', '.join(input.schema.names)}"
        elif (why := _refusal(one, input)) is not None:
            yield f"{name}: {why}"


def _over_column(one: Aggregation, input: Input) -> Aggregation:
    return one.over(None if one.column is None else input.schema.field(one.column).type)


def _refusal(one: Aggregation, input: Input) -> str | None:
    """Return why the aggregation refuses columns of this type, or None if it does not; no values are needed."""
    values = None if one.column is None else pa.array([], input.schema.field(one.column).type)
    try:
        bound = _over_column(one, input)
        bound.update(_nothing(bound), _NO_SLOTS, values)
        _result_type(bound)
    except (TypeError, ValueError, pa.ArrowException) as error:
        return str(error)
    return None


def _result_type(aggregation: Aggregation) -> pa.DataType:
    return aggregation.result(_nothing(aggregation), _NO_SLOTS).type


def _nothing(aggregation: Aggregation) -> Accumulators:
    return {name: blank(0, one.dtype) for name, one in aggregation.accumulators.items()}


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    if pa.types.is_dictionary(wanted):
        return column.cast(wanted.value_type).dictionary_encode().cast(wanted)
    return column.cast(wanted)
