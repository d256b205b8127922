"""A plan as text for people.

Invariant: equal plans give equal text, and everything that is matched by name over restarts is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from snapshot.operators.operator import Transform, name_of
from snapshot.program.plan import (
    Edge,
    EventTime,
    Exchange,
    Plan,
    Stage,
    Step,
    Target,
    ToEdge,
    ToSink,
)
from snapshot.program.problems import columns_in_words
from statebackend.durations import in_words


def explained(plan: Plan) -> str:
    """Describe the stages in the order in which rows flow, each with what is chained in it and where its rows go."""
    blocks = ["\n".join(_stage(stage)) for stage in plan.stages]
    return "\n\n".join(blocks) + "\n"


def described(stage: Stage) -> tuple[str, Sequence[str], Sequence[tuple[str, str]]]:
    """Return what a stage begins with, the rest of what `explained` says of it, and its inputs: where from, and how."""
    inputs = [(_end(edge.source, edge), _exchange(edge)) for edge in stage.inputs]
    return _first(stage), list(_stage(stage))[1:], inputs


def _stage(stage: Stage) -> Iterator[str]:
    rows = _rows(stage)
    yield f"{stage.uid}: {_first(stage)}"
    yield from (f"│ from {_end(edge.source, edge)} {_exchange(edge)}{_input(edge)}" for edge in stage.inputs)
    if stage.operator is not None and stage.operator.states:
        yield f"│ state: {', '.join(stage.operator.states)}"
    yield f"│ rows: {columns_in_words(rows[None])}"
    branches = [(side, target) for side, targets in stage.outputs.items() for target in targets]
    for index, (side, target) in enumerate(branches):
        of_side = "" if side is None else f"side {side} ({columns_in_words(rows[side])}): "
        yield from _target(target, rows[side], of_side, "", last=index == len(branches) - 1)


def _first(stage: Stage) -> str:
    if stage.source is not None:
        return f"read({name_of(stage.source)})"
    if stage.operator is not None:
        return stage.operator.label
    return "rebalance" if stage.inputs[0].exchange is Exchange.REBALANCE else "union"


def _rows(stage: Stage) -> Mapping[str | None, pa.Schema]:
    """Return the schemas of the rows that go into the stage's chains, by side output."""
    if stage.source is not None:
        return {None: stage.source.schema}
    if stage.operator is not None:
        return dict[str | None, pa.Schema](stage.operator.sides) | {None: stage.operator.output}
    return {None: stage.inputs[0].schema}


def _target(target: Target, given: pa.Schema, what: str, indent: str, *, last: bool) -> Iterator[str]:
    yield f"{indent}{'└─' if last else '├─'} {what}{_line(target, given)}"
    if isinstance(target, Step):
        rows = given if target.transform is None else target.transform.output
        for index, behind in enumerate(target.then):
            deeper = indent + ("   " if last else "│  ")
            yield from _target(behind, rows, "", deeper, last=index == len(target.then) - 1)


def _line(target: Target, given: pa.Schema) -> str:
    match target:
        case Step(transform, event_time):
            parts = [] if transform is None else [_transform(transform, given)]
            return "; ".join(parts + ([] if event_time is None else [_event_time(event_time)]))
        case ToSink(uid, sink):
            return f"{uid}: write({name_of(sink)}){'' if sink.exactly_once else ', at least once'}"
        case ToEdge(edge):
            return f"{_exchange(edge)} to {_end(edge.target, edge)}"


def _transform(transform: Transform, given: pa.Schema) -> str:
    changed = "" if transform.output.equals(given) else f" -> {columns_in_words(transform.output)}"
    return f"{transform.label}{changed}"


def _event_time(event_time: EventTime) -> str:
    parts = [f"event time from {event_time.column}"]
    if event_time.out_of_order:
        parts.append(f"out of order by up to {in_words(event_time.out_of_order)}")
    if event_time.idle_after is not None:
        parts.append(f"idle after {in_words(event_time.idle_after)}")
    return ", ".join(parts)


def _input(edge: Edge) -> str:
    return f" as input {edge.input}" if edge.input else ""


def _end(uid: str, edge: Edge) -> str:
    return f"{uid}#{edge.port}" if edge.port else uid


def _exchange(edge: Edge) -> str:
    match edge.exchange:
        case Exchange.KEYED:
            return f"by key ({', '.join(edge.keys)})"
        case Exchange.BROADCAST:
            return "broadcast"
        case Exchange.FORWARD:
            return "in the same partition"
        case Exchange.REBALANCE:
            return "in turns"
