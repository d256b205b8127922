"""A job that is claimed: its processes are heard, and its attempts begun, watched and rolled back.

Invariant: it contains no rule of the protocol. What concerns an epoch goes to `Epochs`; what follows from a
failure is decided by `Failures`, and carried out here. Files that a partition calls damaged are read by the driver
first: if they are, the job is claimed anew, and goes back further. There is one of these for each claim, with all that
exists only after it; after `close` nothing happens any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from recovery import events as log
from recovery.decisions.restarts import Cause, Failure
from recovery.driver.attempts.deployment import Deployed, Deployment, Overtaken
from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.joins import Joins, OfJoins
from recovery.driver.attempts.moves import HandOver
from recovery.driver.attempts.rebalancer import Rebalancer
from recovery.driver.attempts.requests import End
from recovery.driver.attempts.run import AttemptRun, Replacing
from recovery.driver.attempts.standbys import Standbys
from recovery.driver.claim import Start
from recovery.driver.epochs import Epochs, Outcome
from recovery.driver.housekeeping import Orphans
from recovery.driver.report import worker_events
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.damage import faults_of, files_in_doubt
from recovery.driver.tree.manifests import all_transactions_in
from recovery.schemes.rolling_back import BreakAttempt, Consequence, GiveUpJob, before, failure_of
from recovery.schemes.scheme import Broken, Masked, Replaced
from snapshot import fail_points
from snapshot.epochs import coordinator_events as events
from snapshot.fail_points import reached
from snapshot.host.protocol.messages import (
    Acknowledgement,
    Admitted,
    AllEnded,
    CannotCommit,
    CommitPutOff,
    Declining,
    Delivery,
    Expecting,
    Failed,
    Figures,
    FirstOutput,
    Followed,
    HasCommitted,
    Hello,
    InSync,
    Reached,
    Restored,
    StandDown,
    StandsAt,
    Suspects,
    Unreachable,
    WantsSplit,
)
from snapshot.ids import Member
from statebackend import means
from statebackend.ids import Epoch, Incarnation

OfEpochs = Acknowledgement | HasCommitted | Declining | CannotCommit
OfAttempt = Restored | FirstOutput | WantsSplit | AllEnded | Figures | CommitPutOff | Delivery | Suspects | Unreachable
FromPartition = OfEpochs | Failed | OfAttempt | OfJoins

_UNTIL_HEARD: Final = 0.5
"""Seconds in which the loss of a process is heard otherwise, if that is why another one does not reach it."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """Files of the epoch that was to be restored are not as they were written: a claim finds another epoch."""

    faults: Mapping[str, str]


class ClaimedJob:
    """The job in the hands of this driver, by one claim. `over` is told how that ends, once."""

    def __init__(
        self,
        settings: JobSettings,
        environment: Environment,
        record: JobRecord,
        start: Start,
        over: Callable[[End | Exception | Damaged], object],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._loop = loop = environment.loop
        self._record = record
        self._start = start
        self._over = over
        self.tree = tree = start.tree
        self._standbys = Standbys(settings, environment.workers, tree, environment.reporting.trouble)
        self.deployment = Deployment(settings, environment, record, tree, start.found, self._standbys, self._deployed)
        self._joins = Joins(environment, record, self.deployment, self._standbys, self._may_join, self._ask_for_epoch)
        self.epochs = Epochs(
            settings, environment, record, start, self.deployment, self._standbys, self._joins, self._follow
        )
        self._rebalancer = Rebalancer(
            settings, environment, self._standbys, self.deployment, self._may_move, self._moves
        )
        self._orphans = Orphans(loop, environment.threads.deleting, tree, self.epochs.observed, self._note)
        self._restored: Epoch | None = start.epoch
        """From which epoch the attempt goes on; None for the beginning."""
        self._not_before = 0.0
        """Before this time of the loop no attempt is begun."""
        self._in_doubt = False
        """Files of that epoch are being looked at, or were found damaged."""
        self._closed = False

    def begin(self) -> None:
        """Go on from the epoch that was found when the job was claimed."""
        start = self._start
        if start.epoch is not None:
            self._standbys.completed(start.epoch)
        if start.epoch not in start.replay:  # the journal says that all it names is committed
            self._environment.deliveries.delivered(all_transactions_in(self.tree.manifest(start.epoch)))
        self._note(
            log.Claimed(
                at=means.wall(),
                job=self._settings.job,
                generation=start.generation,
                restores=start.epoch,
                skipped=start.skipped,
                repeats=start.repeats.epochs,
            )
        )
        reached(fail_points.CLAIMED)
        self._roll_back(events.RollBack(start.epoch, self.epochs.incarnation, confirm_first=False))
        self.epochs.begin()

    def close(self) -> None:
        """Do nothing any more: the generation is over."""
        self._closed = True
        for part in (self.epochs, self.deployment, self._orphans, self._rebalancer, self._joins):
            part.close()

    def end(self) -> None:
        """Do nothing any more, as the job is over; report a recovery that is under way, as far as it has come."""
        self.close()
        self._note_recovery(finally_=True)

    # --- processes ----------------------------------------------------------------------------------------------------

    def appeared(self) -> None:
        """Take in a process that is there, and free."""
        self.deployment.deploy_if_possible()
        self._rebalancer.appeared()
        if self.deployment.attempt is not None:
            self._standbys.look(self.deployment.roles)
            self._joins.look()

    def wants(self, hello: Hello) -> bool:
        """Take a process that was launched to see where there is room; return True if it is to stay."""
        return self._rebalancer.wants(hello)

    def lost(self, worker: str, reason: str, *, silent: bool) -> None:
        """Do what the scheme says if the process that is not there any more had a role."""
        member, attempt = self.deployment.member_of(worker), self.deployment.attempt
        self._standbys.lost(worker)
        if member is not None and attempt is not None:
            cause = Cause.SILENT if silent else Cause.PROCESS
            failure = Failure(attempt.incarnation, cause, f"{worker} is lost: {reason}", member.partition)
            self._member_failed(worker, failure)
        else:
            self._joins.lost(worker, f"{worker} is lost: {reason}")
        self._rebalancer.lost(worker)

    def followed(self, worker: str, message: Followed) -> None:
        """Take the answer of a process that stands by."""
        self._standbys.followed(worker, message)
        self._rebalancer.look()

    def reported(self, worker: str, message: FromPartition) -> None:
        """Act on a message of a process about its partition."""
        match message:
            case Acknowledgement() | HasCommitted() | Declining() | CannotCommit():
                if self._stands_for_its_partition(worker):
                    self._of_epochs(message)
            case Failed():
                self._member_failed(worker, failure_of(message))
            case Expecting() | Reached() | StandsAt() | InSync() | Admitted():
                self._joins.reported(worker, message)
            case _:
                attempt = self._attempt_of(message.incarnation)
                if attempt is not None and worker in attempt.deployed:
                    self._of_attempt(attempt, attempt.deployed[worker], message)

    def _stands_for_its_partition(self, worker: str) -> bool:
        member = self.deployment.member_of(worker)
        return member is not None and self._record.scheme.stands_for(member)

    def _of_epochs(self, message: OfEpochs) -> None:
        match message:
            case Acknowledgement():
                self.epochs.acknowledged(message)
            case HasCommitted(incarnation, partition, epoch):
                self.epochs.tell(events.Committed(epoch, incarnation, partition))
                attempt = self._attempt_of(incarnation)
                if attempt is not None and attempt.committed(partition):
                    self.epochs.take(attempt)
            case Declining(incarnation, partition, epoch, reason):
                self.epochs.tell(events.Declined(epoch, incarnation, partition, reason))
            case CannotCommit(incarnation, partition, epoch, uid, reason):
                self.epochs.tell(events.CommitFailed(epoch, incarnation, partition, f"{uid}: {reason}"))

    def _attempt_of(self, incarnation: Incarnation) -> AttemptRun | None:
        """Return the attempt if it is the current one; None if a message of it comes too late."""
        return self.deployment.attempt if incarnation == self.epochs.incarnation else None

    def _of_attempt(self, attempt: AttemptRun, member: Member, message: OfAttempt) -> None:
        clock = self._record.clock
        match message:
            case Restored(_, _, downloaded_ms):
                clock.restored(self._now(), downloaded_ms)
                self._note(worker_events.restored(message))
                if self._joins.restored(member):
                    return
                is_last, replacing = attempt.restored(member), attempt.replaced(member)
                if replacing is not None:
                    self._replaced(attempt, replacing)
                elif is_last:
                    self._all_restored(attempt)
            case WantsSplit(partition=partition, uid=uid, heard=heard):
                attempt.wanted(partition, uid, heard)
            case AllEnded():
                attempt.ended(member)
                self._end_if_all_have(attempt)
            case Suspects():
                self._suspected(attempt, member, message)
            case Unreachable():
                self._unreachable(attempt, member, message)
            case Delivery():
                self._environment.deliveries.add(message)
            case _ if not self._record.scheme.stands_for(member):
                pass  # its primary says as much
            case FirstOutput():
                clock.first_output(self._now())
                self._note_recovery()
            case Figures(partition=partition, memory_bytes=memory, lag_ms=lag):
                self._record.memory[partition] = memory
                known = {uid: stage.window for uid, stage in message.stages.items() if stage.window}
                self._record.windows.setdefault(partition, {}).update(known)
                clock.lag(self._now(), partition, lag)
                self._note_recovery()
                self._environment.reporting.figures(message)
            case CommitPutOff():
                self._note(worker_events.put_off(message))

    def _end_if_all_have(self, attempt: AttemptRun) -> None:
        if attempt.is_ended:
            self.epochs.tell(self._record.endings.all_ended())

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _follow(self, outcome: Outcome) -> None:
        """Do what epochs lead to: the next attempt, or the end of the job."""
        match outcome:
            case events.RollBack():
                if not self._record.failures.is_planned(before(outcome.incarnation)):
                    self._broken(outcome)
                if not self._closed:
                    self._roll_back(outcome)
            case End() | Exception():
                self._over(outcome)

    def _roll_back(self, roll_back: events.RollBack) -> None:
        self._record.endings.attempt_over()
        self._restored = roll_back.epoch
        self._orphans.attempt_over()
        self._joins.attempt_over()
        self.deployment.roll_back(roll_back, self._not_before)

    def _deployed(self, said: Deployed | Overtaken) -> None:
        match said:
            case Deployed(attempt, roll_back):
                self._record.clock.restarted(self._now(), len(attempt.deployed))
                self._note(
                    log.Deployed(
                        at=means.wall(),
                        incarnation=roll_back.incarnation,
                        epoch=roll_back.epoch,
                        workers=tuple(attempt.deployed),
                        members=tuple(attempt.deployed.values()),
                        primaries=tuple(filter(self._record.scheme.stands_for, attempt.deployed.values())),
                    )
                )
            case Overtaken(by):
                self.epochs.tell(events.Fenced(by))

    def _replaced(self, attempt: AttemptRun, replacing: Replacing) -> None:
        """Go on with epochs, as a partition that restarted alone is restored."""
        member, took = replacing.successor, self._now() - replacing.since
        (worker,) = attempt.workers_of((member,))
        self._note(
            log.PartitionReplaced(at=means.wall(), member=member, worker=worker, epoch=replacing.epoch, took_ms=took)
        )
        self.epochs.contributor_back(member.partition)

    def _all_restored(self, attempt: AttemptRun) -> None:
        attempt.started()
        self._record.clock.opened(self._now())
        self._note(log.Running(at=means.wall(), incarnation=attempt.incarnation))
        self._orphans.attempt_runs(attempt.incarnation)
        if attempt.waits_for_commits:
            reason = "output of other partitions is committed first; if that lasts, see whether the targets are there"
            self._environment.reporting.trouble("taking epochs", reason)
        else:
            self.epochs.take(attempt)
        self._rebalancer.runs(self._restored)
        self._joins.look()

    # --- failures -----------------------------------------------------------------------------------------------------

    def _member_failed(self, worker: str, failure: Failure) -> None:
        """Ask the scheme what it means that a member is gone, or cannot go on."""
        attempt = self._attempt_of(failure.incarnation)
        member = None if attempt is None else attempt.deployed.get(worker)
        if attempt is not None and member is None and (attempt.has_replicas or attempt.has_changed):
            self._joins.lost(worker, failure.reason)  # the others go on without it already
            return
        if attempt is not None and member is not None and attempt.takes_epochs:
            own = self._joins.is_entering(member) and failure.cause is not Cause.FORGED
            cause = Cause.PROCESS if own else failure.cause  # its peers have what it fails to begin with
            self._follow_loss(attempt, member, self._record.scheme.lost(member, cause), failure)
        else:
            self._fail(failure)

    def _suspected(self, attempt: AttemptRun, by: Member, said: Suspects) -> None:
        """Ask the scheme what it means that a member cannot reach another one."""
        suspected, reason = Member(said.partition, said.of), f"member {by} does not reach it: {said.reason}"
        failure = Failure(attempt.incarnation, Cause.CHANNEL, reason, said.partition)
        if self._joins.is_joining(suspected):
            self._joins.hindered(reason)
            return
        if not attempt.takes_epochs:
            self._fail(failure)
            return
        verdict = self._record.scheme.suspected(by, suspected, said.view)
        if verdict is not None:
            self._follow_loss(attempt, suspected, verdict, failure)

    def _unreachable(self, attempt: AttemptRun, by: Member, said: Unreachable) -> None:
        """Have a partition restart that another one cannot reach, unless it is lost, and this is how that was heard."""

        def judge() -> None:
            if self._closed or self.deployment.attempt is not attempt:
                return
            for worker in attempt.workers_of((said.member,)):
                reason = f"member {by} does not reach it: {said.reason}"
                self._member_failed(worker, Failure(attempt.incarnation, Cause.CHANNEL, reason, said.member.partition))

        self._loop.call_at(self._loop.now() + _UNTIL_HEARD, judge)

    def _follow_loss(
        self, attempt: AttemptRun, member: Member, verdict: Masked | Replaced | Broken, failure: Failure
    ) -> None:
        match verdict:
            case Replaced() if not self._restarts_alone(member, failure):
                self._fail(failure)
            case Replaced(successor):
                self._note(log.PartitionLost(at=means.wall(), member=member, reason=failure.reason))
                for worker in attempt.workers_of((member,)):
                    attempt.lost(worker, successor, self._now())
                self._record.endings.attempt_over()
                self.epochs.contributor_changed(member.partition, absent=True)
            case Broken(collapsed):
                if collapsed is not None:
                    self._note(log.Collapsed(at=means.wall(), partition=collapsed, reason=failure.reason))
                self._fail(failure)
            case Masked(view, moved):
                workers = attempt.workers_of((member,))
                for worker in workers:
                    attempt.left(worker, view)
                left = 0 if view is None else len(view.in_sync)
                at, partition = means.wall(), member.partition
                self._note(log.ReplicaLost(at=at, member=member, reason=failure.reason, left=left))
                if moved and view is not None:
                    self._note(log.PrimaryMoved(at=at, member=Member(partition, view.primary), view=view.number))
                    self.epochs.contributor_changed(partition)
                is_there = any(worker in self._environment.workers.there for worker in workers)
                self._joins.gone(member, failure.reason, is_there=is_there)
                self._end_if_all_have(attempt)

    def _restarts_alone(self, member: Member, failure: Failure) -> bool:
        failures, now = self._record.failures, self._loop.now()
        return failures.restarts_alone(member.partition, failure, now, means.random())

    def _fail(self, failure: Failure) -> None:
        """Do what follows from a failure, unless it is about files that may be damaged: that is looked into first."""
        incarnation, failures = self.epochs.incarnation, self._record.failures
        if failure.incarnation.generation != incarnation.generation or self._looks_into(failure):
            return
        if failure.incarnation == incarnation and not failures.is_planned(incarnation):
            self._record.clock.detected(self._now())
        self._carry_out(failures.failed(failure, self._loop.now(), means.wall(), means.random()))

    def _broken(self, roll_back: events.RollBack) -> None:
        """Time the recovery from the failure that ended the attempt; count the failure unless that was done."""
        record = self._record
        if not record.clock.running:
            record.clock.detected(self._now())
        failures, chance = record.failures, means.random()
        self._carry_out(failures.broken_by_coordinator(roll_back.incarnation, self._loop.now(), means.wall(), chance))
        record.clock.decided(self._now())
        record.restored_age = record.times.age(self._now())
        self._rebalancer.broken()

    def _carry_out(self, consequences: list[Consequence]) -> None:
        for consequence in consequences:
            match consequence:
                case BreakAttempt(failure, pause):
                    self._not_before = self._loop.now() + pause
                    self.epochs.tell(events.AttemptBroken(failure.incarnation, str(failure)))
                case GiveUpJob(error, 0.0):
                    self._over(error)
                case GiveUpJob(error, after):
                    self._loop.call_at(self._loop.now() + after, partial(self._over, error))
                case _:
                    self._note(consequence)

    def _looks_into(self, failure: Failure) -> bool:
        """Return True if a partition cannot be restored for files that may be damaged, which is looked into now."""
        epoch = self._restored
        if failure.cause is not Cause.UNUSABLE or self.epochs.is_running:
            return False
        files, store = files_in_doubt(failure.reason, self.tree.manifest(epoch)), self._environment.store
        if files and not self._in_doubt:
            self._in_doubt = True
            looked = partial(self._looked_into, failure, epoch)
            self._environment.threads.aside.submit(lambda: faults_of(store, files), looked)
        return bool(files)

    def _looked_into(self, failure: Failure, epoch: Epoch | None, faults: Mapping[str, str] | BaseException) -> None:
        self._in_doubt = False
        if self._closed or self.epochs.is_running or epoch != self._restored:
            return
        if isinstance(faults, Mapping) and faults:
            self._stand_down(failure, faults)
            return
        why = "as it was written" if isinstance(faults, Mapping) else f"not: {type(faults).__name__}: {faults}"
        reason = f"{failure.reason}; the driver reads it {why}"
        self._fail(replace(failure, cause=Cause.RESOURCE, reason=reason))

    def _stand_down(self, failure: Failure, faults: Mapping[str, str]) -> None:
        """End the attempt, and have the job claimed anew, as a start does that finds an epoch damaged."""
        self._in_doubt = True  # what else this epoch's partitions say changes nothing
        why, incarnation, clock = "files of the epoch are damaged", self.epochs.incarnation, self._record.clock
        self._note(worker_events.damaged(failure))
        clock.detected(self._now())
        clock.decided(self._now())
        self._record.failures.planned(incarnation)
        self._environment.workers.send_all(StandDown(incarnation, why))
        self.deployment.close()
        self.epochs.tell(events.AttemptBroken(incarnation, why))
        self._over(Damaged(faults))

    def _note_recovery(self, *, finally_: bool = False) -> None:
        """Report a recovery that is over; with `finally_`, as far as it has come, also one that is under way."""
        marks = self._record.clock.over(self._now(), finally_=finally_)
        if marks is not None:
            self._note(
                log.Recovered(
                    at=means.wall(),
                    incarnation=self.epochs.incarnation,
                    epoch=self._restored,
                    epoch_age_ms=self._record.restored_age,
                    marks=marks,
                )
            )

    # --- members that come later --------------------------------------------------------------------------------------

    def _may_join(self) -> bool:
        """Return True if epochs are taken, and the job is not about to end."""
        attempt = self.deployment.attempt
        runs = attempt is not None and attempt.takes_epochs and self.epochs.is_running
        return runs and not self._record.endings.is_near

    def _ask_for_epoch(self) -> None:
        self.epochs.tell(events.EpochRequested())

    # --- moves to other executors -------------------------------------------------------------------------------------

    def _moves(self, said: HandOver | log.Moved | log.WorkerLost) -> None:
        match said:
            case HandOver(worker, partition):
                incarnation = self.epochs.incarnation
                self._record.failures.planned(incarnation)
                self.deployment.hand_over(partition, worker)
                reason = f"partition {partition} moves to another executor"
                self.epochs.tell(events.AttemptBroken(incarnation, reason))
            case log.Moved() | log.WorkerLost():
                self._note(said)

    def _may_move(self) -> bool:
        """Return True if the job runs, no recovery is timed any more, and no end or savepoint is wanted."""
        endings, savepoints = self._record.endings, self._record.savepoints
        wished = endings.stopping or endings.draining or endings.wanted() is not None or savepoints.wanted
        return self.epochs.is_running and not self._record.clock.running and not wished

    # --- in short -----------------------------------------------------------------------------------------------------

    def _note(self, event: log.AnyEvent) -> None:
        self._environment.reporting.event(event)

    def _now(self) -> float:
        return self._loop.now() * 1000
