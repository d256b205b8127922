"""One partition of the simulated job in one attempt: the cores of the cut, wired to each other.

Invariant: it contains no rule of the protocol. What happens is fed to the cores, what they say is done, and
nothing reaches another process but through the effects.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.testing.messages import (
    SOURCE,
    WINDOWS,
    Acknowledgement,
    AllEnded,
    CannotCommit,
    Declining,
    Deploy,
    Failed,
    HasCommitted,
    OnChannel,
    Payload,
    Restored,
    WantsSplit,
    WindowCut,
)
from recovery.testing.requests import Requests
from recovery.testing.sink import Sink, TargetKind
from recovery.testing.source import SourceSubtask
from recovery.testing.store import Content, Read, Write, Written
from recovery.testing.stream import Item, Stream
from recovery.testing.windows import StateFile, WindowOperator, load
from snapshot.cut import aligner as align
from snapshot.cut.frames import EARLIEST, Data, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.participant import (
    Acknowledge,
    Decline,
    EpochGivenUp,
    Part,
    PartDurable,
    PartFailed,
    Participant,
    ParticipantEvent,
    SubtaskCut,
)
from snapshot.cut.watermarks import Watermarks
from snapshot.epochs.transaction_events import (
    Begin,
    Commit,
    EpochCompleted,
    Prepare,
    Refused,
    RetryDue,
    RetryLater,
    Seal,
    Settled,
    SinkCut,
    SinkNotReady,
    SinkReady,
    TransactionEvent,
)
from snapshot.epochs.transactions import Transactions
from snapshot.ids import ChannelId, JobId, TransactionId
from snapshot.testing.process import Action, Effect, Send
from snapshot.tree.layout import Content as Holds
from snapshot.tree.layout import SharedFile, path_of
from statebackend.files import FileRef
from statebackend.ids import NO_EPOCH, Epoch, Partition
from statebackend.snapshots.uploads import Durable, NotDurable, Persist, Persisted, Uploads

JOB = JobId("simulated")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The plan that every worker is told when the job is set up."""

    stream: Stream
    target_kind: TargetKind
    consolidate_every: int
    repeats: int
    """The number of markers of an attempt that may be sent twice."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of an attempt: its process's connections, and the plan."""

    driver: str
    store: Requests
    target: Requests
    effects: list[Effect]
    plan: WorkerPlan


