"""Handle a failure: the attempt is broken, every partition rolls back, and lost processes are replaced.

Invariant: what follows from a failure is decided by `Failures` alone, and carried out here. Files that a
partition calls damaged are read by the driver first: if they are, the job is claimed anew, and goes back further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from recovery.decisions.restarts import Cause, Failure
from recovery.driver.attempts.coordinator_loop import CoordinatorLoop
from recovery.driver.attempts.deployment import Deployment
from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.failures import BreakAttempt, Consequence, GiveUpJob
from recovery.driver.report import worker_events
from recovery.driver.tree.damage import faults_of, files_in_doubt
from recovery.driver.tree.owned import Tree
from recovery.events import Recovered
from snapshot.epochs import coordinator_events as events
from snapshot.host.protocol.messages import StandDown
from statebackend import means
from statebackend.ids import Epoch


@dataclass(frozen=True, slots=True)
class Damaged:
    """Files of the epoch that was to be restored are not as they were written: a claim finds another epoch."""

    faults: Mapping[str, str]


class Rollback:
    """The failures of one generation. All calls come in the loop's thread.

    `over` is told that the job has failed for good, or that it is to be claimed anew.
    """

    def __init__(
        self,
        environment: Environment,
        record: JobRecord,
        tree: Tree,
        coordinator: CoordinatorLoop,
        deployment: Deployment,
        over: Callable[[Exception | Damaged], object],
    ) -> None:
        self._environment = environment
        self._loop = environment.loop
        self._record = record
        self._tree = tree
        self._coordinator = coordinator
        self._deployment = deployment
        self._over = over
        self._in_doubt = False
        """Files of the epoch are being looked at, or were found damaged."""
        self._closed = False
        self.restored_epoch: Epoch | None = None
        """From which epoch the attempt goes on; None for the beginning."""

    def fail(self, failure: Failure) -> None:
        """Do what follows from a failure, unless it is about files that may be damaged: that is looked into first."""
        incarnation, failures = self._coordinator.incarnation, self._record.failures
        if failure.incarnation.generation != incarnation.generation or self._looks_into(failure):
            return
        if failure.incarnation == incarnation and not failures.is_planned(incarnation):
            self._record.clock.detected(self._now())
        self._follow(failures.failed(failure, self._loop.now(), means.wall(), means.random()))

    def broken(self, roll_back: events.RollBack) -> None:
        """Time the recovery from the failure that ended the attempt; count the failure unless that was done."""
        record, next_one = self._record, roll_back.incarnation
        if not record.clock.running:
            record.clock.detected(self._now())
        self._follow(record.failures.broken_by_coordinator(next_one, self._loop.now(), means.wall(), means.random()))
        record.clock.decided(self._now())
        record.restored_age = record.times.age(self._now())

    def note_recovery(self, *, finally_: bool = False) -> None:
        """Report a recovery that is over; with `finally_`, as far as it has come, also one that is under way."""
        marks = self._record.clock.over(self._now(), finally_=finally_)
        if marks is not None:
            self._environment.reporting.event(
                Recovered(
                    at=means.wall(),
                    incarnation=self._coordinator.incarnation,
                    epoch=self.restored_epoch,
                    epoch_age_ms=self._record.restored_age,
                    marks=marks,
                )
            )

    def close(self) -> None:
        """Look into nothing any more: the generation is over."""
        self._closed = True

    def _follow(self, consequences: list[Consequence]) -> None:
        for consequence in consequences:
            match consequence:
                case BreakAttempt(failure, pause):
                    self._deployment.wait_until(self._loop.now() + pause)
                    self._coordinator.tell(events.AttemptBroken(failure.incarnation, str(failure)))
                case GiveUpJob(error, 0.0):
                    self._over(error)
                case GiveUpJob(error, after):
                    self._loop.call_at(self._loop.now() + after, partial(self._over, error))
                case _:
                    self._environment.reporting.event(consequence)

    def _looks_into(self, failure: Failure) -> bool:
        """Return True if a partition cannot be restored for files that may be damaged, which is looked into now."""
        epoch = self.restored_epoch
        if failure.cause is not Cause.UNUSABLE or self._coordinator.is_running:
            return False
        files, store = files_in_doubt(failure.reason, self._tree.manifest(epoch)), self._environment.store
        if files and not self._in_doubt:
            self._in_doubt = True
            looked = partial(self._looked_into, failure, epoch)
            self._environment.threads.aside.submit(lambda: faults_of(store, files), looked)
        return bool(files)

    def _looked_into(self, failure: Failure, epoch: Epoch | None, faults: Mapping[str, str] | BaseException) -> None:
        self._in_doubt = False
        if self._closed or self._coordinator.is_running or epoch != self.restored_epoch:
            return
        if isinstance(faults, Mapping) and faults:
            self._stand_down(failure, faults)
            return
        why = "as it was written" if isinstance(faults, Mapping) else f"not: {type(faults).__name__}: {faults}"
        reason = f"{failure.reason}; the driver reads it {why}"
        self.fail(replace(failure, cause=Cause.RESOURCE, reason=reason))

    def _stand_down(self, failure: Failure, faults: Mapping[str, str]) -> None:
        """End the attempt, and have the job claimed anew, as a start does that finds an epoch damaged."""
        self._in_doubt = True  # what else this epoch's partitions say changes nothing
        why, incarnation, clock = "files of the epoch are damaged", self._coordinator.incarnation, self._record.clock
        self._environment.reporting.event(worker_events.damaged(failure))
        clock.detected(self._now())
        clock.decided(self._now())
        self._record.failures.planned(incarnation)
        self._environment.workers.send_all(StandDown(incarnation, why))
        self._deployment.close()
        self._coordinator.tell(events.AttemptBroken(incarnation, why))
        self._over(Damaged(faults))

    def _now(self) -> float:
        return self._loop.now() * 1000
