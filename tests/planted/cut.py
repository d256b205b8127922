"""Errors of the cut itself: markers, alignment, channel state, splits, and what is sealed and frozen when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from recovery.decisions import restore
from recovery.driver.epochs import Epochs
from recovery.driver.tree import manifests
from snapshot.cut import wire
from snapshot.cut.aligner import Aligner
from snapshot.cut.frames import Marker, MarkerMode
from snapshot.cut.outbox import Outbox
from snapshot.cut.wire import Decoder
from snapshot.host.net.connection_kinds import ChannelOf
from snapshot.host.partition.router import Router
from snapshot.host.partition.sink_run import SinkRun
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.partition.stage_inputs import StageInputs
from snapshot.host.partition.stage_operators import KeyedRun
from snapshot.host.process.worker import Worker
from snapshot.operators.broadcast import BroadcastStates
from snapshot.tree.manifest import ChannelState
from statebackend.ids import Incarnation
from tests.planted.error import planted, seldom

# --- markers ---------------------------------------------------------------------------------------------------------


@planted("an aligned marker overtakes data", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = Outbox.put

    def put(self: Outbox, frame: Any) -> Any:
        if isinstance(frame, Marker) and frame.mode is MarkerMode.ALIGNED and not self._ended:
            self._frames.appendleft(frame)
            return ()
        return right(self, frame)

    patch.setattr(Outbox, "put", put)


@planted("a marker leaves before rows that wait for others to fill a batch", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = Router.put

    def put(self: Router, frame: Any) -> Any:
        if not isinstance(frame, Marker):
            return right(self, frame)
        overtaken = {channel.id: channel.put(frame) for channel in self._channels}
        return {channel: frames for channel, frames in overtaken.items() if frames}

    patch.setattr(Router, "put", put)


@planted("a channel that has delivered its marker is not held back", shown_by=9)
def _(patch: MonkeyPatch) -> None:
    right = Aligner._marker_reached

    def reached(self: Aligner, channel: Any, marker: Any) -> Any:
        instructions = right(self, channel, marker)
        if self._held.pop(channel, None) is not None and self._queues[channel]:
            self._ready[channel] = None
        return instructions

    patch.setattr(Aligner, "_marker_reached", reached)


@planted("a late marker begins its epoch again", shown_by=5)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Aligner, "_wanted", lambda self, epoch: epoch not in self._aborted)


@planted("an ended channel is still waited for")
def _(patch: MonkeyPatch) -> None:
    right = Aligner._await

    def awaiting(self: Aligner, marker: Any) -> Any:
        pending = right(self, marker)
        pending.unreached |= self._queues.keys() - self._live
        return pending

    patch.setattr(Aligner, "_await", awaiting)


# --- channel state ---------------------------------------------------------------------------------------------------


@planted("what an unaligned marker finds queued is left out of the channel state", shown_by=35)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Aligner, "_before_marker", lambda self, channel, epoch: [])


@planted("rows off the queue and not yet processed are left out of the channel state", shown_by=35)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(StageInputs, "left", lambda self: {})


@planted("what arrives after an unaligned cut is left out of the channel state", shown_by=44)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(Aligner, "_record", lambda self, channel, frame: None)


@planted("what a marker overtakes at its sender is left out of the channel state", shown_by=35)
def _(patch: MonkeyPatch) -> None:
    right = Outbox._overtake

    def overtake(self: Outbox, marker: Any) -> Any:
        right(self, marker)
        return ()

    patch.setattr(Outbox, "_overtake", overtake)


@planted("channel state goes on behind the marker", shown_by=96)
def _(patch: MonkeyPatch) -> None:
    right = Aligner._before_marker

    def before(self: Aligner, channel: Any, epoch: Any) -> Any:
        queue = self._queues[channel]
        self._queues[channel] = type(queue)(frame for frame in queue if not isinstance(frame, Marker))
        frames = right(self, channel, epoch)
        self._queues[channel] = queue
        return frames

    patch.setattr(Aligner, "_before_marker", before)


@seldom("what a marker overtook is processed before what its receiver had noted")
def _(patch: MonkeyPatch) -> None:
    right = manifests._with_overtaken

    def with_overtaken(uid: Any, subtask: Any, overtaken: Any) -> Any:
        mine = {c: state for c, state in overtaken.items() if c.target == uid and c.receiver == subtask.partition}
        merged = right(uid, subtask, overtaken)
        own = {state.channel: state.parts for state in subtask.channels}
        turned = tuple(
            ChannelState(state.channel, (*mine[state.channel].parts, *own.get(state.channel, ())))
            if state.channel in mine
            else state
            for state in merged.channels
        )
        return replace(merged, channels=turned) if turned else merged

    patch.setattr(manifests, "_with_overtaken", with_overtaken)


@planted("in-flight data of the restored epoch is taken after new input", shown_by=35)
def _(patch: MonkeyPatch) -> None:
    right, gather = StageInputs.take_back, StageInputs.gather

    def take_back(self: StageInputs) -> None:
        self.__dict__["waiting"] = True

    def gathered(self: StageInputs, channel: Any, frame: Any) -> None:
        gather(self, channel, frame)
        if self.__dict__.pop("waiting", False):
            right(self)

    patch.setattr(StageInputs, "take_back", take_back)
    patch.setattr(StageInputs, "gather", gathered)


@planted("after a rescale every partition processes all in-flight data", shown_by=79)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(StageInputs, "_own", lambda self, place, rows: rows)


@planted("after a rescale in-flight data is dropped", shown_by=79)
def _(patch: MonkeyPatch) -> None:
    right = restore._dealt

    def dealt(*args: Any) -> Any:
        return replace(right(*args), channels=())

    patch.setattr(restore, "_dealt", dealt)


@seldom("frames of an older attempt are processed")
def _(patch: MonkeyPatch) -> None:
    right_judge, right_connection, right_header = Worker._judge, Worker._on_connection, Decoder._header

    def is_late(self: Worker, kind: Any) -> bool:
        expected = isinstance(kind, ChannelOf) and self._links is not None and self._links.expects(kind.copy)
        return expected and kind.incarnation < self._incarnation

    def judge(self: Worker, kind: Any) -> str:
        return "" if is_late(self, kind) else right_judge(self, kind)

    def connected(self: Worker, proved: Any, kind: Any, peer: str) -> None:
        right_connection(
            self, proved, replace(kind, incarnation=self._incarnation) if is_late(self, kind) else kind, peer
        )

    def header(self: Decoder, whole: Any) -> Any:
        generation, attempt = wire._UNCHECKED.unpack_from(whole)[4:6]
        if generation == self._incarnation.generation and attempt < self._incarnation.attempt:
            self._incarnation = Incarnation(generation, attempt)
        return right_header(self, whole)

    patch.setattr(Worker, "_judge", judge)
    patch.setattr(Worker, "_on_connection", connected)
    patch.setattr(Decoder, "_header", header)


# --- what is sealed and frozen when ----------------------------------------------------------------------------------


@planted("the snapshot reads state that has moved on")
def _(patch: MonkeyPatch) -> None:
    right, poll = KeyedRun.cut, KeyedRun.poll

    def cut(self: KeyedRun, epoch: Any) -> None:
        self.__dict__.setdefault("due", []).append([epoch, 2])

    def polled(self: KeyedRun) -> Any:
        due = self.__dict__.get("due", [])
        for late in due:
            late[1] -= 1
        while due and due[0][1] <= 0:
            right(self, due.pop(0)[0])
        return poll(self)

    patch.setattr(KeyedRun, "cut", cut)
    patch.setattr(KeyedRun, "poll", polled)


@planted("a sink's transaction is sealed after rows behind the marker", shown_by=40)
def _(patch: MonkeyPatch) -> None:
    right = SinkRun.cut
    patch.setattr(SinkRun, "cut", lambda self, epoch: self._loop.call_soon(lambda: right(self, epoch)))


@planted("broadcast state is left out of a restore", shown_by=21)
def _(patch: MonkeyPatch) -> None:
    patch.setattr(BroadcastStates, "_restore", lambda self, data: None)


# --- sources and their splits ----------------------------------------------------------------------------------------


@planted("a source counts a record before its marker that it sends after it", shown_by=2)
def _(patch: MonkeyPatch) -> None:
    right, read = SourceRun.positions, SourceRun.read

    def positions(self: SourceRun) -> Any:
        early = None if self.ended else read(self, 1)
        if early is not None:
            self.__dict__.setdefault("early", []).append(early)
        return right(self)

    def reading(self: SourceRun, most: int) -> Any:
        early = self.__dict__.get("early")
        return early.pop(0) if early else read(self, most)

    patch.setattr(SourceRun, "positions", positions)
    patch.setattr(SourceRun, "read", reading)


@planted("a split that is assigned after the trigger is lost from the cut")
def _(patch: MonkeyPatch) -> None:
    right = Epochs._publish

    def publish(self: Epochs, instruction: Any) -> None:
        attempt, epoch = self._deployment.attempt, instruction.epoch
        if attempt is not None:
            self._parts[epoch] = replace(self._parts[epoch], enumerators=attempt.enumerators())
        right(self, instruction)

    patch.setattr(Epochs, "_publish", publish)


@planted("splits that no partition has read yet are forgotten by a restore")
def _(patch: MonkeyPatch) -> None:
    def unassigned(manifest: Any, uid: Any) -> Sequence[str]:
        return ()

    patch.setattr(manifests, "unassigned_in", unassigned)
