"""A process that runs partitions of a job: it reaches the driver, takes a role, and another one when it is told to.

Invariant: it follows the newest incarnation that it has heard of; a new deployment replaces whatever it did
before; what older incarnations say to it is refused, and what it says is about its own.

    python -m snapshot.host.process.worker HOST PORT SLOT LAUNCH [CERTIFICATE KEY AUTHORITIES]

with the secret, in hexadecimal, on the standard input; the last three are the files for TLS.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import environ, write
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from snapshot import fail_points
from snapshot.cut.frames import Frame
from snapshot.fail_points import reached
from snapshot.host.faults.crash_points import crashing
from snapshot.host.faults.injector import Faults, Line
from snapshot.host.links import Broken, Joined, LinkNews, Links, NotConnected, PeerBroken, Ready, Way
from snapshot.host.net.connection_kinds import ChannelOf, ConnectionKind, ControlOf, LastWordsOf, PeerOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.control import SILENCE, ControlConnection
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.listener import Listener, Refusals
from snapshot.host.net.liveness import break_if_silent
from snapshot.host.net.tls import Tls, TlsSide, UnusableTls
from snapshot.host.partition.acks import PartitionAcks
from snapshot.host.partition.attempt import Environment, PartitionAttempt
from snapshot.host.partition.failures import kind_of, text_of, traceback_of
from snapshot.host.partition.folders import job_folder, remove_state
from snapshot.host.partition.last_words import LastWords
from snapshot.host.partition.opening import OpenedState, StateOpener, StatePlacement, placement_of
from snapshot.host.partition.router import SendingEnd
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.stalls import LoopWatch
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.process.heartbeat import Heartbeat
from snapshot.host.process.standby import Follower
from snapshot.host.process.waiting import WaitingToJoin
from snapshot.host.protocol.executor import executor_name
from snapshot.host.protocol.messages import (
    Address,
    AssignSplits,
    BeatEvery,
    CannotHear,
    Deploy,
    Drain,
    EpochIsOver,
    Expect,
    Expecting,
    Failed,
    FailureKind,
    Follow,
    Forget,
    FromWorker,
    Hello,
    Inject,
    Join,
    Leave,
    Reached,
    ReadState,
    Refusal,
    ReplacedBy,
    StandBy,
    StandDown,
    StateRead,
    Suspects,
    TakeOver,
    ToWorker,
    TriggerEpoch,
    UseStorage,
    ViewIs,
)
from snapshot.host.protocol.options import use_storage
from snapshot.host.wiring import acks_of, stage_parts
from snapshot.ids import ChannelId, Copy, Member, Replica
from snapshot.program.pickling import loads
from snapshot.program.plan import Plan
from snapshot.replication.agreement import Message
from snapshot.replication.decisions import Decision
from snapshot.replication.pacing import DriverClock
from statebackend import means
from statebackend.child_python import outlive_sigterm
from statebackend.errors import JobError
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.readable import readable
from statebackend.stores.limited_store import find_limited_later
from statebackend.stores.store import BlobStore

DRIVER_LOST: Final = 75
"""The exit code of a process that ends because its driver is not there: it has done nothing wrong itself."""
_NEVER: Final = Incarnation(Generation(0), Attempt(0))
_REACH_DRIVER: Final = 10.0
_BEAT: Final = 0.25
"""Seconds between beats until the driver says how many there are to be."""
_LAST_WORDS: Final = 1.0
_THREADS: Final = 4
_SWITCH: Final = 0.0005
"""Seconds after which a thread in the background has to let the event loop go on; by default it is ten times that."""
_COLLECT: Final = (50_000, 20, 100)
"""The thresholds of Python's collector. With its own, looking again and again through a million cached values takes a
third of a process's time."""


