"""The epochs of a claimed job, along their way: trigger, acknowledge, publish, complete, commit, remove.

Invariant: no rule is decided here. The coordinator hears what happens, one event after the other, of the time
before each; what it answers is carried out before the next event, in one `match`. A trace has all that it was told and
said. The journal is told all in one thread, in order, and `journal` is what its last answer said. A removal is planned
when the coordinator wants it, and one is under way at a time. After `close` nothing happens any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from recovery import events as log
from recovery.decisions import notes
from recovery.decisions.cleanup import NamedFrom, ObservedTree
from recovery.driver.attempts.deployment import Deployment
from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.joins import Joins
from recovery.driver.attempts.requests import End
from recovery.driver.attempts.run import AttemptRun
from recovery.driver.attempts.standbys import Standbys
from recovery.driver.claim import Start
from recovery.driver.housekeeping import Housekeeping
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.manifests import (
    DriversPart,
    all_transactions_in,
    committables_of,
    file_sets_of,
    key_types_of,
    positions_in,
)
from recovery.driver.tree.owned import (
    CommitNoted,
    FencedOff,
    PublicationDone,
    PublicationFailed,
    RemovalDone,
    RemovalsForgotten,
)
from recovery.schemes.rolling_back import JobFailed
from snapshot import fail_points
from snapshot.cut.pauses import Then
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.fail_points import reached
from snapshot.host.net.event_loop import Timer
from snapshot.host.protocol.messages import Acknowledgement, Drain, EpochIsOver, TakeOver, TriggerEpoch
from statebackend import means
from statebackend.files import FileSet
from statebackend.ids import Epoch, Incarnation, Partition, Uid

_ASK_AGAIN: Final = 1.0
"""Seconds until an epoch that is wanted is asked for again after it was given up."""

Event = events.CoordinatorEvent[Acknowledgement]
Instruction = events.CoordinatorInstruction[Acknowledgement]
JournalAnswer = PublicationDone | PublicationFailed | CommitNoted | RemovalDone | RemovalsForgotten
Outcome = events.RollBack | End | Exception
"""What epochs lead to: the next attempt, or the end of the job."""


class Epochs:
    """The epochs of one generation. All calls come in the loop's thread; `follow` is told what they lead to."""

    def __init__(
        self,
        settings: JobSettings,
        environment: Environment,
        record: JobRecord,
        start: Start,
        deployment: Deployment,
        standbys: Standbys,
        joins: Joins,
        follow: Callable[[Outcome], object],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._loop = environment.loop
        self._in_order = environment.threads.in_order
        self._record = record
        self._start = start
        self._tree = tree = start.tree
        self._began = tree.manifest(start.epoch)
        self._deployment = deployment
        self._standbys = standbys
        self._joins = joins
        self._follow = follow
        self._began_at = int(self._loop.now() * 1000)
        self._last_number = tree.state.newest_complete.number
        self._coordinator = Coordinator[Acknowledgement](
            settings.options.coordinator,
            start.generation,
            now=self._began_at,
            complete=start.epoch,
            last_number=self._last_number,
            uncommitted=start.replay,
        )
        self._housekeeping = Housekeeping(
            settings, self._loop, environment.threads.deleting, tree, self._note, self._compacted
        )
        self._waiting: deque[Event] = deque()
        self._handling = False
        self._ticked = -1
        self._timer: Timer | None = None
        self._due: int | None = None
        self._parts: dict[Epoch, DriversPart] = {}
        """The driver's own part of each epoch that is in flight, as it was at the trigger."""
        self._removing = False
        self._closed = False
        self.journal = tree.state
        self._named_from: NamedFrom | None = None
        """What the newest epoch that was completed here says about the files of later ones; it is in `journal`."""

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the current attempt."""
        return self._coordinator.incarnation

    @property
    def is_running(self) -> bool:
        """True if the current attempt runs, and epochs are taken of it."""
        return self._coordinator.state is CoordinatorState.RUNNING and not self._closed

    def observed(self, attempt: Incarnation) -> ObservedTree:
        """Return what a sweep that begins now goes by, while this is the present attempt."""
        return self._tree.observed(self.journal, attempt, self._named_from)

    def begin(self) -> None:
        """Tell the coordinator the time from now on, and delete what earlier generations may have left."""
        start, trace, options = self._start, self._environment.trace, self._settings.options.coordinator
        if trace is not None:
            trace.begin(options, start.generation, self._began_at, start.epoch, self._last_number, start.replay)
        self._housekeeping.take_up(self._tree.state)
        self.tell()

    def take(self, attempt: AttemptRun) -> None:
        """Take epochs of this attempt from now on, and at once those that the job's user or its end awaits."""
        if self._record.endings.draining:
            self._send_all(Drain(attempt.incarnation))
        partitions = frozenset(member.partition for member in attempt.deployed.values())
        self.tell(events.AttemptStarted(attempt.incarnation, partitions))
        self._ask_for_what_is_wanted()

    def drain(self) -> None:
        """Let all sources end where they are, if the attempt runs."""
        if self.is_running:
            self._send_all(Drain(self.incarnation))

    def close(self) -> None:
        """Tell the coordinator nothing more, and do nothing more of what it said: the generation is over."""
        self._closed = True
        self._housekeeping.close()
        if self._timer is not None:
            self._timer.cancel()

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def tell(self, *happened: Event) -> None:
        """Tell the coordinator of events, after all that is being handled already, and carry out what it answers."""
        self._waiting += happened
        if self._handling or self._closed:
            return
        self._handling = True
        try:
            while (event := self._next()) is not None:
                instructions = self._coordinator.handle(event)
                if self._environment.trace is not None:
                    self._environment.trace.add(event, instructions)
                for instruction in instructions:
                    if not self._closed:
                        self._carry_out(instruction, event)
        finally:
            self._handling = False
        self._wait()

    def _next(self) -> Event | None:
        """Return the event to tell now: the time, if it has gone on, before all others."""
        if self._closed:
            return None
        now = int(self._loop.now() * 1000)
        if now > self._ticked:
            self._ticked = now
            return events.Ticked(now)
        return self._waiting.popleft() if self._waiting else None

    def _wait(self) -> None:
        """Tell the coordinator the time when it wants to hear of it."""
        due = self._coordinator.deadline
        if self._closed or self._due == due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due / 1000, self._tick)

    def _tick(self) -> None:
        self._due = None
        self.tell()

    def _carry_out(self, instruction: Instruction, because: Event) -> None:
        match instruction:
            case events.Trigger():
                self._trigger(instruction, because)
            case events.Publish():
                self._publish(instruction)
            case events.Complete(epoch):
                self._complete(epoch)
                reached(fail_points.COMPLETE_TOLD)
            case events.Promote(partition, epoch):
                self._promote(partition, epoch)
            case events.RecordCommitted(epoch):
                self._in_order.submit(partial(self._tree.record_committed, epoch), self._answered)
            case events.RemoveOlder():
                self._remove(instruction)
            case events.Abandon():
                self._abandon(instruction)
            case events.Skipped(reason):
                if reason is not events.SkipReason.NOT_RUNNING:
                    self._note(log.EpochSkipped(at=means.wall(), reason=reason.value))
            case events.RollBack():
                self._follow(instruction)
            case events.Stop(reason):
                self._follow(FencedOff(because.by) if isinstance(because, events.Fenced) else JobFailed(reason))

    # --- the way of an epoch ------------------------------------------------------------------------------------------

    def _trigger(self, trigger: events.Trigger, because: Event) -> None:
        """Send the marker to all partitions, and keep what the driver knows in this moment."""
        marker, attempt, record = trigger.marker, self._deployment.attempt, self._record
        epoch, settings = marker.epoch, self._settings
        if attempt is None:
            raise RuntimeError(f"epoch {epoch} was triggered while no attempt is deployed")
        at, enumerators, key_types = int(means.wall() * 1000), attempt.enumerators(), key_types_of(settings.plan)
        self._parts[epoch] = DriversPart(
            settings.job, settings.plan.max_parallelism, at, enumerators, {}, key_types=key_types
        )
        plan = record.scheme.trigger()
        stops = record.endings.triggered(epoch, savepoint=marker.savepoint, asked_by=because)
        if marker.savepoint:
            record.savepoints.triggered(epoch)
        record.times.triggered(epoch, self._now(), savepoint=marker.savepoint)
        then = Then.STOP if stops else plan.then
        if then is Then.READ_ON and self._joins.triggered(epoch):
            marker = replace(marker, admits=True)
        trigger_epoch = TriggerEpoch(attempt.incarnation, at, marker, then)
        self._environment.workers.send_all(trigger_epoch, attempt.workers_of(plan.told))
        reached(fail_points.TRIGGER_SENT)
        self._note(log.EpochTriggered(at=means.wall(), epoch=epoch, mode=marker.mode.value, savepoint=marker.savepoint))

    def acknowledged(self, said: Acknowledgement) -> None:
        """Tell the coordinator that a partition's part of the epoch is durable."""
        if said.incarnation == self.incarnation:
            self._record.times.acknowledged(said, self._now())
        self.tell(events.Acknowledged(said.epoch, said.incarnation, said.partition, said, said.has_committables))

    def _publish(self, publish: events.Publish[Acknowledgement]) -> None:
        """Have the journal make an epoch complete that all partitions have acknowledged."""
        noted = notes.Notes(self._settings.options.program_version, self._record.times.taken(publish.epoch))
        part = replace(self._parts.pop(publish.epoch), notes=notes.to_json(noted))
        self._in_order.submit(partial(self._tree.publish, publish, part), self._answered)

    def _answered(self, answer: JournalAnswer | BaseException) -> None:
        """Go on with what the journal has been asked for."""
        if self._closed:
            return
        if not isinstance(answer, PublicationFailed | BaseException):
            self.journal = answer.state
        match answer:
            case PublicationDone():
                self._published(answer)
            case PublicationFailed(epoch, reason):
                self.tell(events.PublishFailed(epoch, reason))
            case CommitNoted(epoch):
                self._note(log.EpochCommitted(at=means.wall(), epoch=epoch))
                self._end_if_reached()
            case RemovalDone(removal=removal):
                self._removing = False
                if removal is not None:
                    self._tree.forget(removal.epochs)
                    self._housekeeping.delete(removal, self.journal)
            case RemovalsForgotten():
                pass
            case FencedOff(by=by):
                self.tell(events.Fenced(by))
            case BaseException():
                self._follow(answer if isinstance(answer, Exception) else RuntimeError(str(answer)))

    def _published(self, done: PublicationDone) -> None:
        """Take note that an epoch is complete; the coordinator has all partitions told, whose sinks commit then."""
        reached(fail_points.BEFORE_COMPLETE)
        epoch, record = done.epoch, self._record
        self._named_from = done.named_from
        record.failures.completed()
        self._environment.deliveries.completed(all_transactions_in(self._tree.manifest(epoch)))
        self._note(record.times.completed(epoch, self._now(), means.wall(), output=done.output))
        self._standbys.completed(epoch)
        self.tell(events.Published(epoch))
        if done.pinned:
            record.savepoints.taken(epoch)
        self._end_if_reached()

    def _remove(self, asked: events.RemoveOlder) -> None:
        """Plan the removal now, as later an epoch may be in flight of which the coordinator did not know.

        This journal does not have the record yet that an epoch was just committed, so that epoch stays, even if newer
        ones are complete and `retain` is 1. Readers of output need it: they go by the newest committed epoch.
        """
        tree = self._tree
        bases = [epoch for epoch in (asked.oldest_base, self._joins.restoring) if epoch is not None]
        oldest = min(bases, default=None)
        planned = None if self._removing else tree.plan_removal(self.journal, asked.retain, oldest)
        if planned is not None:
            self._removing = True
            self._in_order.submit(partial(tree.remove, planned), self._answered)

    def _compacted(self, up_to: int) -> None:
        """Forget the removals up to this entry: the journal begins after it, and all that it let go is deleted."""
        self._in_order.submit(partial(self._tree.forget_removals, up_to), self._answered)

    # --- how an epoch ends otherwise ----------------------------------------------------------------------------------

    def _complete(self, epoch: Epoch) -> None:
        """Tell all that the epoch is complete; with its files where not all of them have written these."""
        attempt = self._deployment.attempt
        if attempt is None:
            return
        files: dict[Partition, Mapping[Uid, FileSet]] = {}
        for worker, member in attempt.deployed.items():
            partition = member.partition
            if attempt.has_replicas and partition not in files:
                files[partition] = file_sets_of(self._tree.manifest(epoch), partition)
            over = EpochIsOver(attempt.incarnation, epoch, complete=True, files=files.get(partition, {}))
            self._environment.workers.send_all(over, (worker,))
        self._joins.over(epoch, complete=True)

    def contributor_changed(self, partition: Partition, *, absent: bool = False) -> None:
        """Give up what the former primary of a partition had to do with epochs, and let the new one begin.

        If it is `absent`, no epoch begins until it is back.
        """
        self.tell(events.ContributorChanged(self.incarnation, partition, absent))

    def contributor_back(self, partition: Partition) -> None:
        """Begin epochs again, now that a partition is restored that was not there."""
        self.tell(events.ContributorBack(self.incarnation, partition))
        self._loop.call_soon(self._ask_for_what_is_wanted)

    def _promote(self, partition: Partition, epoch: Epoch | None) -> None:
        """Tell the primary of the partition at which epoch it begins, and what of that is left for it to do.

        A partition without a process restarts from there.
        """
        attempt, scheme = self._deployment.attempt, self._record.scheme
        if attempt is None or self._deployment.replace(partition, epoch):
            return
        manifest = self._tree.manifest(epoch) if epoch != attempt.began_from else None
        primary = [
            member
            for member in attempt.deployed.values()
            if member.partition == partition and scheme.stands_for(member)
        ]
        message = TakeOver(attempt.incarnation, epoch, committables_of(manifest, partition))
        self._environment.workers.send_all(message, attempt.workers_of(primary))
        self._loop.call_soon(self._ask_for_what_is_wanted)

    def _abandon(self, abandon: events.Abandon) -> None:
        """Forget an epoch that will never be complete; ask for another one soon if it was asked for."""
        epoch, reason, record = abandon.epoch, abandon.reason, self._record
        self._parts.pop(epoch, None)
        record.times.given_up(epoch)
        record.savepoints.given_up(epoch)
        if record.endings.given_up(epoch) or record.savepoints.waiting:
            self._loop.call_at(self._loop.now() + _ASK_AGAIN, self._ask_for_what_is_wanted)
        if reason is not events.AbandonReason.ATTEMPT_BROKEN:
            self._send_all(EpochIsOver(self.incarnation, epoch, complete=False))
            self._joins.over(epoch, complete=False)
        self._note(log.EpochAbandoned(at=means.wall(), epoch=epoch, reason=reason.value, detail=abandon.detail))

    def _ask_for_what_is_wanted(self) -> None:
        """Ask the coordinator for the epochs that the job's user or its end awaits, if the attempt runs."""
        if not self.is_running:
            return
        if self._record.savepoints.waiting:
            self.tell(events.SavepointRequested())
        wanted = self._record.endings.wanted()
        if wanted is not None:
            self.tell(wanted)

    def _end_if_reached(self) -> None:
        """Tell that the job has come to its end, if an epoch that was to be the last one is complete and committed."""
        end = self._record.endings.reached(self.journal)
        if end is not None:
            began = self._began
            same = began is not None and positions_in(began) == positions_in(self._tree.manifest(end.epoch))
            self._follow(replace(end, nothing_since=began.epoch) if began is not None and same else end)

    def _send_all(self, message: EpochIsOver | Drain) -> None:
        """Send the message to all partitions of the attempt, if one is deployed."""
        if (attempt := self._deployment.attempt) is not None:
            self._environment.workers.send_all(message, attempt.deployed)

    def _note(self, event: log.AnyEvent) -> None:
        self._environment.reporting.event(event)

    def _now(self) -> float:
        return self._loop.now() * 1000
