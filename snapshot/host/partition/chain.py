"""The chains after a stage's operator as functions: transforms applied at once, then sinks and routers.

What always holds: rows go through a chain one batch after the other, completely, before the operator goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from snapshot.operators.operator import Apply
from snapshot.operators.rows import Rows
from snapshot.program.plan import Edge, Step, Target, ToEdge, ToSink
from statebackend.ids import Uid

Take = Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Where chains lead to: sinks, edges, and the place where rows get their event time."""

    sinks: Mapping[Uid, Take]
    edges: Mapping[Edge, Take]
    stamp: Callable[[Step, Rows], Rows]


def chained(targets: Sequence[Target], ends: Ends) -> Take:
    """Return a function that takes rows to all of these targets."""
    takes = [_take(target, ends) for target in targets]
    if len(takes) == 1:
        return takes[0]

    def fan_out(rows: Rows) -> None:
        for take in takes:
            take(rows)

    return fan_out


def _take(target: Target, ends: Ends) -> Take:
    match target:
        case ToSink(uid):
            return ends.sinks[uid]
        case ToEdge(edge):
            return ends.edges[edge]
        case Step(transform, event_time, then):
            after = chained(then, ends)
            if event_time is not None:
                after = _stamped(ends.stamp, target, after)
            return after if transform is None else _transformed(transform.open(), transform.label, after)


def _stamped(stamp: Callable[[Step, Rows], Rows], step: Step, after: Take) -> Take:
    def take(rows: Rows) -> None:
        after(stamp(step, rows))

    return take


def _transformed(apply: Apply, label: str, after: Take) -> Take:
    def take(rows: Rows) -> None:
        try:
            results = apply(rows)
        except BaseException as error:
            error.add_note(f"in {label}")
            raise
        for result in results:
            if len(result):
                after(result)

    return take
