"""Errors of the schemes that pause sources: pauses that do not end, or begin, and batches that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.driver.epochs import Epochs
from recovery.driver.tree import manifests
from recovery.driver.tree.splits import enumerator_json
from recovery.schemes.passive import PassiveRun
from recovery.testing import simulated_job
from recovery.testing.whole.shape import JobShape, draw_shape
from snapshot.cut.batches import Batches
from snapshot.cut.pauses import Pauses, Then
from snapshot.epochs.coordinator import Coordinator
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.host.partition.attempt import PartitionAttempt
from snapshot.host.partition.batch_source import BatchSource
from snapshot.host.partition.stage_run import StageRun
from tests.planted.error import planted, seldom
from tests.scheme_checks import watch
from tests.scheme_shapes import micro_batches, synchronous


def under_synchronous(patch: MonkeyPatch) -> None:
    """Run all jobs under Synchronous, and watch what it promises."""
    patch.setattr(simulated_job, "draw_shape", lambda schedule: _short(synchronous(draw_shape(schedule))))
    watch(patch, batches=False)


def under_micro_batches(patch: MonkeyPatch) -> None:
    """Run all jobs under MicroBatches, and watch what it promises."""
    patch.setattr(simulated_job, "draw_shape", lambda schedule: _short(micro_batches(draw_shape(schedule))))
    watch(patch, batches=True)


def _short(shape: JobShape) -> JobShape:
    """Wait less long for a job that never ends; one without an error ends in a fourth of these turns."""
    return replace(shape, turns=8_000)


# --- synchronous epochs ----------------------------------------------------------------------------------------------


@planted("under Synchronous, an epoch that is given up keeps its sources waiting", shown_by=20)
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = Pauses.over
    patch.setattr(Pauses, "over", lambda self, epoch, *, complete: complete and right(self, epoch, complete=True))


@planted("under Synchronous, a complete epoch keeps its sources waiting")
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = Pauses.over
    patch.setattr(Pauses, "over", lambda self, epoch, *, complete: complete or right(self, epoch, complete=False))


@seldom("under Synchronous, of two epochs only the newer one lets sources go on")
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = Pauses.over

    def over(self: Pauses, epoch: Any, *, complete: bool) -> None:
        if epoch == max(self._held_by, default=None):
            right(self, epoch, complete=complete)

    patch.setattr(Pauses, "over", over)


@seldom("under Synchronous, the end of one epoch ends the pauses of all")
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = Pauses.over

    def over(self: Pauses, epoch: Any, *, complete: bool) -> None:
        right(self, epoch, complete=complete)
        self._held_by = {held: then for held, then in self._held_by.items() if then is Then.STOP}

    patch.setattr(Pauses, "over", over)


@planted("under Synchronous, sources read on at a trigger")
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = Pauses.triggered
    patch.setattr(
        Pauses, "triggered", lambda self, epoch, then: right(self, epoch, Then.READ_ON if then is Then.PAUSE else then)
    )


@planted("under Synchronous, only the first partition hears that its sources pause", shown_by=5)
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = PartitionAttempt._trigger

    def trigger(self: PartitionAttempt, trigger: Any) -> None:
        if self._deploy.partition > 0 and trigger.then is Then.PAUSE:
            trigger = type(trigger)(trigger.incarnation, trigger.sent_at, trigger.marker)
        right(self, trigger)

    patch.setattr(PartitionAttempt, "_trigger", trigger)


@planted("under Synchronous, partitions do not hear that an epoch was given up", shown_by=20)
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    _tell_nothing_of_what_is_given_up(patch)


@planted("under Synchronous, an epoch begins while another is in flight")
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    _without_limit(patch)


@planted("under Synchronous, sources have no time between two epochs that are long")
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = Coordinator._over

    def over(self: Any, in_flight: Any) -> None:
        right(self, in_flight)
        self._pause_until = self._now

    patch.setattr(Coordinator, "_over", over)


@planted("under Synchronous, the driver tells sources to read on")
def _(patch: MonkeyPatch) -> None:
    under_synchronous(patch)
    right = PassiveRun.__init__
    patch.setattr(PassiveRun, "__init__", lambda self, parallelism, then=Then.READ_ON: right(self, parallelism))


def _tell_nothing_of_what_is_given_up(patch: MonkeyPatch) -> None:
    right = Epochs._send_all

    def send_all(self: Epochs, message: Any) -> None:
        if getattr(message, "complete", True):
            right(self, message)

    patch.setattr(Epochs, "_send_all", send_all)


def _without_limit(patch: MonkeyPatch) -> None:
    right = Coordinator._trigger_if_due

    def trigger_if_due(self: Any) -> Any:
        in_flight, options = self._in_flight, self._options
        if not in_flight or self._has_last:
            return right(self)
        self._options = _Unlimited(options)
        try:
            return right(self)
        finally:
            self._options = options

    patch.setattr(Coordinator, "_trigger_if_due", trigger_if_due)


class _Unlimited:
    """Options whose epochs in flight have no limit."""

    max_in_flight = 100

    def __init__(self, options: CoordinatorOptions) -> None:
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._options, name)


# --- micro-batches ---------------------------------------------------------------------------------------------------


@planted("under MicroBatches, a split that is dealt out before a cut is unassigned in the epoch too")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    patch.setattr(manifests, "_unassigned", lambda enumerator, subtasks: enumerator)


@planted("under MicroBatches, a source that has ended waits for a moment without an epoch", shown_by=35)
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    patch.setattr(Batches, "may_end", property(lambda self: not self.stands_still))


@seldom("under MicroBatches, an attempt after the job's last epoch is given no epoch to read in")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    right = Coordinator._started

    def started(self: Any, event: Any) -> Any:
        last = self._last
        said = right(self, event)
        self._last = last
        return said

    patch.setattr(Coordinator, "_started", started)


@seldom("under MicroBatches, the batch of a source that has ended is never over")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    patch.setattr(BatchSource, "gathers", property(lambda self: self._batches.is_read))


@planted("under MicroBatches, sources are cut before their batch is read")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    patch.setattr(BatchSource, "gathers", property(lambda self: False))
    patch.setattr(BatchSource, "reads", property(lambda self: self._batches.is_read or self.ended))


@planted("under MicroBatches, sources go on reading when a batch is over")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    patch.setattr(BatchSource, "reads", property(lambda self: True))


@planted("under MicroBatches, a batch begins before the one before is complete")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    _without_limit(patch)


@seldom("under MicroBatches, the marker of an epoch is lost when another is triggered during its batch")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    right = StageRun.triggered

    def triggered(self: StageRun, *given: Any) -> None:
        self._due.clear()
        right(self, *given)

    patch.setattr(StageRun, "triggered", triggered)


@planted("under MicroBatches, partitions do not hear that an epoch was given up", shown_by=1)
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    _tell_nothing_of_what_is_given_up(patch)


@planted("under MicroBatches, a complete epoch keeps its sources waiting")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    right = Pauses.over
    patch.setattr(Pauses, "over", lambda self, epoch, *, complete: complete or right(self, epoch, complete=False))


@seldom("under MicroBatches, a batch without rows is never cut")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    right = StageRun._cut_gathered

    def cut(self: StageRun, source: Any) -> None:
        if not source._batches._rows:
            self._due.clear()
        right(self, source)

    patch.setattr(StageRun, "_cut_gathered", cut)


@planted("under MicroBatches, an epoch has no splits that nobody reads")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    patch.setattr(manifests, "_unassigned", lambda enumerator, subtasks: enumerator_json(()))


@planted("under MicroBatches, only the first partition begins a batch")
def _(patch: MonkeyPatch) -> None:
    under_micro_batches(patch)
    right = BatchSource.triggered

    def triggered(self: BatchSource, epoch: Any, then: Then) -> None:
        right(self, epoch, then)
        if self.splits._partition > 0:
            self._batches.found_nothing()

    patch.setattr(BatchSource, "triggered", triggered)
