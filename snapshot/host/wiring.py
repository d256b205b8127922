"""The one place that knows what a wiring means: it chooses the parts of which stages are made.

Invariant: no other module asks how a job is wired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snapshot.host.flow.inlets import ArrivalInlet
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.router import Outlet
from snapshot.host.partition.sink_run import Output
from snapshot.host.partition.stage_clock import process_clock
from snapshot.host.partition.stage_source import StageSource
from snapshot.host.protocol.wiring import ByArrival, Wiring


def stage_parts(wiring: Wiring) -> StageParts:
    """Return how the stages of a partition are made."""
    match wiring:
        case ByArrival():
            return StageParts(process_clock, ArrivalInlet, StageSource, _only, _writing)


def _only(ends: Sequence[Outlet]) -> Outlet:
    (end,) = ends
    return end


def _writing(make: Callable[[], Output]) -> Output:
    return make()
