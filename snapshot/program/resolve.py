"""The consequences of a program's steps: the schema of the rows after each, and the operator that does the work.

Invariant: a mistake is reported where it is made; what stands behind it is left out, and not reported again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from snapshot.operators.operator import Input, KeyedOperator, Transform, name_of
from snapshot.program.building import CannotBuild, operator_of, problems_of, transform_of
from snapshot.program.nodes import (
    Changed,
    Incoming,
    Node,
    Operated,
    Read,
    Rebalanced,
    Selected,
    SideOf,
    Timed,
    United,
    Written,
    in_order,
    label_of,
    place_of,
)
from snapshot.program.plan import EventTime
from snapshot.program.problems import Problem, columns_in_words, dictionaries, unknown_column, views
from statebackend.columns import NotASchema, schema_of
from statebackend.keys.types import KeyType, UndeclarableKeyType


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The rows behind a step. `at_source`: no exchange lies between them and their source."""

    schema: pa.Schema
    timed: bool
    at_source: bool


@dataclass(slots=True, eq=False)
class Resolution:
    """The known facts about each node. A node with a mistake at it or before it has no flow."""

    order: Sequence[Node]
    flows: dict[Node, Flow] = field(default_factory=dict)
    transforms: dict[Node, Transform] = field(default_factory=dict)
    operators: dict[Node, KeyedOperator] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def resolved(outputs: Sequence[Written]) -> Resolution:
    """Look at every step that leads to an output."""
    resolver = _Resolver(Resolution(in_order(outputs)))
    for node in resolver.found.order:
        resolver.resolve(node)
    return resolver.found


