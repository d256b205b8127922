"""A plan as text for people.

What always holds: equal plans give equal text, and everything that is matched by name over restarts is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from snapshot.program.durations import in_words
from snapshot.program.nodes import name_of
from snapshot.program.plan import (
    Edge,
    EventTime,
    Exchange,
    KeyedHead,
    PassHead,
    Plan,
    ReadHead,
    Stage,
    Step,
    Target,
    ToEdge,
    ToSink,
)
from snapshot.program.schemas import columns_in_words


def explained(plan: Plan) -> str:
    """The stages in the order in which rows flow, each with what is chained in it and where its rows go."""
    blocks = ["\n".join(_stage(stage)) for stage in plan.stages]
    return "\n\n".join(blocks) + "\n"


def _stage(stage: Stage) -> Iterator[str]:
    match stage.head:
        case ReadHead(source):
            yield f"{stage.uid}: read({name_of(source)})"
            yield f"│ rows: {columns_in_words(source.schema)}"
        case KeyedHead(operator):
            yield f"{stage.uid}: {operator.label}"
            yield from (f"│ from {_arrival(edge)}" for edge in stage.inputs)
            if operator.states:
                yield f"│ state: {', '.join(operator.states)}"
            yield f"│ rows: {columns_in_words(operator.output)}"
        case PassHead():
            yield f"{stage.uid}: {'meeting' if stage.sinks else 'rebalance'}"
            yield from (f"│ from {_arrival(edge)}" for edge in stage.inputs)
        case _:
            assert_never(stage.head)
    branches = [(side, target) for side, targets in stage.outputs.items() for target in targets]
    for index, (side, target) in enumerate(branches):
        yield from _target(target, "", last=index == len(branches) - 1, side=side)


def _target(target: Target, indent: str, *, last: bool, side: str | None = None) -> Iterator[str]:
    yield f"{indent}{'└─' if last else '├─'} {f'[{side}] ' if side is not None else ''}{_line(target)}"
    if isinstance(target, Step):
        yield from _tree(target.then, indent + ("   " if last else "│  "))


def _tree(targets: Sequence[Target], indent: str) -> Iterator[str]:
    for index, target in enumerate(targets):
        yield from _target(target, indent, last=index == len(targets) - 1)


def _line(target: Target) -> str:
    match target:
        case Step(transform, event_time):
            done = [] if transform is None else [f"{transform.label} -> {columns_in_words(transform.output)}"]
            return "; ".join(done + ([] if event_time is None else [_event_time(event_time)]))
        case ToSink(uid, sink):
            return f"{uid}: write({name_of(sink)}){'' if sink.exactly_once else ', at least once'}"
        case ToEdge(edge):
            return f"{_exchange(edge)} -> {_end(edge.target, edge)}"


def _event_time(event_time: EventTime) -> str:
    parts = [f"event time from {event_time.column}"]
    if event_time.out_of_order:
        parts.append(f"out of order by up to {in_words(event_time.out_of_order)}")
    if event_time.idle_after is not None:
        parts.append(f"idle after {in_words(event_time.idle_after)}")
    return ", ".join(parts)


def _arrival(edge: Edge) -> str:
    return f"{_end(edge.source, edge)} {_exchange(edge)}{f' as input {edge.input}' if edge.input else ''}"


def _end(uid: str, edge: Edge) -> str:
    return f"{uid}#{edge.port}" if edge.port else uid


def _exchange(edge: Edge) -> str:
    match edge.exchange:
        case Exchange.KEYED:
            return f"by key ({', '.join(edge.keys)})"
        case Exchange.BROADCAST:
            return "to all partitions"
        case Exchange.FORWARD:
            return "in the same partition"
        case Exchange.REBALANCE:
            return "in turns"