class DriverLost(JobError):
    """The driver cannot be reached, or is gone: what is durable is in the store, and the next process goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class _Role:
    """A role whose states are being opened."""

    deploy: Deploy
    plan: Plan
    files: TreeFiles
    placements: Mapping[Uid, StatePlacement]


class Worker:
    """One process. `run` returns when the driver lets it go."""

    def __init__(self, driver: Address, secret: bytes, slot: int, launch: int, tls: TlsSide | None = None) -> None:
        self._driver = driver
        self._secret = secret
        self._tls = tls
        self._slot = slot
        self._launch = launch
        self._name = means.token_hex(8)
        self._loop = EventLoop()
        self._background = Background(self._loop, _THREADS, "partition")
        self._cache = StateCache()
        self._words = LastWords()
        self._reaching_for_words: Connector | None = None
        self._is_heard = False  # or it is known that it will not be
        self._postponed: list[ToWorker] = []
        """From a deployment on that asks to say each call: until the driver hears that."""
        self._environment = Environment(self._loop, self._background, self._cache, self._tell, self._words)
        self._control: ControlConnection[FromWorker, ToWorker] | None = None
        self._listener: Listener | None = None
        self._heartbeat: Heartbeat | None = None
        self._loop_watch = LoopWatch(self._loop, means.get_ident(), self._at_work)
        self._faults = Faults(self._loop, self._lines, self._hush, self._take_early)
        self._incarnation = _NEVER
        self._store: tuple[str, BlobStore] | None = None
        self._follower: Follower | None = None
        self._opening: StateOpener | None = None
        self._opened: dict[Uid, OpenedState] = {}  # while channels are set up
        self._links: Links | None = None
        self._acks: PartitionAcks | None = None
        self._driver_clock = DriverClock(0, means.monotonic())
        self._attempt: PartitionAttempt | None = None
        self._suspicions: dict[Replica, Suspects] = {}  # of members of the partition, in this attempt
        self._waiting: WaitingToJoin | None = None
        self._expected: dict[Member, Epoch] = {}  # members that are to join, behind an epoch after this one
        self._early: list[tuple[ChannelOf | PeerOf, Proved]] = []  # of a deployment that we have not heard of yet
        self._said_early: list[
            TriggerEpoch | EpochIsOver | TakeOver | AssignSplits | Drain | ViewIs
        ] = []  # while channels are set up
        self._lost = ""
        self._done = False
        self._local: Path | None = None
        """The folder of the job's files on this host; known as soon as there is something to do."""
        self._forget: tuple[Uid, ...] = ()

    def run(self) -> None:
        """Serve until the driver says that the job is over; raise `DriverLost` if it is not there any more."""
        loop = self._loop
        kind = ControlOf(self._name)
        Connector(
            loop, self._driver, self._secret, kind, self._reached, self._lose, seconds=_REACH_DRIVER, tls=self._tls
        )
        try:
            loop.run(lambda: self._control is not None or bool(self._lost))
            if not self._lost:
                self._heartbeat = Heartbeat(
                    self._driver,
                    self._secret,
                    self._name,
                    _BEAT,
                    self._tls,
                    self._loop_watch.look,
                    self._lose_beats,
                    on_overdue=self._end_process,
                )
            loop.run(lambda: self._done or bool(self._lost))
            self._let_go()
        finally:
            try:
                self._wind_up()
            finally:  # until then it ends a process that hangs, and no longer: whoever ran us may go on
                if self._heartbeat is not None:
                    self._heartbeat.stop()
        if self._forget and self._local is not None:
            remove_state(self._local, self._forget)
        if self._lost and not self._done:
            raise DriverLost(self._lost)

    def _wind_up(self) -> None:
        self._stand_down()
        if self._opening is not None:
            self._opening.leave()
        if self._follower is not None:
            self._follower.close()
            self._follower.wait()
        self._cache.close()
        self._background.close()
        self._close_connections()

    def _close_connections(self) -> None:
        """Close all connections, as the process may live on: Spark's do, in which it runs its tasks."""
        if self._listener is not None:
            self._listener.close()
        for _, proved in self._early:
            proved.sock.close()
        if self._reaching_for_words is not None:
            self._reaching_for_words.cancel()
        self._words.close()
        if self._control is not None:
            self._control.close()
        self._faults.close()
        self._loop.close()

    def _let_go(self) -> None:
        """Let the driver have what was said last."""
        control = self._control
        if control is not None and not self._lost:
            self._loop.run(lambda: not control.queued_bytes or bool(self._lost), _LAST_WORDS)

    # --- connections --------------------------------------------------------------------------------------------------

    def _reached(self, proved: Proved) -> None:
        # Where the driver sees us, the other partitions do.
        host = str(proved.sock.getsockname()[0])
        self._listener = Listener(
            self._loop,
            host,
            self._secret,
            judge=self._judge,
            on_connection=self._on_connection,
            on_refused=Refusals(self._loop, lambda peer, reason: self._tell(Refusal(peer, reason))).add,
            tls=self._tls,
        )
        break_if_silent(proved.sock, SILENCE)
        self._control = ControlConnection(self._loop, proved, self._told, self._lose, parting=CannotHear)
        self._tell(Hello(self._name, self._listener.address, means.getpid(), self._slot, self._launch, executor_name()))
        kind = LastWordsOf(self._name)
        self._reaching_for_words = Connector(
            self._loop,
            self._driver,
            self._secret,
            kind,
            self._heard,
            lambda _: self._heard(None),  # without it a death has fewer words
            seconds=_REACH_DRIVER,
            tls=self._tls,
        )

    def _heard(self, proved: Proved | None) -> None:
        """Send last words to the driver from now on, or with None never, and do what was postponed until then."""
        if proved is not None:
            self._words.connected(proved.sock)
        self._is_heard = True
        postponed, self._postponed = self._postponed, []
        for message in postponed:
            self._told(message)

    def _lose_beats(self, reason: str) -> None:
        """Give the driver up, from the heart's thread: it counts this process as lost, so a new one is of more use."""
        self._loop.wake(lambda: self._lose(reason))

    def _end_process(self, reason: str) -> None:
        """End the process at once, from the heart's thread: the call that the worker's thread is in, such as a long one
        of the user's function, is of no more use. A task of Spark fails by it, as it does when its process is killed.
        """
        sentence = f"the job's process ends at once, in the middle of a call: the driver at {self._driver}: {reason}\n"
        write(2, sentence.encode())  # not through Python's own stream, which the call may hold
        means.exit_process(1)

    def _lose(self, reason: str) -> None:
        self._lost = f"the driver at {self._driver}: {reason}"

    def _judge(self, kind: ConnectionKind) -> str:
        if not isinstance(kind, ChannelOf | PeerOf):
            return "this port takes channels only"
        if kind.incarnation < self._incarnation:
            return f"incarnation {kind.incarnation} is over; this is {self._incarnation}"
        if kind.incarnation == self._incarnation and self._links is not None and not self._may_come(_way(kind)):
            return "this channel is not expected here, or is connected already"
        return ""

    def _may_come(self, way: Way) -> bool:
        """True if a connection is expected in this attempt, or is of a member that the driver may tell of later."""
        links = self._links
        return links is not None and (links.expects(way) or self._may_be_told_of(way.sender))

    def _may_be_told_of(self, member: Member) -> bool:
        links = self._links
        return self._acks is not None and links is not None and links.address_of(member) is None

    def _on_connection(self, proved: Proved, kind: ConnectionKind, _peer: str) -> None:
        assert isinstance(kind, ChannelOf | PeerOf)
        links = self._links if kind.incarnation == self._incarnation else None
        sender = None if links is None else links.address_of(_way(kind).sender)
        is_early = kind.incarnation > self._incarnation or (kind.incarnation == self._incarnation and links is None)
        is_early = is_early or (links is not None and self._may_be_told_of(_way(kind).sender))
        if is_early or (sender is not None and self._faults.is_cut(sender)):
            self._early.append((kind, proved))
        elif links is not None:
            links.accept(_way(kind), proved)
        else:
            proved.sock.close()

    def _take_early(self) -> None:
        early, self._early = self._early, []
        for kind, proved in early:
            self._on_connection(proved, kind, "")

    def _lines(self) -> Iterator[Line]:
        """Yield the connections of this process with others, for faults that a person asks for."""
        if self._control is not None:
            yield Line(None, self._control)
        if self._links is not None:
            yield from self._links.lines

    def _hush(self, seconds: float) -> None:
        if self._heartbeat is not None:
            self._heartbeat.hush(seconds)

    def _tell(self, message: FromWorker) -> None:
        if self._control is not None:
            self._control.send(message)

    def _tell_from_any_thread(self, message: FromWorker) -> None:
        self._loop.wake(lambda: self._tell(message))

    # --- what the driver says -----------------------------------------------------------------------------------------

    def _told(self, message: ToWorker) -> None:
        if self._postponed or (isinstance(message, Deploy) and message.careful and not self._is_heard):
            self._postponed.append(message)
            return
        match message:
            case Deploy():
                idle = self._links is None and message.incarnation == self._incarnation
                if message.incarnation > self._incarnation or idle:
                    self._driver_clock = DriverClock(message.sent_at, means.monotonic())
                    self._deploy(message)
            case Join():
                if message.incarnation == self._incarnation and self._waiting is not None:
                    self._join(self._waiting, message)
            case Expect():
                if message.incarnation == self._incarnation and self._links is not None and self._attempt is not None:
                    self._expected[message.member] = message.after
                    self._links.expect(message.member, message.address)
                    self._tell(Expecting(message.incarnation, message.member))
            case Forget(incarnation, member):
                if incarnation == self._incarnation and self._links is not None:
                    self._without(self._links, member)
            case TriggerEpoch() | EpochIsOver() | TakeOver() | AssignSplits() | Drain() | ViewIs():
                if isinstance(message, TriggerEpoch) and message.incarnation == self._incarnation:
                    self._driver_clock.heard(message.sent_at, means.monotonic())
                if message.incarnation == self._incarnation and self._attempt is not None:
                    self._attempt.told(message)
                    if isinstance(message, ViewIs):
                        self._tell_suspicions()
                elif message.incarnation == self._incarnation and self._links is not None:
                    self._said_early.append(message)
            case ReplacedBy():
                if message.incarnation == self._incarnation:
                    self._replace(message)
            case StandDown(incarnation):
                if incarnation >= self._incarnation:
                    self._stand_down()
                    if self._opening is not None:
                        self._opening.forget()
                    self._cache.discard_all()
            case StandBy():
                self._stop_following()
                self._cache.discard_all()
                self._local = job_folder(message.local, message.job)
                self._follower = Follower(message, self._cache, self._state_has_news, self._tell_from_any_thread)
            case Follow():
                if self._follower is not None:
                    self._follower.follow(message)
            case Leave():
                self._forget = message.forget
                if self._heartbeat is not None:
                    self._heartbeat.leave()
                self._stand_down()
                self._done = True
            case BeatEvery(milliseconds):
                if self._heartbeat is not None:
                    self._heartbeat.beat_every(milliseconds / 1000)
            case UseStorage(options):
                use_storage(options)
            case ReadState():
                self._tell(self._read(message))
            case Inject():
                self._faults.inject(message, self._tell)

    def _read(self, wanted: ReadState) -> StateRead:
        if self._attempt is None or wanted.incarnation != self._incarnation:
            return StateRead(wanted.number, problem="the partition goes back to an epoch just now; ask again")
        try:
            return StateRead(wanted.number, self._attempt.read(wanted.uid, wanted.key, wanted.state))
        except BaseException as error:  # whatever is wrong with a wish, the job goes on
            return StateRead(wanted.number, problem=str(error))

    def _deploy(self, deploy: Deploy) -> None:
        self._stand_down()
        if self._follower is not None and not deploy.joins:
            self._follower.close()
        self._incarnation = deploy.incarnation
        self._local = job_folder(deploy.local, deploy.job)
        self._loop_watch.after = deploy.options.report_stall_after / 1000
        reached(fail_points.DEPLOYED)
        try:
            plan = loads(deploy.plan)
            assert isinstance(plan, Plan)
        except BaseException as error:  # whatever the program's modules raise when they are imported here
            self._fail(deploy, error, FailureKind.UNUSABLE)
            return
        begin = partial(self._wait, deploy, plan) if deploy.joins else partial(self._begin, self._open(deploy, plan))
        told = partial(self._links_said, deploy, begin)
        self._acks = acks = acks_of(deploy, plan, self._loop)
        beside = () if acks is None else acks.beside
        arrived, drained = self._arrived, self._drained
        self._links = Links(deploy, plan, self._secret, self._loop, told, arrived, drained, self._tls, beside)
        self._take_early()

    def _open(self, deploy: Deploy, plan: Plan) -> _Role:
        """Open the states of a role, in the background."""
        store = self._store_at(deploy.store, deploy.options.store_timeout / 1000)
        files = TreeFiles(store, deploy.incarnation, deploy.partition, deploy.member.replica)
        placements = {stage.uid: placement_of(stage.uid, deploy, plan, files, store) for stage in plan.stages}
        self._opening = StateOpener(
            deploy,
            plan,
            placements,
            self._cache,
            self._loop,
            self._state_has_news,
            self._state_opened,
            self._state_failed,
            self._opening,
        )
        return _Role(deploy, plan, files, placements)

    def _stop_following(self) -> None:
        """Stop following, and let go of all that was followed."""
        if self._follower is not None:
            self._follower.close()
            self._follower.release()
            self._follower = None

    def _driver_time(self) -> int:
        return self._driver_clock.now(means.monotonic())

    def _store_at(self, uri: str, seconds: float) -> BlobStore:
        """Return the job's one store, whose connections are kept; the driver has tried it out."""
        if self._store is None or self._store[0] != uri:
            self._store = uri, find_limited_later(uri, seconds)
        return self._store[1]

    def _state_opened(self, uid: Uid, opened: OpenedState) -> None:
        if self._opening is not None and self._opening.done:
            self._stop_following()
        if self._attempt is None:
            self._opened[uid] = opened
        else:
            self._attempt.opened(uid, opened)

    def _state_failed(self, failed: Failed) -> None:
        if self._attempt is None:
            self._stand_down()
            self._tell(failed)
        else:
            self._attempt.give_up(failed)

    def _at_work(self) -> tuple[Incarnation, Partition, Uid | None] | None:
        """Return whose code runs, None without an attempt; any thread may ask."""
        attempt = self._attempt
        return None if attempt is None else attempt.at_work

    def _state_has_news(self) -> None:
        """Wake the attempt, if there is one; any thread may call this."""
        attempt = self._attempt
        if attempt is not None:
            attempt.woken()

    def _fail(self, deploy: Deploy, error: BaseException, kind: FailureKind) -> None:
        traceback = traceback_of(error)
        self._tell(Failed(deploy.incarnation, deploy.partition, kind, text_of(error), None, traceback))

    # --- an attempt ---------------------------------------------------------------------------------------------------

    def _links_said(self, deploy: Deploy, begin: Callable[[Links], object], said: LinkNews) -> None:
        """Begin as all members are connected, or fail as one cannot be reached, or is not there any more."""
        match said:
            case Ready():
                assert self._links is not None
                begin(self._links)
            case NotConnected(member, reason):
                if self._attempt is not None and self._attempt.outlives_others:
                    self._attempt.unreachable(member, reason)
                elif member in self._expected:
                    self._tell(Reached(deploy.incarnation, member, reason))
                elif deploy.joins:
                    self._cannot_join(deploy, reason)
                else:
                    self._tell(Failed(deploy.incarnation, deploy.partition, FailureKind.CHANNEL, reason))
            case Broken(copy, reason, forged):
                self._channel_broken(deploy, copy, reason, forged=forged)
            case PeerBroken(member, reason):
                if self._attempt is not None:
                    self._suspect(deploy, member, reason)
                elif deploy.joins:
                    self._cannot_join(deploy, reason)
            case Joined(member, sending, receiving):
                if self._attempt is not None and self._attempt.outlives_others:
                    self._attempt.joined(sending, receiving)
                    self._faults.connected(self._lines())
                elif self._attempt is not None:
                    self._attempt.park(member, sending, receiving, self._expected[member])
                    self._faults.connected(self._lines())
                    self._tell(Reached(deploy.incarnation, member))

    def _cannot_join(self, deploy: Deploy, reason: str) -> None:
        """Tell the driver that this process does not come to be a member, before it has been one."""
        self._stand_down()
        self._tell(Reached(deploy.incarnation, deploy.member, reason))

    def _replace(self, message: ReplacedBy) -> None:
        """Let a partition's former member go, and expect the one that has its role now."""
        if self._links is not None:
            self._without(self._links, message.instead_of)
            self._links.expect(message.member, message.address)
            self._take_early()

    def _without(self, links: Links, member: Member) -> None:
        """Go on without a member that is gone."""
        self._expected.pop(member, None)
        links.drop(member)
        if self._attempt is not None:
            self._attempt.left(member)

    def _channel_broken(self, deploy: Deploy, copy: Copy, reason: str, *, forged: bool) -> None:
        """Go on without the process at the other end if another one has its role, or fail."""
        links, attempt = self._links, self._attempt
        if links is not None and attempt is None and deploy.joins:
            self._cannot_join(deploy, f"channel {copy}: {reason}")
        if links is None or attempt is None:
            return
        other = copy.receiver if copy.sender == deploy.member else copy.sender
        if (links.has_another(other, but=attempt.parked) or attempt.outlives_others) and not forged:
            self._without(links, other)
            if attempt.outlives_others:
                attempt.unreachable(other, reason)
        else:
            attempt.channel_broken(copy, reason, forged=forged)

    def _suspect(self, deploy: Deploy, member: Member, reason: str) -> None:
        """Let the driver decide on the members of the partition, as this one cannot agree with another one."""
        own, of = deploy.member, member.replica
        self._suspicions[of] = Suspects(deploy.incarnation, own.partition, 0, own.replica, of, reason)
        self._tell_suspicions()

    def _tell_suspicions(self) -> None:
        """Tell of the members that cannot be reached; again in each view, as the driver heeds what is of its newest."""
        view = self._attempt.view if self._attempt is not None else None
        for said in self._suspicions.values():
            if view is not None and said.of in view.members:
                self._tell(replace(said, view=view.number))

    def _begin(self, role: _Role, links: Links) -> None:
        attempt = self._made(role, links.begin_sending())
        if attempt is None:
            return
        links.begin_agreeing(self._heard_of)
        attempt.agree(links.tell_peer)
        attempt.connect(links.begin_receiving())
        self._begun(attempt)

    def _made(
        self, role: _Role, sending: Mapping[ChannelId, Sequence[SendingEnd]], join: Join | None = None
    ) -> PartitionAttempt | None:
        """Make the attempt, from where the others are if it joins them; None if that failed, as the driver is told."""
        deploy, acks = role.deploy, self._acks
        place, now = (0, {}) if join is None else (join.place, join.stages)
        agreement = None if deploy.view is None else SourceAgreement(deploy.member.replica, deploy.view, place)
        parts = stage_parts(deploy.wiring, self._driver_time, deploy.sent_at, agreement, acks)
        try:
            self._attempt = PartitionAttempt(
                deploy, role.plan, role.files, role.placements, sending, parts, self._environment, agreement, now, acks
            )
        except BaseException as error:
            self._close_links()
            self._fail(deploy, error, kind_of(error))
        return self._attempt

    def _begun(self, attempt: PartitionAttempt) -> None:
        self._faults.connected(self._lines())
        attempt.begin()
        opened, self._opened = self._opened, {}
        for uid, state in opened.items():
            attempt.opened(uid, state)
        said, self._said_early = self._said_early, []
        for message in said:
            attempt.told(message)

    # --- joining an attempt that goes on ------------------------------------------------------------------------------

    def _wait(self, deploy: Deploy, plan: Plan, links: Links) -> None:
        """Keep what the others send until it is said from which epoch on this process is one of them."""
        sending = links.begin_sending()
        links.begin_agreeing(self._heard_of)
        self._waiting = WaitingToJoin(deploy, plan, sending, links.begin_receiving())
        self._faults.connected(self._lines())
        self._tell(Reached(deploy.incarnation, deploy.member))

    def _join(self, waiting: WaitingToJoin, join: Join) -> None:
        """Go on as the others do, with what they have sent since the epoch."""
        self._waiting = None
        if self._follower is not None:
            self._follower.close()
        deploy = replace(waiting.deploy, epoch=join.epoch, roles=join.roles, view=join.view)
        attempt = self._made(self._open(deploy, waiting.plan), waiting.sending, join)
        if attempt is None or self._links is None:
            return
        attempt.agree(self._links.tell_peer)
        attempt.connect(waiting.receiving)
        self._begun(attempt)
        for epoch in join.given_up:
            attempt.told(EpochIsOver(join.incarnation, epoch, complete=False))
        for peer, message in waiting.said:
            attempt.heard(peer, message)
        for copy, frame in waiting.frames:
            attempt.arrived(copy, frame)

    def _heard_of(self, peer: Replica, message: Message[Decision]) -> None:
        if self._attempt is not None:
            self._attempt.heard(peer, message)
        elif self._waiting is not None:
            self._waiting.said.append((peer, message))

    def _arrived(self, copy: Copy, frame: Frame) -> None:
        if self._attempt is not None:
            self._attempt.arrived(copy, frame)
        elif self._waiting is not None and not self._waiting.keep(copy, frame):
            self._cannot_join(self._waiting.deploy, "more has come than it can keep until the epoch is complete")

    def _drained(self) -> None:
        if self._attempt is not None:
            self._attempt.drained()

    def _stand_down(self) -> None:
        """Give up the attempt, or the way into one; open state is at hand then."""
        if self._opening is not None:
            self._opening.close()
        for opened in self._opened.values():
            self._cache.put(opened.state)
        self._opened = {}
        self._suspicions = {}
        self._expected = {}
        self._waiting = None
        self._said_early = []
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None
        self._close_links()

    def _close_links(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None


def _way(kind: ChannelOf | PeerOf) -> Way:
    return kind.copy if isinstance(kind, ChannelOf) else kind.peering


def run_worker(driver: Address, secret: bytes, slot: int, launch: int, tls: Tls | None = None) -> None:
    """Run a process of a job until the driver lets it go; raise `DriverLost` if it is not there any more.

    With `tls` all connections are encrypted; `UnusableTls` if its files are no use on this host.
    """
    before, collected = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH)
    gc.set_threshold(*_COLLECT)
    pa.array(np.zeros(1))  # the first one imports pandas if it is there, which takes half a second
    try:
        with crashing(environ):
            Worker(driver, secret, slot, launch, None if tls is None else tls.load()).run()
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*collected)


def main(arguments: list[str], read_secret: Callable[[], str]) -> int:
    """Run the worker's command, and return its exit code."""
    outlive_sigterm()
    host, port, slot, launch, *files = arguments
    secret = bytes.fromhex(read_secret().strip())
    try:
        run_worker(Address(host, int(port)), secret, int(slot), int(launch), Tls(*files) if files else None)
    except DriverLost as error:
        print(readable(f"the job's process ends: {error}"), file=sys.stderr)
        return DRIVER_LOST
    except UnusableTls as error:
        print(readable(f"the job's process ends: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.readline))
