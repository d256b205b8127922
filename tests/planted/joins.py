"""Errors of members that join a partition while the others go on: what they are sent, and where they begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.replication.joining import Joining, Step
from recovery.schemes.active_run import ActiveRun
from recovery.schemes.scheme import TriggerPlan
from recovery.testing import simulated_job
from recovery.testing.whole.shape import draw_shape
from snapshot.cut.frames import Frame, Marker
from snapshot.host.flow.allowances import Allowances
from snapshot.host.flow.round_inlet import RoundInlet
from snapshot.host.partition.agreed_source import AgreedSource
from snapshot.host.partition.router import FanOut
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.source_times import SourceTimes
from snapshot.host.partition.stage_inputs import StageInputs
from snapshot.host.partition.stage_outputs import StageOutputs
from snapshot.host.partition.stage_time import StageTime
from snapshot.host.process.waiting import WaitingToJoin
from tests.planted.error import planted, seldom
from tests.replica_checks import watch_admissions, watch_copies
from tests.scheme_shapes import replicated


def with_replicas(patch: MonkeyPatch) -> None:
    """Run all jobs with two replicas of each partition, and compare what these send."""
    patch.setattr(simulated_job, "draw_shape", lambda schedule: replace(replicated(draw_shape(schedule)), turns=20_000))
    watch_copies(patch)
    watch_admissions(patch)


# --- what is sent to a member that joins -----------------------------------------------------------------------------


@planted("a member that joins is sent the marker as well behind which it joins", shown_by=22)
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    right = FanOut.put

    def put(self: FanOut, frame: Frame) -> Any:
        if isinstance(frame, Marker) and frame.admits:
            self.admit(frame.epoch)
        return right(self, frame)

    patch.setattr(FanOut, "put", put)


@planted("a member that joins is sent nothing by the others", shown_by=22)
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(FanOut, "admit", lambda self, epoch: None)


@planted("a member that waits to join drops what is sent to it", shown_by=22)
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(WaitingToJoin, "keep", lambda self, copy, frame: True)


@seldom("a member joins behind a marker that came before all were connected with it")
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    right = Joining._heard

    def heard(self: Joining, step: Step, by: Any) -> Any:
        if step is self.step is Step.CONNECTING:
            self._awaited = {by}
        return right(self, step, by)

    patch.setattr(Joining, "_heard", heard)


@seldom("a member that has joined is not told of epochs")
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(ActiveRun, "trigger", lambda self: TriggerPlan(self._members))


# --- where it begins -------------------------------------------------------------------------------------------------


@seldom("a member that joins counts the rows of splits from its own first one")
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    right = AgreedSource.go_on
    patch.setattr(AgreedSource, "go_on", lambda self, now: right(self, replace(now, handed_out={})))


@seldom("a member that joins knows no event time of the splits")
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(SourceTimes, "go_on", lambda self, now: None)


@planted("a member that joins takes all that was ever decided anew", shown_by=49)
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(SourceAgreement, "place", property(lambda self: 0))


@planted("a member that joins expects more on channels that have ended", shown_by=22)
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(RoundInlet, "go_on", lambda self, ended: None)


@planted("a member that joins sends markers where its peers have sent the end", shown_by=22)
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    right = StageOutputs.go_on
    patch.setattr(StageOutputs, "go_on", lambda self, put, *, ended: right(self, put, ended=False))


@seldom("a member that joins allows its senders rows from the first one of all on")
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(Allowances, "go_on", lambda self, taken: None)


@seldom("a member that joins knows no event time of its inputs")
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    right = StageInputs.go_on

    def go_on(self: StageInputs, now: Any) -> None:
        watermarks = self._watermarks
        right(self, now)
        self._watermarks = watermarks

    patch.setattr(StageInputs, "go_on", go_on)


@seldom("a member that joins does not know what event time its stages have announced")
def _(patch: MonkeyPatch) -> None:
    with_replicas(patch)
    patch.setattr(StageTime, "go_on", lambda self, announced, *, had_ended: None)
