"""The transforms and operators that steps of a program become, once it is known which rows come to them.

Invariant: whatever stands in the way is a `CannotBuild` with a sentence for the user, and of the user's code
nothing runs but the constructors of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from snapshot.operators.operator import Input, KeyedOperator, Transform, name_of
from snapshot.program.nodes import Aggregating, Change, Changed, Processing, Reducing, Selected, Way, Work
from snapshot.program.problems import unknown_column
from statebackend.columns import NotASchema, SchemaLike, schema_of
from statebackend.errors import ProgramError
from statebackend.tables.values.aggregations import Aggregation


class CannotBuild(ProgramError, ValueError):
    """A step that cannot be made of what was said; each of `reasons` is a sentence."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def transform_of(node: Changed | Selected, given: pa.Schema) -> Transform:
    """Return the step's transform for rows of this schema."""
    from snapshot.operators import transforms  # they are loaded when a program needs them

    if isinstance(node, Selected):
        _refuse_unknown(node.columns, given)
        return transforms.Select(node.columns, given)
    function, output = node.function, given if node.schema is None else _schema(node.schema)
    match node.change:
        case Change.MAP:
            return transforms.MapRows(function, given, output)
        case Change.FLAT_MAP:
            return transforms.FlatMapRows(function, given, output)
        case Change.FILTER:
            return transforms.FilterRows(function, given)
        case Change.MAP_BATCHES:
            return transforms.MapBatches(function, given, output)
        case Change.FLAT_MAP_BATCHES:
            return transforms.FlatMapBatches(function, given, output)
        case Change.FILTER_BATCHES:
            return transforms.FilterBatches(function, given)


def operator_of(work: Work, inputs: tuple[Input, ...]) -> KeyedOperator:
    """Return the step's operator for these inputs."""
    match work:
        case Processing():
            return _process(work, inputs)
        case Reducing():
            return _reduce(work, inputs[0])
        case Aggregating():
            return _aggregate(work, inputs[0])


def _process(work: Processing, inputs: tuple[Input, ...]) -> KeyedOperator:
    function, output, sides = _declared(work)
    match work.way:
        case Way.EVENTS:
            from snapshot.operators.function_operator import Process

            return Process(function, inputs, output, sides)
        case Way.BATCHES:
            from snapshot.operators.process_batch import ProcessBatches

            return ProcessBatches(function, inputs, output, sides)
        case Way.CONNECTED:
            from snapshot.operators.function_operator import ConnectedProcess

            return ConnectedProcess(function, (inputs[0], inputs[1]), output, sides)
        case Way.CONTROLLED:
            from snapshot.operators.broadcast import BroadcastProcess

            return BroadcastProcess(function, (inputs[0], inputs[1]), output, sides)
        case Way.WINDOWS:
            from snapshot.operators.windows.process import WindowProcess

            windowing = work.windowing
            assert windowing is not None, "only a windowed stream makes such a node"
            return WindowProcess(
                windowing.window, function, inputs[0], output, windowing.lateness, windowing.late, sides
            )


def problems_of(work: Work) -> Sequence[str]:
    """Return what is wrong with the step whatever its inputs are."""
    if isinstance(work, Processing):
        try:
            _declared(work)
        except CannotBuild as error:
            return error.reasons
    return ()


def _declared(work: Processing) -> tuple[Any, pa.Schema, Mapping[str, pa.Schema]]:
    """Return the function, and the schemas of its output and sides; the operator's own check looks at its class."""
    reasons: list[str] = []
    sides: dict[str, pa.Schema] = {}
    function, output = None, pa.schema([])
    try:
        function = _instance(work.function)
        output = _output(work, function)
    except CannotBuild as error:
        reasons += error.reasons
    for name, declared in work.sides.items():
        try:
            sides[name] = _schema(declared)
        except CannotBuild as error:
            reasons += error.reasons
    if reasons:
        raise CannotBuild(reasons)
    return cast("Any", function), output, sides


def _reduce(work: Reducing, given: Input) -> KeyedOperator:
    if not callable(work.function):
        raise CannotBuild([f"{work.function!r} cannot be called; give a function of two rows"])
    if work.windowing is None:
        from snapshot.operators.reduce import Reduce

        return Reduce(work.function, given)
    from snapshot.operators.windows.reduce import WindowReduce

    windowing = work.windowing
    return WindowReduce(windowing.window, work.function, given, windowing.lateness, windowing.late)


def _aggregate(work: Aggregating, given: Input) -> KeyedOperator:
    outputs, reasons = _outputs(work.outputs, given)
    if reasons:
        raise CannotBuild([*reasons, *(_aggregate_of(work, outputs, given).check() if outputs else ())])
    return _aggregate_of(work, outputs, given)


def _aggregate_of(work: Aggregating, outputs: Mapping[str, Aggregation], given: Input) -> KeyedOperator:
    if work.windowing is None:
        from snapshot.operators.aggregate import RunningAggregate

        return RunningAggregate(outputs, given, work.per)
    from snapshot.operators.windows.aggregate import WindowAggregate

    windowing = work.windowing
    return WindowAggregate(windowing.window, outputs, given, windowing.lateness, windowing.late)


def _outputs(declared: Mapping[str, Aggregation], given: Input) -> tuple[Mapping[str, Aggregation], Sequence[str]]:
    """Return the aggregations that can be made, and what is wrong with the others."""
    reasons: list[str] = []
    outputs: dict[str, Aggregation] = {}
    if not declared:
        reasons.append("it aggregates nothing; give at least one, such as clicks=Count()")
    for name, one in declared.items():
        if not isinstance(cast("object", one), Aggregation):
            reasons.append(f"{name}={one!r} is no aggregation; give one such as {name}=Sum('column')")
        elif one.column is not None and one.column not in given.schema.names:
            reasons.append(unknown_column(one.column, given.schema))
        elif name in given.keys:
            reasons.append(f"its output {name!r} is called as a column of the key is; give it another name")
        else:
            outputs[name] = one
    return outputs, reasons


def _instance(function: object) -> object:
    if not isinstance(function, type):
        return function
    try:
        return function()
    except Exception as error:
        raise CannotBuild(
            [f"{name_of(function)}() raises {type(error).__name__}: {error}; give an instance where it needs arguments"]
        ) from error


def _output(work: Processing, function: object) -> pa.Schema:
    declared = work.schema if work.schema is not None else getattr(function, "output", None)
    if work.schema is None and not isinstance(declared, pa.Schema | Mapping):
        raise CannotBuild(
            ["the output schema is missing; pass schema={...}, or give the class an attribute output = {...}"]
        )
    return _schema(cast("SchemaLike", declared))


def _schema(declared: SchemaLike) -> pa.Schema:
    try:
        return schema_of(declared)
    except NotASchema as error:
        raise CannotBuild(error.reasons) from error


def _refuse_unknown(columns: Sequence[str], schema: pa.Schema) -> None:
    reasons = [unknown_column(column, schema) for column in columns if column not in schema.names]
    if not columns:
        reasons.append("it names no column; name at least one")
    if any(columns.count(column) > 1 for column in columns):
        reasons.append("it names a column twice")
    if reasons:
        raise CannotBuild(reasons)