class PartitionAttempt:
    """A partition from its deployment to the end of the attempt."""

    def __init__(self, deploy: Deploy, environment: Environment) -> None:
        role = deploy.role
        self._environment = environment
        self._role = role
        self._workers = deploy.workers
        self.incarnation = deploy.incarnation
        self.partition = role.partition
        self._restored = deploy.epoch if deploy.epoch is not None else NO_EPOCH
        self._channels = tuple(
            ChannelId(SOURCE, WINDOWS, Partition(sender), role.partition) for sender in range(len(deploy.workers))
        )
        self._aligner = align.Aligner(self._channels, restored=self._restored)
        self._watermarks = Watermarks(self._channels, Watermark(role.window_watermark))
        self._uploads = Uploads(role.files)
        self._participant: Participant[object] = Participant((SOURCE, WINDOWS), self._restored)
        self._transactions: Transactions[Payload] = Transactions(
            JOB, WINDOWS, self.incarnation, role.partition, restored=role.committables, restored_epoch=deploy.epoch
        )
        self._sink = Sink(
            environment.plan.target_kind, role.partition, environment.target, environment.effects, self._transaction
        )
        self._frozen: dict[Epoch, list[StateFile]] = {}
        self._files_made = 0
        self._cuts = 0
        self._repeats = environment.plan.repeats
        self._aligning: list[Epoch] = []
        self._early: list[tuple[ChannelId, Frame]] = []
        self._source: SourceSubtask | None = None
        self._operator: WindowOperator | None = None
        self._ended = False
        self._loaded: dict[str, StateFile] = {}
        self._load()

    # --- restore --------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read the files of the role, then run."""
        missing = [file for file in self._role.files.files if file.path not in self._loaded]
        if not missing:
            self._run()
            return
        path = missing[0].path

        def answered(answer: object | None) -> None:
            if isinstance(answer, Content):
                if not isinstance(answer.data, StateFile):
                    reason = f"{path} is needed to restore epoch {self._restored} and is not there"
                    self._tell(Failed(self.incarnation, self.partition, reason))
                    return
                self._loaded[path] = answer.data
            self._load()

        self._environment.effects.append(self._environment.store.ask(Read(path), answered))

    def _run(self) -> None:
        state = load(self._role.files, self._loaded)
        self._source = SourceSubtask(self._role, len(self._workers), self._environment.plan.stream)
        self._operator = WindowOperator(self._environment.plan.stream, self._role, state, self._watermarks)
        self._tell(Restored(self.incarnation, self.partition))
        for instruction in self._transactions.begin():
            self._carry_out_transaction(instruction)
        for channel, frame in self._early:
            self.arrived(channel, frame)
        self._ask_for_split()

    # --- what happens ---------------------------------------------------------------------------------------------

    def arrived(self, channel: ChannelId, frame: Frame) -> None:
        """Take a frame of this attempt that has come in."""
        if self._operator is None:
            self._early.append((channel, frame))
            return
        self._align(align.Arrived(channel, frame))

    def triggered(self, marker: Marker) -> None:
        """Begin an epoch that the coordinator has triggered."""
        assert self._source is not None
        for cut in self._source.trigger(marker):
            self._participate(cut)
        self._align(align.Triggered(marker))

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Complete or abandon an epoch, as the coordinator has done."""
        assert self._source is not None
        if complete:
            self._participant.completed(epoch)
            self._transaction(EpochCompleted(epoch))
        else:
            self._source.abandon(epoch)
            self._align(align.Aborted(epoch))
            self._participate(EpochGivenUp(epoch))

    def assigned(self, split: int | None) -> None:
        """Take the driver's answer to the wish for a split."""
        assert self._source is not None
        self._source.assigned(split)
        self._ask_for_split()

    # --- what it may do by itself -----------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """Return its next steps: send, process, read, retry a commit, repeat a marker, end the wait of an alignment."""
        if self._source is None:
            return []
        actions = [Action("send", channel) for channel, outbox in self._source.outboxes.items() if len(outbox)]
        if not self._aligner.idle:
            actions.append(Action("process"))
        if self._source.active:
            actions.append(Action("read"))
        actions += [Action("retry", transaction) for transaction in self._sink.to_retry]
        if self._repeats and self._source.has_sent_marker:
            actions += [Action("repeat a marker", channel, drain=False) for channel in self._source.outboxes]
        actions += [Action("lose patience", epoch, drain=False) for epoch in self._aligning]
        return actions

    def act(self, action: Action) -> None:
        """Take one of these steps."""
        assert self._source is not None
        match action.name, action.argument:
            case "send", ChannelId() as channel:
                frame = self._source.outboxes[channel].take()
                self._send(self._workers[channel.receiver], OnChannel(self.incarnation, channel, frame))
            case "repeat a marker", ChannelId() as channel:
                self._repeats -= 1
                self._source.repeat_marker(channel)
            case "process", _:
                self._align(align.Proceed())
            case "read", _:
                self._source.emit()
                self._ask_for_split()
            case "retry", str() as transaction:
                id = TransactionId(transaction)
                self._sink.to_retry.remove(id)
                self._transaction(RetryDue(id))
            case "lose patience", Epoch() as epoch:
                self._aligning.remove(epoch)
                self._align(align.AlignmentTimedOut(epoch))
            case _:
                raise TypeError(f"{action} was not offered")

    def _ask_for_split(self) -> None:
        assert self._source is not None
        if self._source.wants_split():
            self._tell(WantsSplit(self.incarnation, self.partition))

    # --- the window subtask -----------------------------------------------------------------------------------------

    def _align(self, event: align.AlignerEvent) -> None:
        for instruction in self._aligner.handle(event):
            self._carry_out_alignment(instruction)

    def _carry_out_alignment(self, instruction: align.AlignerInstruction) -> None:
        assert self._operator is not None
        match instruction:
            case align.Process(channel, frame):
                self._process(channel, frame)
            case align.AlignmentBegan(epoch):
                self._aligning.append(epoch)
            case align.Cut(marker):
                self._cut(marker)
            case align.InFlight(epoch, channels):
                items = {channel: tuple(frame.payload for frame in frames) for channel, frames in channels}
                self._participate(PartDurable(epoch, WINDOWS, Part.CHANNELS, items))
            case align.Missed(epoch, why):
                self._participate(PartFailed(epoch, WINDOWS, why.value))
            case align.ChannelEnded(channel):
                self._operator.advance(self._watermarks.end(channel))
            case align.AllEnded():
                self._operator.flush()
                self._tell(AllEnded(self.incarnation, self.partition))
        self._sink.write(self._operator.rows)
        self._operator.rows = []

    def _process(self, channel: ChannelId, frame: Data | Watermark) -> None:
        assert self._operator is not None
        match frame:
            case Data(Item() as item):
                self._operator.take(item)
            case Watermark():
                self._operator.advance(self._watermarks.advance(channel, frame))
            case _:
                raise TypeError(f"{frame} is not of this job")

    def _cut(self, marker: Marker) -> None:
        assert self._operator is not None
        epoch = marker.epoch
        self._aligning = [waiting for waiting in self._aligning if waiting > epoch]
        self._cuts += 1
        self._frozen[epoch] = self._operator.freeze(
            consolidate=self._cuts % self._environment.plan.consolidate_every == 0
        )
        owes = {Part.FILES, Part.TRANSACTIONS}
        if marker.mode is MarkerMode.UNALIGNED:
            owes.add(Part.CHANNELS)
        current = self._operator.watermark
        content = WindowCut(current if current is not None else EARLIEST)
        self._participate(SubtaskCut(epoch, WINDOWS, content, frozenset(owes)))
        self._transaction(SinkCut(epoch))
        for persist in self._uploads.freeze(epoch):
            self._persist(persist)

    # --- files ----------------------------------------------------------------------------------------------------

    def _persist(self, persist: Persist) -> None:
        self._write_next(persist.epoch, list(self._frozen[persist.epoch]), [])

    def _write_next(self, epoch: Epoch, left: list[StateFile], written: list[FileRef]) -> None:
        if not left:
            self._frozen.pop(epoch)
            self._uploaded(self._uploads.persisted(epoch, Persisted(tuple(written))))
            return
        file = left[0]
        ref = self._refer_to(file, epoch)

        def answered(answer: object | None) -> None:
            if answer is Written.WRITTEN:
                self._write_next(epoch, left[1:], [*written, ref])
            else:
                self._uploaded(self._uploads.failed(epoch, "the store did not take it"))

        self._environment.effects.append(self._environment.store.ask(Write(ref.path, file), answered))

    def _refer_to(self, file: StateFile, epoch: Epoch) -> FileRef:
        """Return a reference to a file that is about to be written, under a name never used before."""
        self._files_made += 1
        path = path_of(SharedFile(self.incarnation, self.partition, self._files_made, Holds.STATE))
        return FileRef(path, file.ranges, epoch, file.kind, len(file.entries), "none:0")

    def _uploaded(self, results: list[Durable] | list[NotDurable]) -> None:
        for result in results:
            match result:
                case Durable(epoch, files):
                    self._participate(PartDurable(epoch, WINDOWS, Part.FILES, files))
                case NotDurable(epoch, reason):
                    self._participate(PartFailed(epoch, WINDOWS, reason))

    # --- transactions -----------------------------------------------------------------------------------------------

    def _transaction(self, event: TransactionEvent[Payload]) -> None:
        for instruction in self._transactions.handle(event):
            self._carry_out_transaction(instruction)

    def _carry_out_transaction(self, instruction: object) -> None:
        partition = self.partition
        match instruction:
            case Begin():
                self._sink.begin(instruction)
            case Seal():
                pass  # rows go to the next transaction from its `Begin` on
            case Prepare():
                self._sink.prepare(instruction)
            case SinkReady(epoch, committables):
                self._participate(PartDurable(epoch, WINDOWS, Part.TRANSACTIONS, committables))
            case SinkNotReady(epoch, reason):
                self._participate(PartFailed(epoch, WINDOWS, reason))
            case Commit():
                self._sink.commit(instruction)
            case RetryLater():
                self._sink.retry_later(instruction)
            case Settled(epoch):
                self._tell(HasCommitted(self.incarnation, partition, epoch))
            case Refused(committable, reason):
                self._tell(CannotCommit(self.incarnation, partition, committable.sealed_in, reason))
            case _:
                raise TypeError(f"{instruction} is no instruction of a sink")

    # --- the participant ------------------------------------------------------------------------------------------

    def _participate(self, event: ParticipantEvent[object]) -> None:
        for instruction in self._participant.handle(event):
            match instruction:
                case Acknowledge(epoch, subtasks):
                    self._tell(Acknowledgement(self.incarnation, self.partition, epoch, subtasks))
                case Decline(epoch, _, reason):
                    self._tell(Declining(self.incarnation, self.partition, epoch, reason))

    def _tell(self, message: object) -> None:
        self._send(self._environment.driver, message)

    def _send(self, to: str, message: object) -> None:
        self._environment.effects.append(Send(to, message))
