"""One attempt as the driver sees it: who has which partition, who is ready, who reads which split.

Invariant: what is sent to a partition carries the attempt's incarnation and goes to the process that has it;
the splits of a cut are taken in the same step in which its triggers are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from recovery.driver.attempts.workers import Workers
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.manifests import dealer_from, moves_output, roles_from, sent_by, sinks_of, transactions_in
from recovery.driver.tree.owned import Tree
from recovery.driver.tree.splits import Assignment, SplitDealer, enumerator_json
from snapshot import fail_points
from snapshot.epochs.coordinator_events import RollBack
from snapshot.fail_points import reached
from snapshot.host.net.event_loop import Background, EventLoop, Timer
from snapshot.host.protocol.messages import (
    Address,
    AssignSplits,
    Deploy,
    Forget,
    Hello,
    Join,
    ReplacedBy,
    StandDown,
    StandsAt,
    ToWorker,
    ViewIs,
)
from snapshot.ids import Member, TransactionId
from snapshot.program.plan import ToSink
from snapshot.program.source import Available, Resuming, Source
from snapshot.replication.agreement import View
from snapshot.tree.frozen_json import Json, JsonLike
from statebackend import means
from statebackend.ids import Epoch, Partition, Uid

_PAUSES: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds before a sink's recovery is tried again."""

_NO_WINDOWS: Final[Mapping[Partition, Mapping[Uid, int]]] = {}

Trouble = Callable[[str, BaseException], object]


@dataclass(frozen=True, slots=True)
class Replacing:
    """A partition that restarts alone: as `successor`, from `epoch` as soon as it `may_begin`."""

    successor: Member
    instead_of: Member
    since: float
    epoch: Epoch | None = None
    may_begin: bool = False


