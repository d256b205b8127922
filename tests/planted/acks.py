"""Errors of the scheme that acknowledges frames: words that come too early, and rows that nobody sends again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.driver.attempts.requests import Endings
from recovery.driver.attempts.run import AttemptRun
from recovery.driver.claimed import ClaimedJob
from recovery.testing import simulated_job
from recovery.testing.programs import drawn
from recovery.testing.whole.shape import JobShape, draw_shape
from snapshot.cut.acks import Acker, Basket, HeldAcks, Readings
from snapshot.cut.frames import End, Watermark
from snapshot.host.flow.allowances import UNLIMITED
from snapshot.host.partition.acked_source import AckedSource
from snapshot.host.partition.acks import AckOutlet, PartitionAcks, StageAcks
from snapshot.host.partition.attempt import PartitionAttempt
from snapshot.host.partition.stage_source import StageSource
from snapshot.host.process.worker import Worker
from tests.planted.error import planted, seldom
from tests.scheme_shapes import acknowledged, without_control_streams


def under_acks(patch: MonkeyPatch) -> None:
    """Run all jobs under Acks."""
    patch.setattr(
        simulated_job, "draw_shape", lambda schedule: replace(acknowledged(draw_shape(schedule)), turns=9_000)
    )
    patch.setattr(drawn, "_DRAWERS", without_control_streams())


def _short(shape: JobShape) -> JobShape:
    """Wait less long for a job that never ends."""
    return replace(shape, turns=9_000)


# --- what is acknowledged ---------------------------------------------------------------------------------------------


@planted("under Acks, a stage with state acknowledges what it has taken at once", shown_by=8)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = StageAcks.__init__

    def made(self: StageAcks, *given: Any) -> None:
        right(self, *given)
        self._holds = False

    patch.setattr(StageAcks, "__init__", made)


@planted("under Acks, a stage acknowledges at its cut, before the epoch is complete", shown_by=45)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = StageAcks.cut

    def cut(self: StageAcks, epoch: Any) -> None:
        right(self, epoch)
        self._acks.owe(self._held.completed(epoch))

    patch.setattr(StageAcks, "cut", cut)


@planted("under Acks, a complete epoch acknowledges what came after its cut")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = HeldAcks.completed

    def completed(self: HeldAcks, epoch: Any) -> Any:
        self.cut(epoch)
        return right(self, epoch)

    patch.setattr(HeldAcks, "completed", completed)


@planted("under Acks, frames that go out are left out of the exclusive or", shown_by=8)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(Basket, "gave", lambda self, id: None)


@planted("under Acks, the first word about a root is enough", shown_by=8)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = Acker.acked

    def acked(self: Any, number: int, value: int) -> bool:
        place = self._places.get(number)
        if place is not None:
            self._pending[place].value = value
        return right(self, number, value)

    patch.setattr(Acker, "acked", acked)


# --- what a cut has, and what is said of it ---------------------------------------------------------------------------


@planted("under Acks, a cut has the positions up to which a source has read", shown_by=10)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(AckedSource, "positions", StageSource.positions)


@seldom("under Acks, a cut leaves out what was sent and is not acknowledged")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(StageAcks, "kept", lambda self, outlet: ())


@seldom("under Acks, a source's watermark does not wait for acknowledgements")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(AckedSource, "watermark", StageSource.watermark)


@planted("under Acks, a source ends before its last rows are acknowledged", shown_by=1)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(AckedSource, "ended", property(lambda self: self.splits.ended))


@seldom("under Acks, the end of a stage does not wait for acknowledgements")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    _say_at_once(patch, End)


@seldom("under Acks, the watermark of a stage does not wait for acknowledgements")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    _say_at_once(patch, Watermark)


def _say_at_once(patch: MonkeyPatch, kind: type) -> None:
    right = StageAcks.in_order

    def in_order(self: StageAcks, outlet: Any, frame: Any) -> None:
        if isinstance(frame, kind):
            outlet.say(frame)
        else:
            right(self, outlet, frame)

    patch.setattr(StageAcks, "in_order", in_order)


@planted("under Acks, rows are forgotten when the newest of them are acknowledged", shown_by=29)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = StageAcks.acked

    def acked(self: StageAcks, number: int, value: int) -> None:
        before = self._acker.rows
        right(self, number, value)
        if self._acker.rows < before:
            self.readings.acked(self._acker.next)

    patch.setattr(StageAcks, "acked", acked)


@planted("under Acks, a group of readings has the positions before its last one", shown_by=12)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = Readings.read

    def read(self: Readings[Any], split: str, before: Any) -> None:
        right(self, split, before)
        self._groups[-1].before[split] = before

    patch.setattr(Readings, "read", read)


# --- what is sent again -----------------------------------------------------------------------------------------------


@seldom("under Acks, what is overdue is not sent again")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(Acker, "overdue", lambda self, now: iter(()))


@seldom("under Acks, a partition that restarts does not send again what its cut has")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(PartitionAttempt, "_send_again", lambda self: None)


@seldom("under Acks, nobody sends what was in flight to a partition at the attempt's start")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = AttemptRun.restart

    def anew(self: AttemptRun, waiting: Any, *given: Any, **named: Any) -> None:
        began, self.began_from = self.began_from, None
        try:
            right(self, waiting, *given, **named)
        finally:
            self.began_from = began

    patch.setattr(AttemptRun, "restart", anew)


@seldom("under Acks, a successor is not told the watermark and the end that were said before")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = AckOutlet.join

    def join(self: AckOutlet, end: Any) -> None:
        said, self._said = self._said, {}
        right(self, end)
        self._said = said

    patch.setattr(AckOutlet, "join", join)


# --- the partition that restarts alone --------------------------------------------------------------------------------


@planted("under Acks, a partition that restarts is not told of the splits that were dealt to it", shown_by=11)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right = AttemptRun.restart

    def forgetful(self: AttemptRun, *given: Any, **named: Any) -> None:
        self._sent.clear()
        right(self, *given, **named)

    patch.setattr(AttemptRun, "restart", forgetful)


@planted("under Acks, other partitions do not hear that one restarts", shown_by=6)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(Worker, "_replace", lambda self, message: None)


@seldom("under Acks, the end of input that a lost partition had come to still counts")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    right, over = ClaimedJob._follow_loss, Endings.attempt_over

    def follow(self: ClaimedJob, *given: Any) -> None:
        patch.setattr(Endings, "attempt_over", lambda self: None)
        try:
            right(self, *given)
        finally:
            patch.setattr(Endings, "attempt_over", over)

    patch.setattr(ClaimedJob, "_follow_loss", follow)


@seldom("under Acks, a successor is allowed what its predecessor was")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)

    def allowed(self: AckOutlet) -> Any:
        return UNLIMITED if self._end is None else self._end.allowed

    patch.setattr(AckOutlet, "allowed", property(allowed))


@planted("under Acks, acknowledgements are not sent to a successor", shown_by=15)
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(PartitionAcks, "joined", lambda self, sending: None)


@seldom("under Acks, a connection that comes before the driver's word is turned away")
def _(patch: MonkeyPatch) -> None:
    under_acks(patch)
    patch.setattr(Worker, "_may_be_told_of", lambda self, member: False)
