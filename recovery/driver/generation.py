"""One generation of a job in the real driver, from its claim to its end; and the next, if its epoch is damaged.

What always holds: it contains no rule of the protocol. What happens is fed to the coordinator, and what that says is
done; what the store is told goes through the tree's one thread, in order. An event is handled, and all that follows
from it said, before the next one is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from recovery import events as log
from recovery.decisions import notes
from recovery.decisions.restarts import Cause, Failure, RestartLimit
from recovery.driver.attempts.coordinator_loop import Event, Feeder, Instruction
from recovery.driver.attempts.deaths import Deaths
from recovery.driver.attempts.deployment import Deployment
from recovery.driver.attempts.failures import Failures, JobFailed, before, failure_of
from recovery.driver.attempts.rebalancer import Spreader
from recovery.driver.attempts.recovery_clock import RecoveryClock
from recovery.driver.attempts.run import AttemptRun
from recovery.driver.attempts.standbys import Standbys
from recovery.driver.attempts.termination import End, Endings, of_no_use
from recovery.driver.attempts.workers import Workers
from recovery.driver.claim import Start, claim
from recovery.driver.housekeeping import Housekeeping
from recovery.driver.launchers.launch import Scouting, TellsExitCodes
from recovery.driver.remote.savepoints import Answer, SavepointWishes
from recovery.driver.report import worker_events
from recovery.driver.report.deliveries import Deliveries
from recovery.driver.report.epoch_times import EpochTimes
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.damage import faults_of, files_in_doubt
from recovery.driver.tree.identity import naming_checkpoints
from recovery.driver.tree.manifests import DriversPart, all_transactions_in, key_types_of, positions_in
from recovery.driver.tree.orphans import Orphans
from recovery.driver.tree.owned import FencedOff, JournalInDoubt, Removal, Tree
from recovery.driver.tree.publications import Publications
from recovery.driver.tree.store_watch import watched_patience
from snapshot import fail_points
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.epochs.trace import TraceWriter
from snapshot.fail_points import reached
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.protocol.messages import (
    Acknowledgement,
    AllEnded,
    CannotCommit,
    CannotHear,
    CommitPutOff,
    Declining,
    Delivery,
    Drain,
    EpochIsOver,
    Failed,
    Figures,
    FirstOutput,
    Followed,
    FromWorker,
    HasCommitted,
    Hello,
    Injected,
    Leave,
    Refusal,
    Restored,
    Stalled,
    StandDown,
    StateRead,
    TriggerEpoch,
    WantsSplit,
)
from snapshot.tree.manifest import Manifest
from statebackend.ids import Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.store import BlobStore

_ASK_AGAIN: Final = 1.0
"""Seconds until an epoch that is wanted is asked for again after it was given up."""


class Observer(Protocol):
    """Who is told what happens, in the loop's thread; must return at once."""

    def event(self, event: log.AnyEvent) -> None:
        """Take note of an event."""

    def figures(self, figures: Figures) -> None:
        """Take a partition's figures."""

    def followed(self, worker: str, followed: Followed) -> None:
        """Take the answer of a process that stands by."""

    def ended(self, end: End | Exception) -> None:
        """Take note that the generation is over; nothing follows."""


class Threads:
    """What is done beside the loop, apart from each other: what one kind of work waits for holds up no other."""

    def __init__(self, loop: EventLoop) -> None:
        self.in_order = Background(loop, 1, "journal")
        self.confirming = Background(loop, 1, "claim")
        self.aside = Background(loop, 4, "aside")
        """For targets and sources."""
        self.deleting = Background(loop, 16, "deleting")
        """Hundreds of files may go with each epoch, each of which takes an object store tens of milliseconds."""

    def close(self) -> None:
        """Begin nothing more, and wait for nothing that is being done."""
        for each in (self.in_order, self.confirming, self.aside, self.deleting):
            each.close()


@dataclass(frozen=True, slots=True)
class Means:
    """What a generation works with."""

    loop: EventLoop
    store: BlobStore
    threads: Threads
    workers: Workers
    deliveries: Deliveries
    observer: Observer
    trace: TraceWriter | None = None
    scouting: Scouting | None = None
    exit_codes: TellsExitCodes | None = None


