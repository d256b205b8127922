"""One partition in one attempt: its stages wired to channels, state, sinks and the driver.

Invariant: no rule of the protocol is decided here. What happens is taken to the machine that it concerns, and
what that says is done. Everything is done in the event loop's thread; when the attempt is closed, whatever still comes
of it is not listened to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import print_exception
from typing import Final

import pyarrow as pa

from snapshot import fail_points
from snapshot.cut.aligner import AlignmentBegan, Missed
from snapshot.cut.frames import Frame, Marker
from snapshot.cut.participant import Part
from snapshot.epochs.transaction_events import Refused, RetryLater, Settled, SinkNotReady, SinkReady
from snapshot.fail_points import reached
from snapshot.host.net.control import OverLongMessage
from snapshot.host.net.event_loop import Background, EventLoop, Timer
from snapshot.host.partition.acks import AckOutlet, PartitionAcks
from snapshot.host.partition.channel_state import Frames, recalled, stored
from snapshot.host.partition.copied_sink import CopiedSink
from snapshot.host.partition.cut_stages import CutStages
from snapshot.host.partition.epoch_tracker import ChannelParts, EpochTracker
from snapshot.host.partition.failures import is_of_state, kind_of, text_of, traceback_of
from snapshot.host.partition.held_sink import Committables, HeldSink
from snapshot.host.partition.last_words import LastWords
from snapshot.host.partition.opening import NOTHING, OpenedState, StatePlacement
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.router import FanOut, Outlet, SendingEnd
from snapshot.host.partition.sink_run import Output, SinkIdentity, SinkNews, SinkRun
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.stage_inputs import ReceivingEnd
from snapshot.host.partition.stage_news import InFlight, NeedsSplit, StageCut, StageEnded, StageNews
from snapshot.host.partition.stage_operators import KeyedRun, StillOpening, rows_of_key
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.stalls import StallWatch
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import (
    Admitted,
    AllEnded,
    AssignSplits,
    CannotCommit,
    CommitPutOff,
    Delivery,
    Deploy,
    Drain,
    EpochIsOver,
    Failed,
    FailureKind,
    Figures,
    FirstOutput,
    FromWorker,
    HasCommitted,
    InSync,
    Restored,
    StageFigures,
    StandsAt,
    TakeOver,
    TriggerEpoch,
    Unreachable,
    ViewIs,
    WantsSplit,
)
from snapshot.host.protocol.stage_now import StageNow
from snapshot.ids import ChannelId, Copy, Member, Replica, TransactionId
from snapshot.program.plan import Plan, Stage, ToSink
from snapshot.program.sink import SinkContext, TakesCopies
from snapshot.replication.agreement import Message, View
from snapshot.replication.decisions import Decision
from statebackend import means
from statebackend.backends.unused_memory import give_back_of_thread
from statebackend.ids import Epoch, Incarnation, Partition, Uid
from statebackend.snapshots.uploads import Durable, NotDurable
from statebackend.stores.store_calls import since, store_calls

_INLINE: Final = 16 << 10
"""In-flight data up to this size is put into the manifest itself."""
_SHOWN: Final = 8
_AS_RESTORED: Final[Mapping[Uid, StageNow]] = {}
_TURN: Final = 0.004
"""Seconds that a stage may work before the others, and the sockets, have their turn."""
_SPARING: Final = 0.02
"""Seconds from one turn to the next, and that a stage may work in one, while state is being opened: a source that gives
a few rows each millisecond would take half of the interpreter from the thread that opens it."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The surroundings of an attempt in its process."""

    loop: EventLoop
    background: Background
    cache: StateCache
    tell: Callable[[FromWorker], None]
    words: LastWords = field(default_factory=LastWords)


