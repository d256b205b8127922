"""The one place that knows what a wiring means: it chooses the parts of which stages are made.

Invariant: no other module asks how a job is wired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from snapshot.connectors.staging.batched_rows import open_keeping, open_showing
from snapshot.host.flow.gathering import AtOnce, Even, EvenGatherer, RowGatherer
from snapshot.host.flow.inlets import ArrivalInlet
from snapshot.host.flow.round_inlet import RoundInlet
from snapshot.host.partition.agreed_source import AgreedSource
from snapshot.host.partition.batch_source import BatchSource
from snapshot.host.partition.parts import MakePacing, StageParts
from snapshot.host.partition.round_source import RoundSource
from snapshot.host.partition.router import FanOut, Outlet, SendingEnd
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.stage_clock import process_clock, round_clock
from snapshot.host.partition.stage_source import StageSource
from snapshot.host.protocol.wiring import ByArrival, InBatches, InRounds, Wiring


def stage_parts(
    wiring: Wiring,
    driver_time: Callable[[], int],
    began: int | None = None,
    agreement: SourceAgreement | None = None,
) -> StageParts:
    """Return how the stages of a partition are made; `driver_time` is the driver's clock, in milliseconds.

    The attempt `began` at this time by it, or begins now. Where the partition has several members, they have an
    `agreement`.
    """
    match wiring:
        case ByArrival():
            return StageParts(process_clock, ArrivalInlet, RowGatherer, AtOnce, StageSource, _only, open_showing)
        case InBatches(at_most, longest):
            pacing: MakePacing = partial(BatchSource, at_most=at_most, longest=longest)
            return StageParts(process_clock, ArrivalInlet, RowGatherer, AtOnce, pacing, _only, open_keeping)
        case InRounds(tick, replicas):
            pacing = partial(RoundSource, tick=tick, driver_time=driver_time)
            if agreement is not None:
                pacing = partial(AgreedSource, tick=tick, driver_time=driver_time, agreement=agreement)
            return StageParts(
                partial(round_clock, tick, driver_time() if began is None else began),
                RoundInlet,
                EvenGatherer,
                Even,
                pacing,
                _only if replicas == 1 else FanOut,
                open_showing,
            )


def _only(ends: Sequence[SendingEnd]) -> Outlet:
    (end,) = ends
    return end
