"""A job that is claimed: what its processes say goes to the coordinator, and what that says is carried out.

Invariant: it contains no rule of the protocol. An event is handled, and all that follows from it said, before
the next one is looked at. There is one of these for each claim, with all that exists only after it; after `close`
nothing happens any more.
"""

from __future__ import annotations

from collections.abc import Callable

from recovery import events as log
from recovery.decisions.restarts import Cause, Failure
from recovery.driver.attempts.coordinator_loop import CoordinatorLoop, Event, Instruction
from recovery.driver.attempts.deployment import Deployed, Deployment, Overtaken
from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.failures import JobFailed, before, failure_of
from recovery.driver.attempts.placement import HandOver
from recovery.driver.attempts.rebalancer import Rebalancer
from recovery.driver.attempts.requests import End
from recovery.driver.attempts.run import AttemptRun
from recovery.driver.attempts.standbys import Standbys
from recovery.driver.claim import Start
from recovery.driver.epochs import Epochs
from recovery.driver.housekeeping import Housekeeping, Orphans
from recovery.driver.report import worker_events
from recovery.driver.rollback import Damaged, Rollback
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.manifests import all_transactions_in
from recovery.driver.tree.owned import FencedOff
from snapshot import fail_points
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator
from snapshot.fail_points import reached
from snapshot.host.protocol.messages import (
    Acknowledgement,
    AllEnded,
    CannotCommit,
    CommitPutOff,
    Declining,
    Delivery,
    Drain,
    Failed,
    Figures,
    FirstOutput,
    Followed,
    HasCommitted,
    Hello,
    Restored,
    WantsSplit,
)
from snapshot.journal.state import JournalState
from statebackend import means
from statebackend.ids import Incarnation, Partition