class PartitionAttempt:
    """A partition from its deployment to the end of the attempt.

    `sending` has for each channel that begins here the sending ends to all processes with its receiver's role. The
    caller owes: `connect`, then `begin`, then `opened` for the state of each keyed operator as it comes, and `close` at
    the end. It does not wait for the states: stages that need none work, and for the others their input waits. Nothing
    is raised once it has begun: a failure is told to the driver, and nothing more is done until the next deployment. At
    the end its states are at hand for that, unless something went wrong in one of them.

    One that joins an attempt which goes on begins where its stages are `now` in the other members of its partition.
    """

    def __init__(
        self,
        deploy: Deploy,
        plan: Plan,
        files: TreeFiles,
        placements: Mapping[Uid, StatePlacement],
        sending: Mapping[ChannelId, Sequence[SendingEnd]],
        parts: StageParts,
        environment: Environment,
        agreement: SourceAgreement | None = None,
        now: Mapping[Uid, StageNow] = _AS_RESTORED,
        acks: PartitionAcks | None = None,
    ) -> None:
        """Make it; `agreement` is that of the sources with the other members of the partition.

        With `acks` frames are acknowledged, and members of other partitions come and go.
        """
        self._deploy = deploy
        self._begins = now
        self._cuts = CutStages(len(plan.stages))  # for markers that admit others
        self._to_admit: set[Member] = set()
        self._agreement = agreement
        self._acks = acks
        self._parts = parts
        self._environment = environment
        self._tell = environment.tell
        self._files = files
        self._states: dict[Uid, OpenedState] = {}
        self._sound = True  # nothing went wrong within a state
        subtasks = tuple(uid for stage in plan.stages for uid in stage.uids)
        self._epochs = EpochTracker(
            deploy.incarnation,
            deploy.partition,
            subtasks,
            deploy.epoch,
            lambda: files.next_number,
            self._say,
            mute=not deploy.primary,
        )
        self._is_primary = deploy.primary
        self._stalls = StallWatch(deploy.incarnation, deploy.partition, deploy.options.report_stall_after / 1000)
        self._settled: dict[Uid, Epoch | None] = {}
        self._stages: list[StageRun] = []
        self._stage_of: dict[ChannelId, StageRun] = {}
        self._began = False
        self._closed = False
        self._has_output = False
        self._all_ended = False
        self._due: Timer | None = None
        self._soon = False
        self._opening = False
        self._made_at = means.monotonic()
        self._store_calls = store_calls()
        self._turned_at = 0.0
        self._at: Uid | None = None  # whose code runs, for whoever reads of its failure
        self._status: Timer | None = None
        made = {channel: parts.outlet(channel, ends) for channel, ends in sending.items()}
        self._outlets = outlets = {channel: outlet for channel, outlet in made.items() if outlet is not None}
        try:
            for stage in plan.stages:
                self._at = stage.uid
                self._stages.append(self._make(stage, placements[stage.uid], outlets))
        except BaseException:
            self.close()
            raise
        for run in self._stages:
            self._stage_of.update(dict.fromkeys(run.inputs.channels, run))
            if deploy.careful:
                run.operator.note_calls(environment.words)

    # --- making it ----------------------------------------------------------------------------------------------------

    def _make(self, stage: Stage, placement: StatePlacement, outlets: Mapping[ChannelId, Outlet]) -> StageRun:
        attempt = self._deploy.incarnation.attempt
        with ExitStack() as made:
            sinks: dict[Uid, Output] = {}
            for sink in stage.sinks:
                sinks[sink.uid] = self._sink(sink)
                made.callback(sinks[sink.uid].close)
            epoch, report, wake = self._deploy.epoch, self._stage_said, self.woken
            now = self._begins.get(stage.uid)
            run = StageRun(stage, placement, epoch, outlets, sinks, report, wake, attempt, self._parts, now)
            made.pop_all()
        return run

    def _sink(self, target: ToSink) -> Output:
        deploy, uid = self._deploy, target.uid
        takes_copies = isinstance(target.sink, TakesCopies) and target.sink.takes_copies
        copied = CopiedSink(deploy.epoch) if deploy.view is not None and takes_copies else None

        def deliver(transaction: TransactionId | None, rows: pa.RecordBatch) -> None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_batch(rows)
            data = sink.getvalue().to_pybytes()
            at = copied.at if copied is not None and transaction is None else None
            message = Delivery(deploy.incarnation, deploy.partition, uid, transaction, data, at)
            self._environment.loop.wake(lambda: self._say(message))

        context = SinkContext(
            deploy.job,
            uid,
            target.schema,
            deploy.incarnation,
            deploy.partition,
            self._files,
            deliver,
            frozenset(deploy.options.accept_places),
            None if deploy.primary else deploy.member.replica,
        )
        self._settled[uid] = None

        def write(epoch: Epoch | None, restored: Committables) -> SinkRun:
            return SinkRun(
                SinkIdentity(deploy.job, uid, deploy.incarnation, deploy.partition, deploy.member.replica),
                self._parts.writer(target.sink, context, restored),
                restored,
                epoch,
                self._environment.loop,
                self._environment.background,
                self._sink_said,
                self._first_output,
            )

        if copied is None and not deploy.primary:
            return HeldSink(deploy.epoch, write)
        writing = write(deploy.epoch, deploy.roles.get(uid, NOTHING).committables)
        if copied is None:
            return writing
        copied.write_to(writing)
        return copied

    @property
    def channels(self) -> tuple[ChannelId, ...]:
        """Return the channels that end in this partition."""
        return tuple(self._stage_of)

    def connect(self, gates: Mapping[Copy, ReceivingEnd]) -> None:
        """Take the receiving ends of all channels."""
        for copy, gate in gates.items():
            if not self._is_of_acks(copy.channel):
                self._stage_of[copy.channel].inputs.connect({copy: gate})

    def _is_of_acks(self, channel: ChannelId) -> bool:
        return self._acks is not None and self._acks.owns(channel)

    def begin(self) -> None:
        """Commit what the epoch carries, process what was in flight, then go on; keyed operators when they are open."""
        self._began = True
        deploy = self._deploy
        self._opening = any(run.pending for run in self._stages)
        self._tell_if_restored()
        if not self._settled and deploy.epoch is not None:
            self._has_committed(deploy.epoch)

        def start() -> None:
            for run in self._stages:
                for sink in run.sinks.values():
                    sink.begin()
            if self._acks is not None:
                self._acks.begin(self._poke)
                self._send_again()
            for run in reversed(self._stages):
                run.begin()

        self._guarded(start)
        self._report_figures()
        self._poke()

    def _send_again(self) -> None:
        """Send what the partition had sent when the epoch was cut, and what is not acknowledged."""
        for state in self._deploy.outgoing:
            outlet, outputs = self._outlets[state.channel], self._run_of(state.channel.source).outputs
            assert isinstance(outlet, AckOutlet)
            for frame in recalled(state, self._files):
                outlet.put_again(outputs.counted(state.channel, frame))

    def opened(self, uid: Uid, opened: OpenedState) -> None:
        """Take this keyed operator's state: process what was in flight to it first, then the rows that waited."""
        if self._closed:
            self._environment.cache.put(opened.state)
            return
        self._states[uid] = opened
        if self._is_primary:
            opened.state.become_primary()
        else:
            opened.state.become_shadow()
        run = self._run_of(uid)
        self._at = uid
        self._guarded(lambda: run.open(opened.state))
        self._opening = any(other.pending for other in self._stages)
        self._tell_if_restored()
        self._soon = False  # the turn that it may mean comes later
        self._poke()

    def _run_of(self, uid: Uid) -> StageRun:
        return next(run for run in self._stages if run.uid == uid)

    def _tell_if_restored(self) -> None:
        if self._opening or self._closed:
            return
        opened = self._states.values()
        downloaded_ms = max((state.downloaded_ms for state in opened), default=0.0)
        opened_ms = max((state.opened_ms for state in opened), default=0.0)
        in_place = bool(opened) and all(state.in_place for state in opened)
        self._say(
            Restored(self._deploy.incarnation, self._deploy.partition, downloaded_ms, opened_ms, in_place=in_place)
        )
        reached(fail_points.RESTORED_TOLD)
        self._environment.cache.discard_all()  # what this attempt has no use for

    # --- what the driver says -----------------------------------------------------------------------------------------

    def told(self, message: TriggerEpoch | EpochIsOver | TakeOver | AssignSplits | Drain | ViewIs) -> None:
        """Do what the driver has said about this attempt."""
        match message:
            case TriggerEpoch(_, _, marker):
                reached(fail_points.TRIGGER_HEARD)
                self._epochs.triggered(marker.epoch)
                self._guarded(lambda: self._trigger(message))
            case EpochIsOver():
                self._guarded(lambda: self._over(message))
            case TakeOver():
                self._guarded(lambda: self._take_over(message))
            case AssignSplits(_, uid, splits, last):
                self._guarded(lambda: self._assign(uid, splits, last=last))
            case Drain():
                for run in self._stages:
                    run.drain()
            case ViewIs(_, view):
                self._guarded(lambda: self._viewed(view))
        self._poke()

    def _trigger(self, trigger: TriggerEpoch) -> None:
        if self._agreement is not None:
            self._agreement.triggered(trigger.marker, trigger.then)
            return
        for run in self._stages:
            self._at = run.uid
            run.triggered(trigger.marker, trigger.then)

    # --- the other members of the partition, and of others ------------------------------------------------------------

    def agree(self, send: Callable[[Replica, Message[Decision]], object]) -> None:
        """Agree with the other members on what sources hand out; `send` brings a message to one of them."""
        if self._agreement is not None:
            self._agreement.connect(send, self._decided, self._poke, self._in_sync)

    def heard(self, sender: Replica, message: Message[Decision]) -> None:
        """Take a message of another member of the partition."""
        agreement = self._agreement
        if agreement is not None:
            self._guarded(lambda: agreement.heard(sender, message))

    @property
    def view(self) -> View | None:
        """Return the newest view of the partition's members; None if there is no other one."""
        return None if self._agreement is None else self._agreement.view

    def _in_sync(self, replica: Replica, view: int) -> None:
        self._say(InSync(self._deploy.incarnation, self._deploy.partition, replica, view))

    def park(
        self,
        member: Member,
        sending: Mapping[ChannelId, SendingEnd],
        receiving: Mapping[Copy, ReceivingEnd],
        after: Epoch,
    ) -> None:
        """Keep the connections with a member that joins behind the marker of an epoch `after` this one."""
        self._to_admit.add(member)
        for channel, end in sending.items():
            outlet = self._outlets[channel]
            assert isinstance(outlet, FanOut)
            outlet.park(end, after)
        for copy, gate in receiving.items():
            self._stage_of[copy.channel].inputs.park({copy: gate}, after)

    @property
    def parked(self) -> Collection[Member]:
        """Return the members that wait for the marker behind which they join."""
        outlets = (outlet for outlet in self._outlets.values() if isinstance(outlet, FanOut))
        receivers = {end.copy.receiver for outlet in outlets for end in outlet.parked}
        return receivers | {copy.sender for run in self._stages for copy in run.inputs.parked}

    def _tell_admitted(self) -> None:
        """Tell of the members for which all stages have come to their marker."""
        for member in sorted(self._to_admit.difference(self.parked)):
            self._to_admit.discard(member)
            self._say(Admitted(self._deploy.incarnation, member))

    def _stands_at(self, uid: Uid, epoch: Epoch, now: StageNow) -> None:
        """Tell where all stages were when they cut for an epoch, if another member of the partition begins there."""
        agreement = self._agreement
        if agreement is None or not self._is_primary or agreement.view.members == agreement.view.in_sync:
            return
        at = self._cuts.add(epoch, uid, now)
        if at is not None:
            self._say(StandsAt(self._deploy.incarnation, self._deploy.partition, epoch, agreement.place, at))

    def _viewed(self, view: View) -> None:
        if view.members == view.in_sync:
            self._cuts.forget()
        if self._agreement is not None:
            self._agreement.viewed(view)

    def _decided(self, marker: Marker) -> None:
        """Begin an epoch whose place was decided; sources come to it by themselves."""
        self._epochs.triggered(marker.epoch)
        for run in self._stages:
            if run.source is None:
                self._at = run.uid
                run.triggered(marker)

    @property
    def outlives_others(self) -> bool:
        """True if it goes on when a member of another partition is gone, until another one has its role."""
        return self._acks is not None

    def left(self, member: Member) -> None:
        """Go on without a member that is gone; another one has its role, or will have it."""
        self._to_admit.discard(member)
        for outlet in self._outlets.values():
            if isinstance(outlet, FanOut | AckOutlet):
                outlet.drop(member)
        for run in self._stages:
            run.inputs.drop(member)
        if self._acks is not None:
            self._acks.left(member)
        self._poke()

    def joined(self, sending: Mapping[ChannelId, SendingEnd], receiving: Mapping[Copy, ReceivingEnd]) -> None:
        """Go on with a member that has the role of one that is gone: send again what that one has not acknowledged."""
        if self._acks is None:
            raise AssertionError("no member was expected later")
        self._acks.joined(sending)
        for copy, gate in receiving.items():
            if not self._is_of_acks(copy.channel):
                self._stage_of[copy.channel].inputs.joined({copy: gate})
        for channel, end in sending.items():
            outlet = self._outlets.get(channel)
            if isinstance(outlet, AckOutlet):
                outlet.join(end)
        self._poke()

    def unreachable(self, member: Member, reason: str) -> None:
        """Tell the driver that a channel with a member of another partition has broken."""
        self._say(Unreachable(self._deploy.incarnation, self._deploy.partition, member, reason))

    def _over(self, over: EpochIsOver) -> None:
        epoch = over.epoch
        if not over.complete:
            self._epochs.given_up(epoch)
            for run in self._stages:
                run.abandoned(epoch)
            return
        reached(fail_points.COMPLETE_HEARD)
        self._epochs.completed(epoch)
        for run in self._stages:
            run.completed(epoch, over.files.get(run.uid))
        if self._acks is not None:
            self._acks.completed(epoch)
        if not self._settled:
            self._has_committed(epoch)

    def _take_over(self, message: TakeOver) -> None:
        """Stand for the partition: its primary is gone."""
        if self._is_primary:
            return
        self._is_primary = True
        for opened in self._states.values():
            opened.state.become_primary()
        self._epochs.speak()
        for run in self._stages:
            for uid, sink in run.sinks.items():
                if isinstance(sink, HeldSink):
                    restored = self._deploy.roles.get(uid, NOTHING).committables
                    left = restored if message.epoch == self._deploy.epoch else message.committables.get(uid, ())
                    sink.take_over(message.epoch, left)
        committed = self._committed() if self._settled else message.epoch
        if committed is not None:
            self._has_committed(committed)

    def _has_committed(self, epoch: Epoch) -> None:
        """Tell the driver that all up to the epoch is committed in the partition, if this process stands for it."""
        if self._is_primary:
            self._say(HasCommitted(self._deploy.incarnation, self._deploy.partition, epoch))

    def _assign(self, uid: Uid, splits: Sequence[str], *, last: bool) -> None:
        for run in self._stages:
            if run.uid == uid and run.source is not None:
                run.source.assign(splits, last=last)

    def read(self, uid: Uid, key: bytes | None, state: str | None) -> tuple[tuple[str, bytes], ...]:
        """Return the rows of a key as they are now; raise `StillOpening` while the operator's state is being opened."""
        for run in self._stages:
            if run.uid == uid and run.operator.keyed is not None:
                return rows_of_key(run.operator.keyed.state, key, state)
        raise StillOpening(f"the state of {uid} is still being opened; ask again")

    # --- frames and turns ---------------------------------------------------------------------------------------------

    def arrived(self, copy: Copy, frame: Frame) -> None:
        """Take a frame of this attempt."""
        if self._acks is not None and self._acks.owns(copy.channel):
            self._guarded(partial(self._acks.arrived, frame))
            return
        run = self._stage_of[copy.channel]
        self._at = run.uid
        self._guarded(lambda: run.arrived(copy, frame))
        self._poke()

    def drained(self) -> None:
        """Go on, as a channel that was full has room again."""
        self._poke()

    def channel_broken(self, copy: Copy, reason: str, *, forged: bool = False) -> None:
        """Fail the attempt because a channel broke; `forged` if its bytes were changed on the way."""
        if not self._closed:
            self._at = None
            self.fail(FailureKind.FORGED if forged else FailureKind.CHANNEL, f"channel {copy}: {reason}")

    def woken(self) -> None:
        """Go on, as something in the background has come to an end; any thread may call this."""
        self._environment.loop.wake(self._poke)

    def _poke(self) -> None:
        if self._soon or self._closed or not self._began:
            return
        self._soon = True
        loop = self._environment.loop
        if self._opening:
            loop.call_at(self._turned_at + _SPARING, self._turn)
        else:
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._soon = False
        if not self._closed:
            self._guarded(self._work)

    def _work(self) -> None:
        """Let every stage work for a while, later stages before those that feed them."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        busy = loading = False
        self._turned_at = means.monotonic()
        most = _SPARING if self._opening else _TURN
        for run in reversed(self._stages):
            self._at = run.uid
            if run.source is not None:
                run.source.woken()
            busy = run.work(means.monotonic() + most, sparing=self._opening) or busy
            if run.operator.keyed is not None:
                self._poll(run, run.operator.keyed)
                loading = run.operator.keyed.load_more() or loading
        now = means.monotonic()
        for run in self._stages:
            if busy and not self._opening:
                run.outputs.flush_if_lingering(now)
            else:
                run.outputs.flush()
        if self._acks is not None:
            self._acks.tell()
        if busy or loading:
            self._poke()
            return
        due = min((run.next_due() for run in self._stages), default=float("inf"))
        if due != float("inf"):
            self._due = self._environment.loop.call_at(now + due, self._poke)

    def _poll(self, run: StageRun, keyed: KeyedRun) -> None:
        for news in keyed.poll():
            match news:
                case Durable(epoch):
                    self._epochs.durable(epoch, run.uid, Part.FILES, news)
                case NotDurable(epoch, reason):
                    self._epochs.failed(epoch, run.uid, reason)

    # --- what stages say ----------------------------------------------------------------------------------------------

    def _stage_said(self, stage: StageRun, news: StageNews) -> None:
        match news:
            case AlignmentBegan(epoch):
                self._alignment_began(stage, epoch)
            case StageCut():
                self._has_cut(stage, news)
            case InFlight(cut, frames):
                self._store(stage, cut.epoch, frames, cut.overtaken)
            case Missed(epoch, why):
                self._epochs.failed(epoch, stage.uid, why.value)
            case NeedsSplit(heard):
                self._say(WantsSplit(self._deploy.incarnation, self._deploy.partition, stage.uid, heard))
            case StageEnded():
                self._stage_ended()

    def _alignment_began(self, stage: StageRun, epoch: Epoch) -> None:
        """Note an epoch's first marker, and set the time at which its alignment times out."""
        self._epochs.alignment_began(stage.uid, epoch)
        reached(fail_points.ALIGNMENT_BEGUN)
        patience = self._deploy.options.alignment_timeout
        if patience is not None:
            when = means.monotonic() + patience / 1000
            self._environment.loop.call_at(when, lambda: self._lose_patience(stage, epoch))

    def _lose_patience(self, stage: StageRun, epoch: Epoch) -> None:
        if not self._closed:
            self._guarded(lambda: stage.alignment_timed_out(epoch))
            self._poke()

    def _has_cut(self, stage: StageRun, cut: StageCut) -> None:
        """Await from now on what a stage that has cut and its sinks owe to the epoch."""
        if cut.now is not None:
            self._stands_at(stage.uid, cut.epoch, cut.now)
            self._tell_admitted()
        owes: dict[Uid, set[Part]] = {uid: set() for uid in stage.stage.uids}
        if stage.operator.keyed is not None:
            owes[stage.uid].add(Part.FILES)
        for uid in stage.sinks:
            owes[uid].add(Part.TRANSACTIONS)
        if cut.unaligned:
            owes[stage.uid].add(Part.CHANNELS)
        if self._acks is not None:
            self._acks.of(stage.uid).cut(cut.epoch)
        self._epochs.cut(stage.uid, cut, {uid: frozenset(parts) for uid, parts in owes.items()})

    def _store(self, stage: StageRun, epoch: Epoch, received: Frames, overtaken: Frames) -> None:
        self._epochs.has_in_flight(epoch, received)
        self._epochs.has_in_flight(epoch, overtaken)

        def work() -> ChannelParts:
            try:
                received_parts = stored(received, self._files, _INLINE, stage.encoded)
                return ChannelParts(received_parts, stored(overtaken, self._files, _INLINE, stage.encoded))
            finally:
                give_back_of_thread()

        def done(outcome: ChannelParts | BaseException) -> None:
            if self._closed:
                return
            if isinstance(outcome, BaseException):
                self._epochs.failed(epoch, stage.uid, f"in-flight data could not be stored: {text_of(outcome)}")
            else:
                reached(fail_points.IN_FLIGHT_STORED)
                self._epochs.durable(epoch, stage.uid, Part.CHANNELS, outcome)

        self._environment.background.submit(work, done)

    def _stage_ended(self) -> None:
        """Tell the driver when the last stage has nothing more to do."""
        if all(run.ended for run in self._stages) and not self._all_ended:
            self._all_ended = True
            self._tell_figures()  # or what a short job has done would never be known
            self._say(AllEnded(self._deploy.incarnation, self._deploy.partition))

    # --- what sinks say -----------------------------------------------------------------------------------------------

    def _sink_said(self, uid: Uid, news: SinkNews) -> None:
        incarnation, partition = self._deploy.incarnation, self._deploy.partition
        match news:
            case SinkReady(epoch, committables):
                self._epochs.durable(epoch, uid, Part.TRANSACTIONS, committables)
            case SinkNotReady(epoch, reason):
                self._epochs.failed(epoch, uid, reason)
            case Settled(epoch):
                self._sink_settled(uid, epoch)
            case RetryLater(transaction, reason=reason):
                self._say(CommitPutOff(incarnation, partition, uid, f"transaction {transaction}: {reason}"))
            case Refused(committable, reason):
                self._say(CannotCommit(incarnation, partition, committable.sealed_in, uid, reason))

    def _sink_settled(self, uid: Uid, epoch: Epoch) -> None:
        """Note that a sink has committed all up to the epoch; tell the driver when all sinks of the partition have."""
        before = self._committed()
        self._settled[uid] = epoch
        now = self._committed()
        if now is not None and now != before:
            self._has_committed(now)
            reached(fail_points.COMMITTED_TOLD)

    def _committed(self) -> Epoch | None:
        settled = [epoch for epoch in self._settled.values() if epoch is not None]
        return min(settled) if len(settled) == len(self._settled) else None

    def _first_output(self) -> None:
        if not self._has_output:
            self._has_output = True
            self._say(FirstOutput(self._deploy.incarnation, self._deploy.partition))

    # --- the end ------------------------------------------------------------------------------------------------------

    def fail(self, kind: FailureKind, reason: str, traceback: str = "") -> None:
        """Tell the driver that the attempt failed here, and do nothing more."""
        self.give_up(Failed(self._deploy.incarnation, self._deploy.partition, kind, reason, self._at, traceback))

    def give_up(self, failed: Failed) -> None:
        """Tell the driver this, and end the attempt here."""
        self._say(failed)
        self.close()

    def _guarded(self, step: Callable[[], None]) -> None:
        if self._closed:
            return
        try:
            step()
        except BaseException as error:  # a function that calls `sys.exit` has failed like any other
            self._sound = self._sound and not is_of_state(error)
            self.fail(kind_of(error), text_of(error), traceback_of(error))

    def _say(self, message: FromWorker) -> None:
        if self._closed:
            return
        try:
            self._tell(message)
        except OverLongMessage as error:  # the next attempt would say the same
            self.fail(FailureKind.UNUSABLE, f"the driver cannot be told: {error}")

    def _report_figures(self) -> None:
        if self._closed:
            return
        stages = self._tell_figures()
        for stalled in self._stalls.look(means.monotonic(), stages, self._epochs.pending(self._markers)):
            self._say(stalled)
        when = means.monotonic() + self._deploy.options.status_interval / 1000
        self._status = self._environment.loop.call_at(when, self._report_figures)

    def _tell_figures(self) -> Mapping[Uid, StageFigures]:
        deploy = self._deploy
        stages = {run.uid: run.figures() for run in self._stages}
        if self._acks is not None:
            stages = {uid: replace(stages[uid], resent_rows=rows) for uid, rows in self._acks.resent.items()}
        lag = max((run.source.lag for run in self._stages if run.source is not None), default=0.0)
        memory = means.memory_of_process()
        gap = self._environment.loop.take_longest_gap_ms()
        running = means.monotonic() - self._made_at
        sinks = {uid: figures for run in self._stages for uid, figures in run.sink_figures().items()}
        self._say(
            Figures(
                deploy.incarnation,
                deploy.partition,
                stages,
                memory,
                lag * 1000,
                gap,
                running * 1000,
                sinks,
                since(self._store_calls, store_calls()),
            )
        )
        return stages

    def _markers(self, uid: Uid, epoch: Epoch) -> str:
        """Return what an operator that has not cut waits for."""
        run = next((run for run in self._stages if uid in run.stage.uids), None)
        channels = sorted(map(str, run.inputs.inlet.unreached(epoch))) if run is not None else []
        if not channels:
            return "its cut"
        shown = ", ".join(channels[:_SHOWN]) + (f" and {len(channels) - _SHOWN} more" if len(channels) > _SHOWN else "")
        return f"the marker on {shown}"

    @property
    def at_work(self) -> tuple[Incarnation, Partition, Uid | None]:
        """Return whose code runs; any thread may ask."""
        return self._deploy.incarnation, self._deploy.partition, self._at

    def close(self) -> None:
        """Give everything up; what is in the store and prepared in targets stays.

        An error of a user's function at its close is printed, and hinders nothing. States are kept at hand: a roll-back
        takes back what the attempt did to them, but not what went wrong in the middle of that.
        """
        if self._closed:
            return
        self._closed = True
        for timer in (self._due, self._status):
            if timer is not None:
                timer.cancel()
        if self._acks is not None:
            self._acks.close()
        try:
            with ExitStack() as closing:
                closing.callback(self._part_from_states)
                for run in self._stages:
                    closing.callback(run.close)
        except BaseException as error:
            print_exception(error)

    def _part_from_states(self) -> None:
        states = [opened.state for opened in self._states.values()]
        if not self._sound:
            self._environment.cache.discard(states)
            return
        for state in states:
            self._environment.cache.put(state)
