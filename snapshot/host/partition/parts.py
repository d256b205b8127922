"""The parts of a stage that depend on how its partition is wired, for one place to choose them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from snapshot.epochs.transaction_events import Committable
from snapshot.host.flow.gathering import AtOnce, Even, RowGatherer, Take
from snapshot.host.flow.inlets import MakeInlet
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.router import Outlet, SendingEnd
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.partition.stage_source import Pacing
from snapshot.ids import ChannelId
from snapshot.program.plan import Stage
from snapshot.program.sink import Sink, SinkContext, SinkWriter
from snapshot.program.source import Source
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Attempt

MakePacing = Callable[[Stage, Source, StatePlacement, Attempt, Callable[[], None], StageClock], Pacing]
"""Makes the pacing of a stage's source; the last argument but one is called, in any thread, when a split has something.
"""


OpenWriter = Callable[[Sink, SinkContext, Sequence[Committable[CommitPayload]]], SinkWriter]
"""Opens the writer of a sink; the last argument is what the restored epoch has of it."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """The makers of all such parts; each stage of a partition has parts of its own."""

    clock: Callable[[], StageClock]
    inlet: MakeInlet
    gatherer: type[RowGatherer[Any]]
    """Makes batches for the operator of the rows that the inlet hands on."""
    batches: Callable[[Take, int], AtOnce | Even]
    """Takes the rows that the operator gives to one output, on their way to the function that is given; the batches
    that come there have so many rows at most."""
    pacing: MakePacing
    outlet: Callable[[ChannelId, Sequence[SendingEnd]], Outlet | None]
    """Joins the sending ends of a channel to all processes that have its receiver's role; None if no stage sends there.
    """
    writer: OpenWriter
    """Opens a sink's writer."""