OfAttempt = Restored | FirstOutput | WantsSplit | AllEnded | Figures
FromPartition = Acknowledgement | HasCommitted | Declining | CannotCommit | CommitPutOff | Delivery | Failed | OfAttempt


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
        note, deleting = environment.reporting.event, environment.threads.deleting
        self._began_at = int(loop.now() * 1000)
        coordinator = Coordinator[Acknowledgement](
            settings.options.coordinator,
            start.generation,
            now=self._began_at,
            complete=start.epoch,
            last_number=tree.state.newest_complete.number,
            uncommitted=start.replay,
        )
        self._coordinator = CoordinatorLoop(loop, coordinator, self._carry_out, environment.trace)
        self._standbys = Standbys(settings, environment.workers, tree, environment.reporting.trouble)
        self.deployment = Deployment(settings, environment, record, tree, start.found, self._standbys, self._deployed)
        self._rollback = Rollback(environment, record, tree, self._coordinator, self.deployment, over)
        self._rebalancer = Rebalancer(
            settings, environment, self._standbys, self.deployment, self._may_move, self._moves
        )
        self._housekeeping = Housekeeping(settings, loop, deleting, tree, note, self._compacted)
        self._epochs = Epochs(
            settings,
            environment,
            record,
            tree,
            tree.manifest(start.epoch),
            self._coordinator,
            self.deployment,
            self._standbys,
            self._housekeeping,
            self._over,
        )
        self._orphans = Orphans(loop, deleting, tree, lambda: self.journal, note)
        self._closed = False

    def begin(self) -> None:
        """Go on from the epoch that was found when the job was claimed."""
        start, trace, state = self._start, self._environment.trace, self.tree.state
        if start.epoch is not None:
            self._standbys.completed(start.epoch)
        if start.epoch not in start.replay:  # the journal says that all it names is committed
            self._environment.deliveries.delivered(all_transactions_in(self.tree.manifest(start.epoch)))
        if trace is not None:
            last_number = state.newest_complete.number
            options = self._settings.options.coordinator
            trace.begin(options, start.generation, self._began_at, start.epoch, last_number, start.replay)
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
        self._roll_back(events.RollBack(start.epoch, self._coordinator.incarnation, confirm_first=False))
        self._housekeeping.take_up(state)
        self._coordinator.tell()

    @property
    def journal(self) -> JournalState:
        """Return what the journal has said last."""
        return self._epochs.journal

    def request(self, request: events.SavepointRequested | events.EpochRequested) -> None:
        """Ask the coordinator for an epoch."""
        self._coordinator.tell(request)

    def drain(self) -> None:
        """Let all sources end where they are, if the attempt runs."""
        if self._coordinator.is_running and self.deployment.attempt is not None:
            self.deployment.attempt.send_all(Drain(self._coordinator.incarnation))

    def close(self) -> None:
        """Do nothing any more: the generation is over."""
        self._closed = True
        for part in (
            self._coordinator,
            self._epochs,
            self._rollback,
            self.deployment,
            self._housekeeping,
            self._orphans,
            self._rebalancer,
        ):
            part.close()

    def end(self) -> None:
        """Do nothing any more, as the job is over; report a recovery that is under way, as far as it has come."""
        self.close()
        self._rollback.note_recovery(finally_=True)

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def _carry_out(self, instruction: Instruction, because: Event) -> None:
        match instruction:
            case events.Trigger():
                self._epochs.trigger(instruction, because)
            case events.Publish():
                self._epochs.publish(instruction)
            case events.Complete(epoch):
                self._epochs.complete(epoch)
            case events.RecordCommitted(epoch):
                self._epochs.record_committed(epoch)
            case events.RemoveOlder():
                self._epochs.remove(instruction)
            case events.Abandon():
                self._epochs.abandon(instruction)
            case events.Skipped(reason):
                if reason is not events.SkipReason.NOT_RUNNING:
                    self._note(log.EpochSkipped(at=means.wall(), reason=reason.value))
            case events.RollBack():
                if not self._record.failures.is_planned(before(instruction.incarnation)):
                    self._rollback.broken(instruction)
                    self._rebalancer.broken()
                if not self._closed:
                    self._roll_back(instruction)
            case events.Stop(reason):
                self._over(FencedOff(because.by) if isinstance(because, events.Fenced) else JobFailed(reason))

    # --- what the parts say -------------------------------------------------------------------------------------------

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
                    )
                )
            case Overtaken(by):
                self._coordinator.tell(events.Fenced(by))

    def _moves(self, said: HandOver | log.Moved | log.WorkerLost) -> None:
        match said:
            case HandOver(worker, partition):
                incarnation = self._coordinator.incarnation
                self._record.failures.planned(incarnation)
                self.deployment.hand_over(partition, worker)
                reason = f"partition {partition} moves to another executor"
                self._coordinator.tell(events.AttemptBroken(incarnation, reason))
            case log.Moved() | log.WorkerLost():
                self._note(said)

    def _may_move(self) -> bool:
        """Return True if the job runs, no recovery is timed any more, and no end or savepoint is wanted."""
        endings, savepoints = self._record.endings, self._record.savepoints
        wished = endings.stopping or endings.draining or endings.wanted() is not None or savepoints.wanted
        return self._coordinator.is_running and not self._closed and not self._record.clock.running and not wished

    def _compacted(self, up_to: int) -> None:
        self._epochs.compacted(up_to)

    # --- processes ----------------------------------------------------------------------------------------------------

    def appeared(self) -> None:
        """Take in a process that is there, and free."""
        self.deployment.deploy_if_possible()
        self._rebalancer.appeared()
        if self.deployment.attempt is not None:
            self._standbys.look(self.deployment.roles)

    def wants(self, hello: Hello) -> bool:
        """Take a process that was launched to see where there is room; return True if it is to stay."""
        return self._rebalancer.wants(hello)

    def lost(self, worker: str, partition: Partition | None, reason: str, *, silent: bool) -> None:
        """Fail the attempt if the process that is not there any more had a partition."""
        self._standbys.lost(worker)
        if partition is not None and self.deployment.attempt is not None:
            cause = Cause.SILENT if silent else Cause.PROCESS
            why = f"{worker} is lost: {reason}"
            self._rollback.fail(Failure(self.deployment.attempt.incarnation, cause, why, partition))
        self._rebalancer.lost(worker)

    def followed(self, worker: str, message: Followed) -> None:
        """Take the answer of a process that stands by."""
        self._standbys.followed(worker, message)
        self._rebalancer.look()

    def reported(self, message: FromPartition) -> None:
        """Act on a partition's message."""
        match message:
            case Acknowledgement():
                self._epochs.acknowledged(message)
            case HasCommitted(incarnation, partition):
                self._epochs.has_committed(message)
                attempt = self.deployment.attempt
                if self._is_current(incarnation) and attempt is not None and attempt.committed(partition):
                    self._take_epochs(attempt)
            case Declining(incarnation, partition, epoch, reason):
                self._coordinator.tell(events.Declined(epoch, incarnation, partition, reason))
            case CannotCommit(incarnation, partition, epoch, uid, reason):
                self._coordinator.tell(events.CommitFailed(epoch, incarnation, partition, f"{uid}: {reason}"))
            case CommitPutOff():
                if self._is_current(message.incarnation):
                    self._note(worker_events.put_off(message))
            case Delivery():
                if self._is_current(message.incarnation):
                    self._environment.deliveries.add(message)
            case Failed():
                self._rollback.fail(failure_of(message))
            case Restored() | FirstOutput() | WantsSplit() | AllEnded() | Figures():
                attempt = self.deployment.attempt
                if self._is_current(message.incarnation) and attempt is not None:
                    self._of_attempt(attempt, message)

    def _of_attempt(self, attempt: AttemptRun, message: OfAttempt) -> None:
        clock = self._record.clock
        match message:
            case Restored(_, partition, downloaded_ms):
                clock.restored(self._now(), downloaded_ms)
                self._note(worker_events.restored(message))
                if attempt.restored(partition):
                    self._all_restored(attempt)
            case FirstOutput():
                clock.first_output(self._now())
                self._rollback.note_recovery()
            case WantsSplit(_, partition, uid):
                attempt.wanted(partition, uid)
            case AllEnded(_, partition):
                if attempt.ended(partition):
                    self._coordinator.tell(self._record.endings.all_ended())
            case Figures(partition=partition, memory_bytes=memory, lag_ms=lag):
                self._record.memory[partition] = memory
                known = {uid: stage.window for uid, stage in message.stages.items() if stage.window}
                self._record.windows.setdefault(partition, {}).update(known)
                clock.lag(self._now(), partition, lag)
                self._rollback.note_recovery()
                self._environment.reporting.figures(message)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _roll_back(self, roll_back: events.RollBack) -> None:
        self._record.endings.attempt_over()
        self._rollback.restored_epoch = roll_back.epoch
        self._orphans.attempt_over()
        self.deployment.roll_back(roll_back)

    def _all_restored(self, attempt: AttemptRun) -> None:
        attempt.started()
        self._record.clock.opened(self._now())
        self._note(log.Running(at=means.wall(), incarnation=attempt.incarnation))
        self._orphans.attempt_runs(attempt.incarnation)
        if attempt.waits_for_commits:
            reason = "output of other partitions is committed first; if that lasts, see whether the targets are there"
            self._environment.reporting.trouble("taking epochs", reason)
        else:
            self._take_epochs(attempt)
        self._rebalancer.runs(self._rollback.restored_epoch)

    def _take_epochs(self, attempt: AttemptRun) -> None:
        if self._record.endings.draining:
            attempt.send_all(Drain(attempt.incarnation))
        self._coordinator.tell(events.AttemptStarted(attempt.incarnation, frozenset(attempt.deployed.values())))
        self._epochs.ask_for_what_is_wanted()

    # --- in short -----------------------------------------------------------------------------------------------------

    def _is_current(self, incarnation: Incarnation) -> bool:
        return incarnation == self._coordinator.incarnation

    def _note(self, event: log.AnyEvent) -> None:
        self._environment.reporting.event(event)

    def _now(self) -> float:
        return self._loop.now() * 1000