class _Resolver:
    def __init__(self, found: Resolution) -> None:
        self.found = found

    def resolve(self, node: Node) -> None:
        flow = self._flow(node)
        if flow is not None:
            self.found.flows[node] = flow

    def _flow(self, node: Node) -> Flow | None:
        match node:
            case Read():
                return self._read(node)
            case United(inputs):
                return self._united(node, inputs)
            case Operated():
                return self._operated(node)
            case SideOf():
                return self._side(node)
            case _:
                given = self.found.flows.get(node.input)
                return given and self._step(node, given)

    def _problem(self, node: Node, *sentences: str) -> None:
        self.found.problems.extend(Problem(place_of(node), sentence) for sentence in sentences)

    def _read(self, node: Read) -> Flow | None:
        if isinstance(node.source, type):
            self._problem(
                node, f"{name_of(node.source)} is a class; give an instance of it, {name_of(node.source)}(...)"
            )
            return None
        self._problem(node, *node.source.check())
        try:
            schema = schema_of(node.source.schema)
        except NotASchema as error:
            self._problem(node, *error.reasons)
            return None
        except ValueError as error:
            self._problem(node, str(error))
            return None
        flow = Flow(schema, timed=False, at_source=True)
        return flow if node.event_time is None else self._timed(node, flow, node.event_time)

    def _step(self, node: Changed | Selected | Timed | Rebalanced, given: Flow) -> Flow | None:
        match node:
            case Timed(_, event_time):
                return self._timed(node, given, event_time)
            case Rebalanced():
                self._exchangeable(node, given.schema)
                return replace(given, at_source=False)
            case _:
                try:
                    transform = transform_of(node, given.schema)
                except CannotBuild as error:
                    self._problem(node, *error.reasons)
                    return None
                self._problem(node, *transform.check())
                self.found.transforms[node] = transform
                return replace(given, schema=transform.output)

    def _timed(self, node: Node, given: Flow, event_time: EventTime) -> Flow | None:
        if event_time.column not in given.schema.names:
            self._problem(node, f"event time: {unknown_column(event_time.column, given.schema)}")
            return replace(given, timed=True)
        column = given.schema.field(event_time.column).type
        if not pa.types.is_timestamp(column) and not pa.types.is_integer(column):
            self._problem(
                node,
                f"event time cannot be taken from column {event_time.column!r} of {column}; it has to be of "
                "timestamps, or of integers that are milliseconds since 1970",
            )
        elif event_time.idle_after == 0:
            self._problem(node, "a split would be idle at once with idle_after=0; give more, or None for never")
        elif given.timed:
            self._problem(node, "the rows have event times already; give them once on every way from a source")
        elif not given.at_source:
            self._problem(
                node, "event time is given behind an exchange; give it before key_by or rebalance, nearer to the source"
            )
        return replace(given, timed=True)

    def _united(self, node: Node, inputs: Sequence[Node]) -> Flow | None:
        flows = {input: self.found.flows[input] for input in inputs if input in self.found.flows}
        if len(flows) < len(set(inputs)):
            return None
        first = flows[inputs[0]]
        for other, flow in flows.items():
            if not flow.schema.equals(first.schema):
                self._problem(
                    node,
                    f"the rows of {place_of(inputs[0])} are ({columns_in_words(first.schema)}), those of "
                    f"{place_of(other)} ({columns_in_words(flow.schema)}); bring them to one schema with select or map",
                )
                return None
            if flow.timed != first.timed:
                timed, untimed = (inputs[0], other) if first.timed else (other, inputs[0])
                self._problem(
                    node,
                    f"the rows of {place_of(timed)} have event times, those of {place_of(untimed)} have none; give "
                    "them with event_time= or with_event_time to all streams, or to none",
                )
                return None
        return replace(first, at_source=all(flow.at_source for flow in flows.values()))

    def _operated(self, node: Operated) -> Flow | None:
        inputs = [self._input(node, incoming) for incoming in node.inputs]
        known = tuple(input for input in inputs if input is not None)
        if len(known) < len(inputs) or not self._same_keys(node, known):
            self._problem(node, *problems_of(node.work))
            return None
        try:
            operator = operator_of(node.work, known)
        except CannotBuild as error:
            self._problem(node, *error.reasons)
            return None
        problems = operator.check()
        self._problem(node, *problems)
        if problems:
            return None
        self.found.operators[node] = operator
        return Flow(operator.output, operator.timed, at_source=False)

    def _input(self, node: Operated, incoming: Incoming) -> Input | None:
        flow = self.found.flows.get(incoming.node)
        if flow is None:
            return None
        fits = self._exchangeable(node, flow.schema)
        if incoming.broadcast:
            return Input(flow.schema, (), flow.timed) if fits else None
        problems = _wrong_keys(incoming.keys, flow.schema)
        self._problem(node, *problems)
        return None if problems or not fits else Input(flow.schema, incoming.keys, flow.timed)

    def _same_keys(self, node: Operated, inputs: Sequence[Input]) -> bool:
        names = [input.key_type.name for input in inputs if input.keys]
        if len(set(names)) <= 1:
            return True
        self._problem(
            node, f"the keys of the connected streams are {' and '.join(names)}; they have to be of one type, cast one"
        )
        return False

    def _exchangeable(self, node: Node, schema: pa.Schema) -> bool:
        packed, viewed = dictionaries(schema), views(schema)
        for column in packed:
            self._problem(
                node,
                f"column {column!r} is dictionary-encoded ({schema.field(column).type}), and rows travel between "
                "partitions without dictionaries; cast it to its values' type before, or leave it out with select",
            )
        for column in viewed:
            self._problem(
                node,
                f"column {column!r} is {schema.field(column).type}, and views cannot be divided between partitions; "
                "cast it to string or binary before, or leave it out with select",
            )
        return not packed and not viewed

    def _side(self, node: SideOf) -> Flow | None:
        if not isinstance(node.input, Operated):
            self._problem(
                node,
                f"{label_of(node.input)} has no side outputs; take side({node.name!r}) of the stream that process or "
                "window(...) gives, before any other step",
            )
            return None
        operator = self.found.operators.get(node.input)
        if operator is None:
            return None
        if node.name not in operator.sides:
            there = ", ".join(operator.sides) or "none"
            self._problem(
                node, f"there is no side output {node.name!r}; there are: {there}{_how_to_have(node, operator)}"
            )
            return None
        return Flow(operator.sides[node.name], operator.timed, at_source=False)


def _how_to_have(node: SideOf, operator: KeyedOperator) -> str:
    work = node.input.work if isinstance(node.input, Operated) else None
    if work is not None and work.windowing is not None and node.name == "late":
        return "; ask for it with window(..., late=True)"
    return "" if operator.sides else "; declare it with sides={...}"


def _wrong_keys(keys: Sequence[str], schema: pa.Schema) -> list[str]:
    if not keys:
        return ["key_by names no column; name at least one"]
    problems = [f"key_by: {unknown_column(key, schema)}" for key in keys if key not in schema.names]
    if any(keys.count(key) > 1 for key in keys):
        problems.append("key_by names a column twice")
    for key in keys:
        if key in schema.names:
            try:
                KeyType.of(schema.field(key).type)
            except UndeclarableKeyType as error:
                problems.append(f"key_by: column {key!r} cannot be a key: {error}")
    return problems