class AttemptRun:
    """From a deployment to the end of the attempt. `trouble` hears of what failed and does not matter now."""

    def __init__(
        self,
        settings: JobSettings,
        workers: Workers,
        aside: Background,
        loop: EventLoop,
        tree: Tree,
        trouble: Trouble,
        roll_back: RollBack,
        chosen: Mapping[Member, Hello],
    ) -> None:
        """Give each member's role to a process; `deploy` tells them."""
        self._settings = settings
        self._workers = workers
        self._aside = aside
        self._loop = loop
        self._tree = tree
        self._trouble = trouble
        self._dealers: dict[Uid, SplitDealer] = {}
        self._parallelism = settings.parallelism
        self._restored: set[Member] = set()
        self._committed: set[Partition] = set()
        self._commits_first = False
        self._ended: set[Member] = set()
        self._sent: dict[tuple[Uid, Partition], list[AssignSplits]] = {}  # words of splits, which all members hear
        self.began_from = roll_back.epoch
        self._chosen = chosen
        self._worker_of = {member: hello.worker for member, hello in chosen.items()}
        self._ends: Mapping[Uid, Mapping[str, JsonLike]] = {}
        self._looks: dict[Uid, Timer] = {}
        self._recoveries: dict[Uid, Timer] = {}
        self._closed = False
        self._replacing: dict[Partition, Replacing] = {}
        self._took_epochs = False
        self.incarnation = roll_back.incarnation
        self.deployed = {worker: member for member, worker in self._worker_of.items()}
        """The role of each process that takes part."""
        self.has_replicas = len(self.deployed) > self._parallelism
        """True if a partition had several members when the attempt began."""
        self.has_changed = False
        """True if a process that took part does so no more."""

    def deploy(
        self,
        found: Mapping[Uid, Available],
        suspects: Collection[Partition] = (),
        windows: Mapping[Partition, Mapping[Uid, int]] = _NO_WINDOWS,
        view: Callable[[Partition], View | None] = lambda _: None,
    ) -> None:
        """Tell each process its role; `found` is what there was of sources that the first epoch lacks.

        The processes of `suspects` are to say what they call; `windows` are those of the attempt before. `view` returns
        the members of a partition that has several.
        """
        settings, epoch, chosen = self._settings, self.began_from, self._chosen
        manifest = self._tree.manifest(epoch)
        self._ends = {uid: there.ends for uid, there in found.items()}
        roles = roles_from(manifest, settings.plan, self._parallelism, self._tree.broadcast(epoch), self._ends)
        self._commits_first = moves_output(manifest, self._parallelism)
        for uid, source in settings.plan.sources.items():
            there = found.get(uid, Available())
            self._dealers[uid] = dealer_from(
                uid, source, manifest, roles, there.new, available_now=settings.options.available_now
            )
        named = transactions_in(manifest)
        for uid, sink in sinks_of(settings.plan).items():
            self._recover(uid, self._recovery_of(sink, named.get(uid, frozenset())))
        peers = {member: hello.address for member, hello in chosen.items()}
        began = int(means.wall() * 1000)  # the same for all, as their processing time begins with it
        for member, hello in chosen.items():
            partition = member.partition
            role = self._role(member, peers, view(partition), began)
            careful, known = partition in suspects, dict(windows.get(partition, {}))
            role = replace(role, epoch=epoch, roles=roles[partition], careful=careful, windows=known)
            self._workers.send(hello.worker, role)
            reached(fail_points.ROLE_SENT)
        for worker in self._workers.there:
            if worker not in self.deployed:
                self._workers.send(worker, StandDown(self.incarnation, "another process has its role"))

    def _role(self, member: Member, peers: Mapping[Member, Address], view: View | None, now: int) -> Deploy:
        settings = self._settings
        return Deploy(
            self.incarnation,
            now,
            settings.job,
            None,
            member,
            self._parallelism,
            peers,
            settings.pickled_plan,
            {},
            settings.scheme.wiring(settings.options.coordinator.interval),
            settings.options.host,
            settings.store,
            settings.local,
            time_goes_on=settings.options.available_now,
            view=view,
        )

    # --- members that come and go -------------------------------------------------------------------------------------

    def connect(self, hello: Hello, member: Member, view: View) -> None:
        """Have a process connect with all members that there are: it is to be one of them."""
        there = self._workers.there
        peers = {at: there[worker].address for worker, at in self.deployed.items() if worker in there}
        role = self._role(member, {**peers, member: hello.address}, view, int(means.wall() * 1000))
        self._workers.send(hello.worker, replace(role, joins=True))

    def join(self, worker: str, member: Member, view: View, stands: StandsAt, given_up: tuple[Epoch, ...]) -> None:
        """Have a process go on from an epoch that is complete, as a member from now on."""
        settings, epoch, partition = self._settings, stands.epoch, member.partition
        manifest, broadcast = self._tree.manifest(epoch), self._tree.broadcast(epoch)
        roles = roles_from(manifest, settings.plan, self._parallelism, broadcast, self._ends)[partition]
        self.deployed[worker], self._worker_of[member] = member, worker
        self._restored.add(member)  # the attempt waits for it no more than for any other that is restored
        self._workers.send(worker, Join(self.incarnation, epoch, roles, view, stands.place, stands.stages, given_up))
        for (_, at), sent in self._sent.items():
            if at == partition:
                for message in sent:
                    self._workers.send(worker, message)

    def workers_of(self, members: Collection[Member]) -> list[str]:
        """Return the processes of these members, without those that take part no more."""
        return [worker for worker, member in self.deployed.items() if member in members]

    def left(self, worker: str, view: View | None) -> None:
        """Go on without a process, whose role others have; these are told the `view` of themselves."""
        member = self._let_go(worker)
        self._workers.send(worker, StandDown(self.incarnation, f"the other members of partition {member} go on alone"))
        self._workers.send_all(Forget(self.incarnation, member), list(self.deployed))  # it may hang, and keep all open
        if view is not None:
            self.tell_members(member.partition, ViewIs(self.incarnation, view))

    def _let_go(self, worker: str) -> Member:
        member = self.deployed.pop(worker)
        del self._worker_of[member]
        self.has_changed = True
        return member

    # --- a partition that restarts alone --------------------------------------------------------------------------

    def lost(self, worker: str, successor: Member, now: float) -> None:
        """Go on without a process; `successor` is to have its role, when `replace` is called."""
        member = self._let_go(worker)
        self._workers.send(worker, StandDown(self.incarnation, f"another process is to have the role of {member}"))
        partition = member.partition
        before = self._replacing.get(partition)
        since = now if before is None else before.since
        self._replacing[partition] = Replacing(successor, member, since)

    def replaces(self, partition: Partition, epoch: Epoch | None) -> bool:
        """Take note that a partition can restart from this epoch; return False if it does not wait for that."""
        waiting = self._replacing.get(partition)
        if waiting is not None:
            self._replacing[partition] = replace(waiting, epoch=epoch, may_begin=True)
        return waiting is not None

    @property
    def awaited(self) -> Mapping[Partition, Replacing]:
        """Return the partitions that can restart and have no process."""
        return {
            partition: waiting
            for partition, waiting in self._replacing.items()
            if waiting.may_begin and waiting.successor not in self._worker_of
        }

    def restart(self, waiting: Replacing, hello: Hello, *, careful: bool) -> None:
        """Have a process restart a partition, and all others send to it."""
        member, epoch = waiting.successor, waiting.epoch
        partition, manifest = member.partition, self._tree.manifest(epoch)
        broadcast = self._tree.broadcast(epoch)
        roles = roles_from(manifest, self._settings.plan, self._parallelism, broadcast, self._ends)[partition]
        anew = epoch == self.began_from  # then what was in flight to the partition is sent by nobody
        if not anew:
            roles = {uid: replace(role, channels=()) for uid, role in roles.items()}
        for worker in self.deployed:
            self._workers.send(worker, ReplacedBy(self.incarnation, member, hello.address, waiting.instead_of))
        there = self._workers.there
        peers = {at: there[worker].address for worker, at in self.deployed.items() if worker in there}
        self.deployed[hello.worker], self._worker_of[member] = member, hello.worker
        role = self._role(member, {**peers, member: hello.address}, None, int(means.wall() * 1000))
        outgoing = () if anew else sent_by(manifest, partition)
        role = replace(role, epoch=epoch, roles=roles, careful=careful, outgoing=outgoing)
        self._workers.send(hello.worker, role)
        for (_, at), sent in self._sent.items():
            if at == partition:
                for message in sent:
                    self._workers.send(hello.worker, message)

    def replaced(self, member: Member) -> Replacing | None:
        """Take note that a member is restored; return what it was awaited for, None if it was there at the start."""
        waiting = self._replacing.get(member.partition)
        if waiting is None or waiting.successor != member:
            return None
        return self._replacing.pop(member.partition)

    def tell_members(self, partition: Partition, message: ToWorker) -> None:
        """Tell something to all members of a partition."""
        self._workers.send_all(message, [worker for worker, at in self.deployed.items() if at.partition == partition])

    def restored(self, member: Member) -> bool:
        """Take note that a member is restored; return True if it was the last one."""
        self._restored.add(member)
        return self.is_restored

    @property
    def is_restored(self) -> bool:
        """True if all members are restored."""
        return self._restored.issuperset(self._worker_of)

    def committed(self, partition: Partition) -> bool:
        """Note that a partition has committed at least what it restored; True if epochs waited for that alone."""
        waited = self.waits_for_commits
        self._committed.add(partition)
        return waited and not self.waits_for_commits

    @property
    def waits_for_commits(self) -> bool:
        """True if all partitions are restored, and no epoch must be complete yet, as older rows await their commit.

        The epoch's rows would be committed by other partitions than older rows of the same keys, and might be
        overwritten by these.
        """
        return self.is_restored and self._commits_first and len(self._committed) < self._parallelism

    @property
    def takes_epochs(self) -> bool:
        """True if the coordinator has begun to take epochs: it hears of a new primary only from then on."""
        self._took_epochs = self._took_epochs or (self.is_restored and not self.waits_for_commits)
        return self._took_epochs

    def started(self) -> None:
        """Deal out splits, and begin to look for more, as all partitions are restored."""
        for uid, dealer in self._dealers.items():
            self._assign(uid, dealer.started())
        for uid, source in self._settings.plan.sources.items():
            if source.discover_every is not None and not self._settings.options.available_now:
                self._look(uid, source, source.discover_every)

    def wanted(self, partition: Partition, uid: Uid, heard: int) -> None:
        """Deal out splits to a partition that has nothing more to read of a source, as a member says.

        Not if it has not heard all that was sent, as another member was quicker: it asks again when it has read that.
        """
        if heard == len(self._sent.get((uid, partition), ())):
            self._assign(uid, self._dealers[uid].wanted(partition))

    def ended(self, member: Member) -> None:
        """Take note that a member has processed all its input."""
        self._ended.add(member)

    @property
    def is_ended(self) -> bool:
        """True if all members have processed all their input, and none is awaited."""
        return not self._replacing and self._ended.issuperset(self._worker_of)

    def enumerators(self) -> dict[Uid, Json]:
        """Return, for each source, the splits that no partition reads, as the manifest has them."""
        return {uid: enumerator_json(dealer.unassigned) for uid, dealer in self._dealers.items()}

    def close(self) -> None:
        """Look for no more splits and retry no sink's recovery: the attempt is over."""
        self._closed = True
        for timer in (*self._looks.values(), *self._recoveries.values()):
            timer.cancel()

    def _assign(self, uid: Uid, assignments: list[Assignment]) -> None:
        for one in assignments:
            message = AssignSplits(self.incarnation, uid, one.splits, one.last)
            self._sent.setdefault((uid, one.partition), []).append(message)
            self.tell_members(one.partition, message)

    def _look(self, uid: Uid, source: Source, every: float) -> None:
        """Look for new splits in the background, and again after a while."""

        def looked(found: object) -> None:
            if self._closed:
                return
            if isinstance(found, BaseException):
                self._trouble(f"looking for new splits of {uid}", found)
            elif isinstance(found, tuple):
                self._assign(uid, self._dealers[uid].discovered(found))
            self._looks[uid] = self._loop.call_at(self._loop.now() + every, lambda: self._look(uid, source, every))

        known, parallelism = self._dealers[uid].known, self._parallelism

        def look() -> tuple[str, ...]:
            return tuple(source.discover_new(known) if isinstance(source, Resuming) else source.discover(parallelism))

        self._aside.submit(look, looked)

    def _recovery_of(self, sink: ToSink, named: frozenset[TransactionId]) -> Callable[[], None]:
        return lambda: sink.sink.recover(self._settings.job, sink.uid, self.incarnation, named)

    def _recover(self, uid: Uid, recover: Callable[[], None], tried: int = 0) -> None:
        """Have a sink's target aborted what earlier incarnations left there, until it has done so."""

        def done(outcome: object) -> None:
            if self._closed or not isinstance(outcome, BaseException):
                return
            self._trouble(f"aborting what was left in the target of {uid}", outcome)
            pause = _PAUSES[min(tried, len(_PAUSES) - 1)]
            self._recoveries[uid] = self._loop.call_at(
                self._loop.now() + pause, lambda: self._recover(uid, recover, tried + 1)
            )

        self._aside.submit(recover, done)