class GenerationRun:
    """The job in the hands of this driver. All calls come in the loop's thread."""

    def __init__(self, settings: JobSettings, means: Means) -> None:
        self._settings = settings
        self._means = means
        self._loop = means.loop
        self._coordinator: Coordinator[Acknowledgement] | None = None
        self._tree: Tree | None = None
        self._publications: Publications | None = None
        self._housekeeping: Housekeeping | None = None
        self._orphans: Orphans | None = None
        self._deployment: Deployment | None = None
        self._standbys: Standbys | None = None
        self._spreader: Spreader | None = None
        limit = RestartLimit(settings.scheme.restarts, settings.scheme.poisoned_after)
        self._failures = Failures(limit, means.loop, self)
        self._patience = watched_patience(settings.store_patience / 1000, means.loop, self._note)
        self._feeder: Feeder | None = None
        self._deaths = Deaths(means.loop, means.exit_codes, self._failures.died)
        self._endings = Endings()
        self._savepoints = SavepointWishes()
        self._times = EpochTimes()
        self._clock = RecoveryClock()
        self._began: Manifest | None = None
        self._restored_epoch: Epoch | None = None
        self._restored_age: float | None = None
        self._hellos: dict[str, Hello] = {}
        """Of the processes that are there."""
        self._memory: dict[Partition, int] = {}
        self._windows: dict[Partition, dict[Uid, int]] = {}
        self._damaged: dict[str, str] = {}
        """The files that were found not to be as they were written, and what is wrong with them."""
        self._in_doubt = False
        self._ended = False

    # --- claim and decide ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Claim the job; all else follows from that."""
        settings, store, driver = self._settings, self._means.store, str(self._means.workers.address)
        patience, damaged = self._patience, dict(self._damaged)

        def claimed() -> Start:
            with naming_checkpoints(settings.store):
                return claim(store, settings, driver, patience, damaged)

        self._means.threads.in_order.submit(claimed, self._claimed)

    def _claimed(self, outcome: Start | BaseException) -> None:
        if self._ended:
            return
        self._in_doubt = False
        if isinstance(outcome, BaseException):
            self._end(outcome if isinstance(outcome, Exception) else RuntimeError(str(outcome)))
            return
        self._tree = outcome.tree
        self._began = outcome.tree.manifest(outcome.epoch)
        means = self._means
        self._standbys = Standbys(self._settings, means.workers, outcome.tree, self._trouble)
        if outcome.epoch is not None:
            self._standbys.completed(outcome.epoch)
        self._spreader = Spreader(self._settings, means.loop, means.workers, means.scouting, self._standbys, self)
        self._deployment = Deployment(
            self._settings,
            means.workers,
            means.loop,
            means.threads.aside,
            means.threads.confirming,
            outcome.tree,
            outcome.found,
            self,
            self._trouble,
            self._standbys,
        )
        most_inline = self._settings.inline_broadcast
        self._publications = Publications(outcome.tree, means.threads.in_order, most_inline, self)
        self._housekeeping = Housekeeping(
            self._settings, means.loop, means.threads.deleting, outcome.tree, self._note, self._publications.compacted
        )
        state = outcome.tree.state
        publications = self._publications
        self._orphans = Orphans(
            means.loop, means.threads.deleting, outcome.tree, lambda: publications.journal, self._note
        )
        options = self._settings.coordinator
        last_number, now = state.newest_complete.number, self._now()
        if outcome.epoch not in outcome.replay:  # the journal says that all it names is committed
            self._means.deliveries.delivered(all_transactions_in(outcome.tree.manifest(outcome.epoch)))
        self._coordinator = Coordinator(
            options,
            outcome.generation,
            now=now,
            complete=outcome.epoch,
            last_number=last_number,
            uncommitted=outcome.replay,
        )
        self._feeder = Feeder(self._loop, self._coordinator, self._carry_out, self._means.trace)
        if self._means.trace is not None:
            self._means.trace.begin(options, outcome.generation, now, outcome.epoch, last_number, outcome.replay)
        self._note(
            log.Claimed(
                at=time.time(),
                job=self._settings.job,
                generation=outcome.generation,
                restores=outcome.epoch,
                skipped=outcome.skipped,
                repeats=outcome.repeats.epochs,
            )
        )
        reached(fail_points.CLAIMED)
        self._roll_back(events.RollBack(outcome.epoch, self._coordinator.incarnation, confirm_first=False))
        self._housekeeping.take_up(state)
        self._feeder.feed()

    @property
    def is_claimed(self) -> bool:
        """True if the job was claimed, and can go on from what is in its tree."""
        return self._tree is not None

    # --- what the user wishes -----------------------------------------------------------------------------------------

    def savepoint(self, answer: Answer) -> None:
        """Take a savepoint; `answer` gets its epoch, or why there will be none; at once if the job is over."""
        self._savepoints.add(answer)
        self._tell(events.SavepointRequested())

    def stop(self, *, savepoint: bool) -> None:
        """Stop after one more epoch."""
        self._tell(self._endings.stop(savepoint=savepoint))

    def drain(self) -> None:
        """Let all sources end where they are, and then the job."""
        self._endings.draining = True
        if self._is_running:
            self._send_all(Drain(self._incarnation))

    def check_processes(self, seconds: float) -> None:
        """End the job if too few processes have come for a first attempt; report other waits.

        So much time has passed since the start, or since this was last called.
        """
        if self._ended:
            return
        there, needed = len(self._means.workers.there), self._settings.parallelism
        deployment = self._deployment
        if there < needed and (deployment is None or not deployment.ever):
            self._end(
                JobFailed(
                    f"only {there} of {needed} processes have come in {seconds:g} s; is the driver's address "
                    f"{self._means.workers.address} reachable from them, is this package installed for their Python, "
                    "and has the cluster enough free task slots?"
                )
            )
        elif deployment is None:
            why = "its processes are there, and the store, or a source that looks for its splits, has not answered yet"
            self._note(log.Trouble(at=time.time(), what="starting the job", reason=why))
        elif (since := deployment.short_since) is not None and (waited := self._loop.now() - since) >= seconds:
            why = f"only {there} of {needed} are there since {waited:.0f} s, and the job waits for the others"
            self._note(log.Trouble(at=time.time(), what="the job's processes", reason=why))

    def cannot_go_on(self, why: str) -> None:
        """End the job, as no process will ever be started again."""
        epochs = () if self._publications is None else self._publications.journal.usable
        goes_on = f"goes on from epoch {epochs[-1].epoch}" if epochs else "begins anew"
        self._end(JobFailed(f"{why}; started again, the job {goes_on}"))

    def cancel(self, error: Exception) -> None:
        """End the job at once, with this error."""
        self._end(error)

    # --- deploy -------------------------------------------------------------------------------------------------------

    def _roll_back(self, roll_back: events.RollBack) -> None:
        self._endings.attempt_over()
        self._restored_epoch = roll_back.epoch
        if self._orphans is not None:
            self._orphans.attempt_over()
        if self._deployment is not None:
            self._deployment.roll_back(roll_back)

    def deployed(self, attempt: AttemptRun, roll_back: events.RollBack) -> None:
        """Note in the log, and for the recovery's times, that the attempt is deployed."""
        self._clock.restarted(self._now_ms(), len(attempt.deployed))
        self._note(
            log.Deployed(
                at=time.time(),
                incarnation=roll_back.incarnation,
                epoch=roll_back.epoch,
                workers=tuple(attempt.deployed),
            )
        )

    def overtaken(self, by: Generation) -> None:
        """Tell the coordinator that a newer generation has claimed the job."""
        self._tell(events.Fenced(by))

    # --- what happens -------------------------------------------------------------------------------------------------

    def appeared(self, hello: Hello) -> None:
        """Take in a process that is there, and free; after the end, send it away."""
        if self._ended:
            self._means.workers.send(hello.worker, Leave("the job has ended"))
            return
        self._hellos[hello.worker] = hello
        self._note(worker_events.joined(hello))
        if self._deployment is not None:
            self._deployment.deploy_if_possible()
        if self._spreader is not None:
            self._spreader.appeared()
        if self._standbys is not None and self._attempt is not None:
            self._standbys.look(self._attempt.deployed)

    def lost(self, worker: str, reason: str, *, silent: bool, unusable: bool) -> None:
        """Report a process that is not there any more, and fail the attempt if it had a partition."""
        if self._ended:  # it was told to leave
            return
        if self._standbys is not None:
            self._standbys.lost(worker)
        partition = None if self._deployment is None else self._deployment.partition_of(worker)
        self._note(log.WorkerLost(at=time.time(), worker=worker, partition=partition, reason=reason))
        hello = self._hellos.pop(worker, None)
        if partition is not None and hello is not None and not silent:
            self._failures.lost(partition)
            words = self._means.workers.take_words(worker)
            memory = self._memory.get(partition, 0)
            self._deaths.lost(hello, partition, reason, memory, words, unusable=unusable)
        if partition is not None and self._attempt is not None:
            why = f"{worker} is lost: {reason}"
            cause = Cause.SILENT if silent else Cause.PROCESS
            self._fail(Failure(self._attempt.incarnation, cause, why, partition))
        if self._spreader is not None:
            self._spreader.lost(worker)

    def refused(self, peer: str, reason: str) -> None:
        """Report a peer that was turned away at the driver's port."""
        self._note(log.PeerRefused(at=time.time(), worker=None, peer=peer, reason=reason))

    def reported(self, worker: str, message: FromWorker) -> None:
        """Act on a process's message."""
        if self._ended:
            return
        match message:
            case Acknowledgement(incarnation=incarnation, partition=partition, epoch=epoch):
                if self._is_current(incarnation):
                    self._times.acknowledged(message, self._now_ms())
                has = message.has_committables
                self._tell(events.Acknowledged(epoch, incarnation, partition, message, has))
            case HasCommitted(incarnation, partition, epoch):
                self._tell(events.Committed(epoch, incarnation, partition))
                if self._is_current(incarnation) and self._attempt is not None and self._attempt.committed(partition):
                    self._take_epochs(self._attempt)
            case Declining(incarnation, partition, epoch, reason):
                self._tell(events.Declined(epoch, incarnation, partition, reason))
            case CannotCommit(incarnation, partition, epoch, uid, reason):
                self._tell(events.CommitFailed(epoch, incarnation, partition, f"{uid}: {reason}"))
            case CommitPutOff():
                if self._is_current(message.incarnation):
                    self._note(worker_events.put_off(message))
            case Failed():
                self._fail(failure_of(message))
            case Refusal(peer, reason):
                self._note(log.PeerRefused(at=time.time(), worker=worker, peer=peer, reason=reason))
            case Followed():
                self._means.observer.followed(worker, message)
                if self._standbys is not None and self._spreader is not None:
                    self._standbys.followed(worker, message)
                    self._spreader.look()
            case Stalled():
                self._note(worker_events.stalled(message))
            case Delivery():
                if self._is_current(message.incarnation):
                    self._means.deliveries.add(message)
            case Hello() | CannotHear() | Injected() | StateRead():
                raise TypeError(f"{type(message).__name__} is not for the job")
            case Restored() | FirstOutput() | WantsSplit() | AllEnded() | Figures():
                if self._is_current(message.incarnation) and self._attempt is not None:
                    self._of_attempt(self._attempt, message)

    def _of_attempt(
        self, attempt: AttemptRun, message: Restored | FirstOutput | WantsSplit | AllEnded | Figures
    ) -> None:
        match message:
            case Restored(_, partition, downloaded_ms):
                self._clock.restored(self._now_ms(), downloaded_ms)
                self._note(worker_events.restored(message))
                if attempt.restored(partition):
                    self._all_restored(attempt)
            case FirstOutput():
                self._clock.first_output(self._now_ms())
                self._note_recovery()
            case WantsSplit(_, partition, uid):
                attempt.wanted(partition, uid)
            case AllEnded(_, partition):
                if attempt.ended(partition):
                    self._tell(self._endings.all_ended())
            case Figures(partition=partition, memory_bytes=memory, lag_ms=lag):
                self._memory[partition] = memory
                known = {uid: stage.window for uid, stage in message.stages.items() if stage.window}
                self._windows.setdefault(partition, {}).update(known)
                self._clock.lag(self._now_ms(), partition, lag)
                self._note_recovery()
                self._means.observer.figures(message)

    def _all_restored(self, attempt: AttemptRun) -> None:
        attempt.started()
        self._clock.opened(self._now_ms())
        self._note(log.Running(at=time.time(), incarnation=attempt.incarnation))
        if self._orphans is not None:
            self._orphans.attempt_runs(attempt.incarnation)
        if attempt.waits_for_commits:
            reason = "output of other partitions is committed first; if that lasts, see whether the targets are there"
            self._note(log.Trouble(at=time.time(), what="taking epochs", reason=reason))
        else:
            self._take_epochs(attempt)
        if self._spreader is not None:
            self._spreader.runs(self._restored_epoch)

    def _take_epochs(self, attempt: AttemptRun) -> None:
        if self._endings.draining:
            self._send_all(Drain(attempt.incarnation))
        self._tell(events.AttemptStarted(attempt.incarnation, frozenset(attempt.deployed.values())))
        self._ask_for_what_is_wanted()

    # --- moves to other executors -------------------------------------------------------------------------------------

    def wants(self, hello: Hello) -> bool:
        """Take a process that was launched to see where there is room; return True if it is to stay."""
        return not self._ended and self._spreader is not None and self._spreader.wants(hello)

    @property
    def roles(self) -> Mapping[str, Partition]:
        """Return which process has which partition; empty if no attempt is deployed."""
        return {} if self._attempt is None else self._attempt.deployed

    @property
    def may_move(self) -> bool:
        """True if the job runs, no recovery is timed any more, and no end or savepoint is wanted."""
        endings = self._endings
        wished = endings.stopping or endings.draining or endings.wanted() is not None or self._savepoints.wanted
        return self._is_running and not self._ended and not self._clock.running and not wished

    def hand_over(self, partition: Partition, worker: str) -> None:
        """Break the attempt as planned, and give the partition to this process in the next one."""
        if self._deployment is None or self._attempt is None:
            raise RuntimeError("nothing runs that could be handed over")
        self._failures.planned(self._attempt.incarnation)
        self._deployment.hand_over(partition, worker)
        reason = f"partition {partition} moves to another executor"
        self._tell(events.AttemptBroken(self._attempt.incarnation, reason))

    # --- failures -----------------------------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        if failure.incarnation.generation == self._incarnation.generation and not self._looks_into(failure):
            if self._is_current(failure.incarnation) and not self._failures.is_planned(failure.incarnation):
                self._clock.detected(self._now_ms())
            self._failures.failed(failure)

    def _looks_into(self, failure: Failure) -> bool:
        """True if a partition cannot be restored for files that may be damaged: whether they are is known later."""
        epoch, tree = self._restored_epoch, self._tree
        if failure.cause is not Cause.UNUSABLE or tree is None or self._is_running:
            return False
        files, store = files_in_doubt(failure.reason, tree.manifest(epoch)), self._means.store
        if files and not self._in_doubt:
            self._in_doubt = True
            looked = partial(self._looked_into, failure, epoch)
            self._means.threads.aside.submit(lambda: faults_of(store, files), looked)
        return bool(files)

    def _looked_into(self, failure: Failure, epoch: Epoch | None, faults: Mapping[str, str] | BaseException) -> None:
        self._in_doubt = False
        if self._ended or self._is_running or epoch != self._restored_epoch:
            return
        if isinstance(faults, Mapping) and faults:
            self._go_back(failure, faults)
            return
        why = "as it was written" if isinstance(faults, Mapping) else f"not: {type(faults).__name__}: {faults}"
        reason = f"{failure.reason}; the driver reads it {why}"
        self._fail(replace(failure, cause=Cause.RESOURCE, reason=reason))

    def _go_back(self, failure: Failure, faults: Mapping[str, str]) -> None:
        """Do what a start of the job does that finds an epoch damaged, with the processes that are there."""
        self._in_doubt = True  # what else this epoch's partitions say changes nothing
        self._damaged |= faults
        self._note(worker_events.damaged(failure))
        self._clock.detected(self._now_ms())
        self._clock.decided(self._now_ms())
        self._failures.planned(self._incarnation)
        self._means.workers.send_all(StandDown(self._incarnation, "files of the epoch are damaged"))
        if self._deployment is not None:
            self._deployment.close()
        self._tell(events.AttemptBroken(self._incarnation, "files of the epoch are damaged"))
        self._close_parts()
        self.begin()

    @property
    def windows(self) -> Mapping[Partition, Mapping[Uid, int]]:
        """Return how many rows each stage let a sender have under way, as its partition last told."""
        return self._windows

    @property
    def suspects(self) -> Collection[Partition]:
        """Return the partitions whose processes have died again and again."""
        return self._failures.suspects

    def note(self, event: log.AnyEvent) -> None:
        """Tell the observer of the event."""
        self._note(event)

    def break_attempt(self, failure: Failure, not_before: float) -> None:
        """Have the coordinator break the attempt, and deploy the next one no earlier than `not_before`."""
        if self._deployment is not None:
            self._deployment.wait_until(not_before)
        self._tell(events.AttemptBroken(failure.incarnation, str(failure)))

    def give_up(self, error: JobFailed) -> None:
        """End the job with this error."""
        self._end(error)

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Tell the coordinator of an event; drop it before the job is claimed, as wishes are asked for when it runs."""
        if self._feeder is not None:
            self._feeder.tell(event)

    def _carry_out(self, instruction: Instruction, event: Event) -> None:
        match instruction:
            case events.Trigger(marker):
                self._trigger(marker.epoch, instruction, event)
            case events.Skipped(reason):
                if reason is not events.SkipReason.NOT_RUNNING:
                    self._note(log.EpochSkipped(at=time.time(), reason=reason.value))
            case events.Abandon():
                self._abandon(instruction)
            case events.Publish():
                noted = notes.Notes(self._settings.program_version, self._times.taken(instruction.epoch))
                self._the_publications.publish(instruction, notes.to_json(noted))
            case events.Complete(epoch):
                self._send_all(EpochIsOver(self._incarnation, epoch, complete=True))
                reached(fail_points.COMPLETE_TOLD)
            case events.RecordCommitted(epoch):
                self._the_publications.record_committed(epoch)
            case events.Subsume(retain, oldest_base):
                self._the_publications.remove(retain, oldest_base)
            case events.RollBack():
                if not self._failures.is_planned(before(instruction.incarnation)):
                    self._broken(instruction)
                if not self._ended:
                    self._roll_back(instruction)
            case events.Stop(reason):
                self._end(FencedOff(event.by) if isinstance(event, events.Fenced) else JobFailed(reason))

    def _broken(self, roll_back: events.RollBack) -> None:
        """Time the recovery from the failure that ended the attempt; count the failure unless that was done."""
        if not self._clock.running:
            self._clock.detected(self._now_ms())
        self._failures.broken_by_coordinator(roll_back.incarnation)
        self._clock.decided(self._now_ms())
        self._restored_age = self._times.age(self._now_ms())
        if self._spreader is not None:
            self._spreader.broken()

    def _trigger(self, epoch: Epoch, trigger: events.Trigger, event: Event) -> None:
        marker, attempt = trigger.marker, self._attempt
        if attempt is None:
            raise RuntimeError(f"epoch {epoch} was triggered while no attempt is deployed")
        settings, now = self._settings, int(time.time() * 1000)
        enumerators, key_types = attempt.enumerators(), key_types_of(settings.plan)
        part = DriversPart(settings.job, settings.plan.max_parallelism, now, enumerators, {}, key_types=key_types)
        self._the_publications.triggered(epoch, part)
        pauses = self._endings.triggered(epoch, savepoint=marker.savepoint, asked_by=event)
        if marker.savepoint:
            self._savepoints.triggered(epoch)
        self._times.triggered(epoch, self._now_ms(), savepoint=marker.savepoint)
        self._send_all(TriggerEpoch(self._incarnation, marker, pauses))
        reached(fail_points.TRIGGER_SENT)
        self._note(log.EpochTriggered(at=time.time(), epoch=epoch, mode=marker.mode.value, savepoint=marker.savepoint))

    def _abandon(self, abandon: events.Abandon) -> None:
        epoch, reason = abandon.epoch, abandon.reason
        self._the_publications.given_up(epoch)
        self._times.given_up(epoch)
        self._savepoints.given_up(epoch)
        if self._endings.given_up(epoch) or self._savepoints.waiting:
            self._loop.call_at(self._loop.now() + _ASK_AGAIN, self._ask_for_what_is_wanted)
        if reason is not events.AbandonReason.ATTEMPT_BROKEN:
            self._send_all(EpochIsOver(self._incarnation, epoch, complete=False))
        self._note(log.EpochAbandoned(at=time.time(), epoch=epoch, reason=reason.value, detail=abandon.detail))

    def _ask_for_what_is_wanted(self) -> None:
        if not self._is_running or self._ended:
            return
        if self._savepoints.waiting:
            self._tell(events.SavepointRequested())
        wanted = self._endings.wanted()
        if wanted is not None:
            self._tell(wanted)

    # --- what the store has done --------------------------------------------------------------------------------------

    def published(self, epoch: Epoch, *, pinned: bool) -> None:
        """Tell all parts of the job of a complete epoch, and end the job if it has reached its end."""
        reached(fail_points.BEFORE_COMPLETE)
        self._failures.completed()
        self._means.deliveries.completed(all_transactions_in(self._the_tree.manifest(epoch)))
        self._note(self._times.completed(epoch, self._now_ms(), time.time()))
        if self._standbys is not None:
            self._standbys.completed(epoch)
        self._tell(events.Published(epoch))
        if pinned:
            self._savepoints.taken(epoch)
        self._end_if_reached()

    def not_published(self, epoch: Epoch, reason: str) -> None:
        """Tell the coordinator that the epoch could not be published."""
        self._tell(events.PublishFailed(epoch, reason))

    def committed(self, epoch: Epoch) -> None:
        """Report a committed epoch, and end the job if it has reached its end."""
        self._note(log.EpochCommitted(at=time.time(), epoch=epoch))
        self._end_if_reached()

    def removed(self, removal: Removal) -> None:
        """Have the files deleted that belonged to the removed epochs alone."""
        if self._housekeeping is not None:
            self._housekeeping.removed(removal, self._the_publications.journal)

    def journal_failed(self, error: BaseException) -> None:
        """Tell the coordinator if another generation has the journal; end the job with any other error."""
        if isinstance(error, FencedOff):
            self._tell(events.Fenced(error.by))
        else:
            self._end(error if isinstance(error, Exception) else RuntimeError(str(error)))

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_if_reached(self) -> None:
        end = self._endings.reached(self._the_publications.journal)
        if end is not None:
            began = self._began
            same = began is not None and positions_in(began) == positions_in(self._the_tree.manifest(end.epoch))
            self._end(replace(end, nothing_since=began.epoch) if began is not None and same else end)

    def _end(self, end: End | Exception) -> None:
        if self._ended:
            return
        self._ended = True
        self._patience.give_up()
        self._deaths.close()
        self._close_parts()
        marks = self._clock.over(self._now_ms(), finally_=True)
        if marks is not None:
            self._note_marks(marks)
        if self._tree is not None and not isinstance(end, FencedOff | JournalInDoubt):
            self._means.threads.in_order.submit(self._tree.note_end, lambda _: None)
        reason = "the job has ended" if isinstance(end, End) else f"the job is over: {end}"
        reached(fail_points.BEFORE_LEAVE)
        self._savepoints.end(end if isinstance(end, Exception) else JobFailed("the job has ended"))
        try:
            self._means.observer.ended(end)
        finally:
            self._means.workers.send_all(
                Leave(reason, of_no_use(end, self._settings.plan))
            )  # only now, as nobody starts them again any more

    def _close_parts(self) -> None:
        for part in (
            self._feeder,
            self._publications,
            self._deployment,
            self._housekeeping,
            self._orphans,
            self._spreader,
        ):
            if part is not None:
                part.close()

    # --- in short -----------------------------------------------------------------------------------------------------

    @property
    def _the_tree(self) -> Tree:
        if self._tree is None:
            raise RuntimeError("the job is not claimed yet")
        return self._tree

    @property
    def _the_publications(self) -> Publications:
        if self._publications is None:
            raise RuntimeError("the job is not claimed yet")
        return self._publications

    @property
    def _attempt(self) -> AttemptRun | None:
        return None if self._deployment is None else self._deployment.attempt

    @property
    def _incarnation(self) -> Incarnation:
        if self._coordinator is None:
            raise RuntimeError("the job is not claimed yet")
        return self._coordinator.incarnation

    @property
    def _is_running(self) -> bool:
        return self._coordinator is not None and self._coordinator.state is CoordinatorState.RUNNING

    def _is_current(self, incarnation: Incarnation) -> bool:
        return self._coordinator is not None and incarnation == self._coordinator.incarnation

    def _now(self) -> int:
        return int(self._loop.now() * 1000)

    def _now_ms(self) -> float:
        return self._loop.now() * 1000

    def _send_all(self, message: TriggerEpoch | EpochIsOver | Drain) -> None:
        if self._attempt is not None:
            self._attempt.send_all(message)

    def _note(self, event: log.AnyEvent) -> None:
        self._means.observer.event(event)

    def _note_recovery(self) -> None:
        marks = self._clock.over(self._now_ms())
        if marks is not None:
            self._note_marks(marks)

    def _note_marks(self, marks: log.Marks) -> None:
        self._note(
            log.Recovered(
                at=time.time(),
                incarnation=self._incarnation,
                epoch=self._restored_epoch,
                epoch_age_ms=self._restored_age,
                marks=marks,
            )
        )

    def _trouble(self, what: str, error: BaseException) -> None:
        self._note(log.Trouble(at=time.time(), what=what, reason=f"{type(error).__name__}: {error}"))
