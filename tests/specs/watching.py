"""What the processes of a simulated job do, as it is noted while they do it.

Invariant: what is noted changes nothing of what happens, so that a schedule gives the history that it gives
when it is not watched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pytest import MonkeyPatch

from recovery.driver.attempts.run import AttemptRun
from recovery.testing import simulated_job
from recovery.testing.programs.target import SimulatedTarget
from recovery.testing.whole.job import Job
from snapshot.cut import aligner as align
from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode
from snapshot.epochs.coordinator import Coordinator
from snapshot.epochs.coordinator_events import Publish, Trigger
from snapshot.epochs.transaction_events import Begin, Prepared, Seal, SinkCut
from snapshot.epochs.transactions import Transactions
from snapshot.host.net.control import ControlConnection
from snapshot.host.partition.attempt import PartitionAttempt
from snapshot.host.partition.router import Outlet, Router
from snapshot.host.partition.sink_run import SinkRun
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.partition.stage_inputs import StageInputs
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.protocol.messages import Acknowledgement, Deploy, HasCommitted
from snapshot.ids import ChannelId
from statebackend.ids import NO_EPOCH, Epoch, Incarnation, Uid
from tests.specs.notes import Node, Notes, Witness


@contextmanager
def watched(notes: Notes) -> Iterator[None]:
    """Note what the processes of the next job do."""
    with MonkeyPatch.context() as patch:
        patch.setattr(
            simulated_job, "JobObserver", lambda drawn, exactly_once: Witness(notes, drawn, exactly_once=exactly_once)
        )
        _watch_job(patch, notes)
        _watch_stages(patch, notes)
        _watch_channels(patch, notes)
        _watch_transactions(patch, notes)
        _watch_drivers(patch, notes)
        yield


def _watch_job(patch: MonkeyPatch, notes: Notes) -> None:
    right = Job.start_driver

    def start_driver(self: Job, *args: Any) -> None:
        notes.job = self
        right(self, *args)

    patch.setattr(Job, "start_driver", start_driver)


def _watch_drivers(patch: MonkeyPatch, notes: Notes) -> None:
    handle, send, assign = Coordinator.handle, ControlConnection.send, AttemptRun._assign

    def handled(self: Coordinator[Any], event: Any) -> Any:
        attempt = self.incarnation
        instructions = handle(self, event)
        for instruction in instructions:
            match instruction:
                case Trigger(marker):
                    notes.add("Trigger", attempt=attempt, epoch=marker.epoch)
                case Publish():
                    notes.add("Decide", attempt=instruction.incarnation, epoch=instruction.epoch)
                case _:
                    pass
        return instructions

    def sent(self: ControlConnection[Any, Any], message: object) -> None:
        match message:
            case Deploy(incarnation=attempt) if attempt not in notes.attempts:
                notes.attempts[attempt] = message.parallelism
                notes.add("Deploy", attempt=attempt, epoch=message.epoch or NO_EPOCH)
            case Acknowledgement(attempt, partition, epoch, subtasks):
                txs = {notes.named(at.transaction) for one in subtasks.values() for at in one.committables}
                notes.add("Acknowledge", attempt=attempt, partition=int(partition), epoch=epoch, txs=txs)
            case HasCommitted(attempt, partition, epoch):
                notes.add("Settle", attempt=attempt, partition=int(partition), epoch=epoch)
            case _:
                pass
        send(self, message)

    def assigned(self: AttemptRun, uid: Uid, assignments: Any) -> None:
        for one in assignments:
            splits = {notes.split(uid, split) for split in one.splits}
            notes.add("HandOut", attempt=self.incarnation, partition=int(one.partition), splits=splits)
        assign(self, uid, assignments)

    patch.setattr(Coordinator, "handle", handled)
    patch.setattr(ControlConnection, "send", sent)
    patch.setattr(AttemptRun, "_assign", assigned)


def _watch_stages(patch: MonkeyPatch, notes: Notes) -> None:
    began, made, do, cut, abandoned, assign, taken_back = (
        PartitionAttempt.__init__,
        StageRun.__init__,
        StageRun._do,
        StageRun._cut,
        StageRun.abandoned,
        SourceRun.assign,
        StageInputs.take_back,
    )
    nodes: dict[object, Node] = {}
    """The node of each stage, and of its inputs and its source."""

    def begin(self: PartitionAttempt, deploy: Deploy, *args: Any) -> None:
        assert notes.job is not None
        process = notes.job.world.process
        worker = notes.named((process.name, process.incarnation))
        notes.add("Follow", worker=worker, attempt=deploy.incarnation)
        began(self, deploy, *args)

    def make(
        self: StageRun, stage: Any, placement: Any, epoch: Any, outlets: Mapping[ChannelId, Outlet], *args: Any
    ) -> None:
        attempt: Incarnation = placement.files._incarnation
        node = Node(len(notes.nodes) + 1, attempt, int(placement.partition))
        notes.nodes.append(node)
        nodes[self] = node
        noted = {channel: NotedOutlet(outlet, notes, attempt) for channel, outlet in outlets.items()}
        for edge in stage.edges:
            for receiver in edge.receivers(placement.partition, placement.parallelism):
                channel = edge.channel(placement.partition, receiver)
                number = notes.channel(attempt, channel)
                notes.channels[attempt, channel] |= {"of": node.number, "ordered": edge.ordered, "number": number}
        made(self, stage, placement, epoch, noted, *args)
        nodes[self.inputs] = node
        for channel in self.inputs.channels:
            node.ins.add(notes.channel(attempt, channel))
            notes.channels[attempt, channel]["to"] = node.number
        if self.source is not None:
            nodes[self.source] = node
            node.source = stage.uid

    def take_back(self: StageInputs) -> None:
        taken_back(self)
        node, role = nodes[self], self._placement.role
        back: Counter[int] = Counter()
        for channel, rows in self._taken_back.items():
            back[notes.edge(channel)] += rows
        notes.add(
            "Restore",
            node=node.number,
            read=notes.positions(self._placement.uid, {split: at.text for split, at in role.positions.items()}),
            back={(edge, rows) for edge, rows in back.items() if rows},
            kept={(notes.channel(node.attempt, channel), rows) for channel, rows in self._taken_back.items()},
        )

    def carry_out(self: StageRun, instructions: Sequence[Any]) -> None:
        for instruction in instructions:
            if isinstance(instruction, align.Missed):
                notes.add("GiveUp", node=nodes[self].number, epoch=instruction.epoch)
            do(self, [instruction])

    def cut_now(self: StageRun, marker: Marker) -> None:
        positions = () if self._source is None else self._source.positions()
        notes.add(
            "Cut",
            node=nodes[self].number,
            epoch=marker.epoch,
            unaligned=marker.mode is MarkerMode.UNALIGNED,
            read=notes.positions(self.uid, {at.split: at.position.text for at in positions}),
        )
        cut(self, marker)

    def abandon(self: StageRun, epoch: Epoch) -> None:
        notes.add("GiveUp", node=nodes[self].number, epoch=epoch)
        abandoned(self, epoch)

    def assigned(self: SourceRun, splits: Sequence[str], *, last: bool) -> None:
        some = {notes.split(self._uid, split) for split in splits}
        notes.add("Assigned", node=nodes[self].number, splits=some)
        assign(self, splits, last=last)

    right_taken = StageInputs._taken

    def taken(self: StageInputs, channel: ChannelId, rows: int) -> None:
        again = min(rows, self._taken_back.get(channel, 0))
        number = notes.channel(nodes[self].attempt, channel)
        notes.add("Process", channel=number, rows=rows - again, again=again)
        right_taken(self, channel, rows)

    patch.setattr(PartitionAttempt, "__init__", begin)
    patch.setattr(StageRun, "__init__", make)
    patch.setattr(StageRun, "_do", carry_out)
    patch.setattr(StageRun, "_cut", cut_now)
    patch.setattr(StageRun, "abandoned", abandon)
    patch.setattr(SourceRun, "assign", assigned)
    patch.setattr(StageInputs, "take_back", take_back)
    patch.setattr(StageInputs, "_taken", taken)


class NotedOutlet:
    """An outlet, of which it is noted what is put there; `waiting` says how many rows are on their way to it."""

    def __init__(self, outlet: Outlet, notes: Notes, attempt: Incarnation) -> None:
        self._outlet = outlet
        self._notes = notes
        self._number = notes.channel(attempt, outlet.id)
        self.id = outlet.id
        self.waiting: Callable[[], int] = lambda: 0

    @property
    def bytes(self) -> int:
        return self._outlet.bytes

    @property
    def allowed(self) -> Any:
        return self._outlet.allowed

    def put(self, frame: Frame) -> tuple[Data, ...]:
        match frame:
            case Data(rows=rows):
                self._notes.add("Emit", channel=self._number, rows=rows)
            case Marker(epoch):
                self._notes.add("Mark", channel=self._number, epoch=epoch, waiting=self.waiting())
            case End():
                self._notes.add("EndChannel", channel=self._number, waiting=self.waiting())
            case _:
                pass
        return self._outlet.put(frame)


def _watch_channels(patch: MonkeyPatch, _: Notes) -> None:
    made = Router.__init__

    def make(self: Router, edge: Any, channels: Sequence[Any], *args: Any) -> None:
        made(self, edge, channels, *args)
        for place, channel in enumerate(channels):
            if isinstance(channel, NotedOutlet):
                channel.waiting = lambda place=place: self._counts[place]  # type: ignore[misc]

    patch.setattr(Router, "__init__", make)


def _watch_transactions(patch: MonkeyPatch, notes: Notes) -> None:
    begin, handle, made = Transactions.begin, Transactions.handle, SinkRun.__init__
    abort, call = SimulatedTarget.abort, SimulatedTarget._call

    def whose(self: Transactions[Any]) -> dict[str, object]:
        _, _, attempt, partition = self._name
        return {"attempt": attempt, "partition": int(partition)}

    def note(self: Transactions[Any], instructions: Sequence[object], epoch: Epoch | None) -> None:
        for instruction in instructions:
            match instruction:
                case Begin(transaction):
                    sink = notes.named(self._name[1])
                    notes.add("Begin", **whose(self), tx=notes.named(transaction), sink=sink)
                case Seal(transaction):
                    assert epoch is not None
                    notes.add("Seal", **whose(self), tx=notes.named(transaction), epoch=epoch)
                case _:
                    pass

    def began(self: Transactions[Any]) -> Any:
        instructions = begin(self)
        note(self, instructions, None)
        return instructions

    def handled(self: Transactions[Any], event: Any) -> Any:
        if isinstance(event, Prepared):
            notes.add("Prepare", **whose(self), tx=notes.named(event.transaction))
            if event.payload is None:
                notes.empty.add(notes.named(event.transaction))
        instructions = handle(self, event)
        note(self, instructions, event.epoch if isinstance(event, SinkCut) else None)
        return instructions

    def make(self: SinkRun, identity: Any, writer: Any, restored: Any, *args: Any) -> None:
        notes.add(
            "Take",
            attempt=identity.incarnation,
            partition=int(identity.partition),
            txs={notes.named(one.transaction) for one in restored},
        )
        made(self, identity, writer, restored, *args)

    aborting: list[dict[str, object]] = []

    def aborted(self: SimulatedTarget, job: Any, sink: Uid, older_than: Incarnation, named: Any) -> None:
        keep = {notes.named(one) for one in named}
        aborting.append({"attempt": older_than, "sink": notes.named(sink), "keep": keep})
        abort(self, job, sink, older_than, named)

    def called(self: SimulatedTarget, what: str, effect: Callable[[], Any]) -> Any:
        about = aborting.pop() if aborting else None

        def act() -> Any:
            if about is not None:
                notes.add("AbortOthers", **about)
            return effect()

        return call(self, what, act)

    patch.setattr(SimulatedTarget, "_call", called)
    patch.setattr(Transactions, "begin", began)
    patch.setattr(Transactions, "handle", handled)
    patch.setattr(SinkRun, "__init__", make)
    patch.setattr(SimulatedTarget, "abort", aborted)
