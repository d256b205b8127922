"""The one place that knows what a wiring means: it chooses the parts of which stages are made.

Invariant: no other module asks how a job is wired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from snapshot.connectors.staging.batched_rows import open_keeping, open_showing
from snapshot.host.flow.gathering import AtOnce, Even, EvenGatherer, RowGatherer
from snapshot.host.flow.inlets import ArrivalInlet, LastRows
from snapshot.host.flow.round_inlet import RoundInlet
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.partition.ack_inlet import AckInlet
from snapshot.host.partition.acked_source import AckedSource
from snapshot.host.partition.acks import PartitionAcks
from snapshot.host.partition.agreed_source import AgreedSource
from snapshot.host.partition.batch_source import BatchSource
from snapshot.host.partition.parts import MakePacing, StageParts
from snapshot.host.partition.round_source import RoundSource
from snapshot.host.partition.router import FanOut, Outlet, SendingEnd
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.stage_clock import process_clock, round_clock
from snapshot.host.partition.stage_source import StageSource
from snapshot.host.protocol.messages import Deploy
from snapshot.host.protocol.wiring import ByArrival, InBatches, InRounds, Wiring, WithAcks
from snapshot.ids import ChannelId
from snapshot.program.plan import Plan
from statebackend.ids import Epoch


def stage_parts(
    wiring: Wiring,
    driver_time: Callable[[], int],
    began: int | None = None,
    agreement: SourceAgreement | None = None,
    acks: PartitionAcks | None = None,
) -> StageParts:
    """Return how the stages of a partition are made; `driver_time` is the driver's clock, in milliseconds.

    The attempt `began` at this time by it, or begins now. Where the partition has several members, they have an
    `agreement`; where frames are acknowledged, it has `acks`.
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
                _only if replicas == 1 else _all,
                open_showing,
            )
        case WithAcks():
            assert acks is not None
            return StageParts(
                process_clock,
                partial(_acked_inlet, acks),
                RowGatherer,
                AtOnce,
                partial(AckedSource, acks=acks),
                acks.outlet,
                open_showing,
            )


def acks_of(deploy: Deploy, plan: Plan, loop: EventLoop) -> PartitionAcks | None:
    """Return the acknowledgements of a partition; None where frames are not acknowledged."""
    if not isinstance(deploy.wiring, WithAcks):
        return None
    wiring = deploy.wiring
    return PartitionAcks(
        deploy.incarnation,
        deploy.member,
        deploy.parallelism,
        plan,
        loop,
        wiring.timeout / 1000,
        wiring.max_pending,
    )


def _acked_inlet(
    acks: PartitionAcks,
    channels: Collection[ChannelId],
    ordered: Iterable[ChannelId],
    restored: Epoch,
    most: int,
    last_rows: LastRows,
) -> AckInlet:
    del ordered, restored, last_rows  # no marker overtakes anything, and all that comes is taken
    return AckInlet(channels, most, acks.of)


def _only(channel: ChannelId, ends: Sequence[SendingEnd]) -> Outlet:
    del channel
    (end,) = ends
    return end


def _all(channel: ChannelId, ends: Sequence[SendingEnd]) -> Outlet:
    del channel
    return FanOut(ends)
