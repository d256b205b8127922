"""Errors of the cut itself: markers, alignment, channel state, watermarks, splits, and what is frozen when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.decisions.restore import plan_restore
from recovery.testing import manifests
from recovery.testing.generation import GenerationRun
from recovery.testing.messages import SourceCut
from recovery.testing.source import SourceSubtask
from recovery.testing.worker import Worker
from snapshot.cut.aligner import Aligner, AllEnded, ChannelEnded
from snapshot.cut.frames import Marker, MarkerMode, Watermark
from snapshot.cut.outbox import Outbox
from snapshot.cut.participant import SubtaskCut
from snapshot.cut.watermarks import Watermarks
from snapshot.epochs.splits import SplitEnumerator
from statebackend.ids import Attempt, Incarnation
from tests.seeded.error import at_a_receiver, in_the_job


@in_the_job("an aligned marker overtakes data")
def _(patch: MonkeyPatch) -> None:
    right = Outbox.put

    def put(self: Outbox, frame: Any) -> Any:
        if isinstance(frame, Marker) and frame.mode is MarkerMode.ALIGNED:
            self._frames.appendleft(frame)
            return ()
        return right(self, frame)

    patch.setattr(Outbox, "put", put)


@in_the_job("a channel that has delivered its marker is not held back")
def _(patch: MonkeyPatch) -> None:
    right = Aligner._marker_reached

    def reached(self: Aligner, channel: Any, marker: Any) -> Any:
        instructions = right(self, channel, marker)
        if self._held.pop(channel, None) is not None and self._queues[channel]:
            self._ready[channel] = None
        return instructions

    patch.setattr(Aligner, "_marker_reached", reached)


@in_the_job("what an unaligned marker finds queued is left out of the channel state")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Aligner, "_before_marker", lambda self, channel, epoch: [])


@in_the_job("what arrives after an unaligned cut is left out of the channel state")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Aligner, "_record", lambda self, channel, frame: None)


@in_the_job("what a marker overtakes at its sender is left out of the channel state")
def _(patch: MonkeyPatch) -> None:
    right = Outbox._overtake

    def overtake(self: Outbox, marker: Any) -> Any:
        right(self, marker)
        return ()

    patch.setattr(Outbox, "_overtake", overtake)


@in_the_job("channel state goes on behind the marker", seed=4)
def _(patch: MonkeyPatch) -> None:
    right = Aligner._before_marker

    def before(self: Aligner, channel: Any, epoch: Any) -> Any:
        queue = self._queues[channel]
        self._queues[channel] = type(queue)(frame for frame in queue if not isinstance(frame, Marker))
        frames = right(self, channel, epoch)
        self._queues[channel] = queue
        return frames

    patch.setattr(Aligner, "_before_marker", before)


@at_a_receiver("a second marker on a channel counts for another channel")
def _(patch: MonkeyPatch) -> None:
    right = Aligner._marker_reached

    def reached(self: Aligner, channel: Any, marker: Any) -> Any:
        pending = self._pending.get(marker.epoch)
        if pending is not None and channel not in pending.unreached and pending.unreached:
            channel = min(pending.unreached)
        return right(self, channel, marker)

    patch.setattr(Aligner, "_marker_reached", reached)


@in_the_job("a late marker begins its epoch again")
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Aligner, "_wanted", lambda self, epoch: epoch not in self._aborted)


@in_the_job("an ended channel is still waited for")
def _(patch: MonkeyPatch) -> None:
    def ended(self: Aligner, channel: Any) -> Any:
        self._live.discard(channel)
        return [ChannelEnded(channel), *([] if self._live else [AllEnded()])]

    patch.setattr(Aligner, "_ended", ended)


@in_the_job("a source sends a record after its marker and counts it before")
def _(patch: MonkeyPatch) -> None:
    right = SourceSubtask._cut

    def cut(self: SourceSubtask, marker: Any) -> Any:
        noted = right(self, marker)
        if not self.active:
            return noted
        self.emit()
        assert isinstance(noted.content, SourceCut)
        late = SourceCut(dict(self._positions), self._watermark, noted.content.overtaken)
        return SubtaskCut(noted.epoch, noted.uid, late, noted.owes)

    patch.setattr(SourceSubtask, "_cut", cut)


@in_the_job("watermarks are left out of the cut")
def _(patch: MonkeyPatch) -> None:
    right = plan_restore

    def plan(*args: Any) -> Any:
        return tuple(replace(part, watermark=None) for part in right(*args))

    patch.setattr(manifests, "plan_restore", plan)


@in_the_job("event time follows the fastest input")
def _(patch: MonkeyPatch) -> None:
    def combine(self: Watermarks) -> Watermark | None:
        known = [watermark.timestamp for watermark in self._inputs.values() if watermark is not None]
        if not known or (self._current is not None and max(known) <= self._current.timestamp):
            return None
        self._current = Watermark(max(known))
        return self._current

    patch.setattr(Watermarks, "_combine", combine)


@in_the_job("a split that is assigned after the trigger is lost from the cut")
def _(patch: MonkeyPatch) -> None:
    right = GenerationRun._publish

    def publish(self: GenerationRun, instruction: Any) -> None:
        self._unassigned[instruction.epoch] = self._enumerator.unassigned
        right(self, instruction)

    patch.setattr(GenerationRun, "_publish", publish)


@in_the_job("a split that is assigned before the trigger is read twice")
def _(patch: MonkeyPatch) -> None:
    right = SplitEnumerator.assign

    def assign(self: Any) -> Any:
        self.before = tuple(self._unassigned)
        return right(self)

    patch.setattr(SplitEnumerator, "assign", assign)
    patch.setattr(
        SplitEnumerator, "unassigned", property(lambda self: getattr(self, "before", tuple(self._unassigned)))
    )


@in_the_job("frames of an older attempt are processed")
def _(patch: MonkeyPatch) -> None:
    right = Worker._frame

    def frame(self: Worker, message: Any) -> None:
        if self._attempt is not None and message.channel in self._attempt._channels:
            self._attempt.arrived(message.channel, message.frame)
        else:
            right(self, message)

    patch.setattr(Worker, "_frame", frame)


@in_the_job("a worker follows a driver that was fenced", seed=1)
def _(patch: MonkeyPatch) -> None:
    right = Worker._deploy

    def deploy(self: Worker, driver: Any, message: Any) -> None:
        self._incarnation = min(self._incarnation, Incarnation(message.incarnation.generation, Attempt(0)))
        right(self, driver, message)

    patch.setattr(Worker, "_deploy", deploy)
