"""A job in the hands of its driver, from its first claim to its end: being claimed, claimed, perhaps again, and over.

Invariant: what exists in one phase alone is in the object of that phase. The store is told all that must be in
order through one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recovery import events as log
from recovery.decisions.restarts import Death
from recovery.driver.attempts.deaths import Deaths
from recovery.driver.attempts.environment import Environment, JobRecord
from recovery.driver.attempts.requests import Answer, End, of_no_use
from recovery.driver.claim import Start, claim
from recovery.driver.claimed import ClaimedJob, Damaged
from recovery.driver.report.reporting import watched_patience
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.identity import naming_checkpoints
from recovery.driver.tree.owned import FencedOff, JournalInDoubt
from recovery.schemes.rolling_back import GiveUpJob, JobFailed
from snapshot import fail_points
from snapshot.epochs import coordinator_events as events
from snapshot.fail_points import reached
from snapshot.host.protocol.messages import Hello, Leave
from statebackend import means


@dataclass(frozen=True, slots=True)
class Claiming:
    """The job is being claimed for the first time."""


@dataclass(frozen=True, slots=True)
class ClaimingAgain:
    """The job is being claimed once more, as files of an epoch were found damaged; this is what it was before."""

    before: ClaimedJob


@dataclass(frozen=True, slots=True)
class Over:
    """The job is over; `is_claimed` if it can go on from what is in its tree."""

    is_claimed: bool


Phase = Claiming | ClaimingAgain | ClaimedJob | Over


class GenerationRun:
    """The job in the hands of this driver. All calls come in the loop's thread; `ended` is told how it ends, once."""

    def __init__(
        self, settings: JobSettings, environment: Environment, ended: Callable[[End | Exception], object]
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._told_end = ended
        self._record = JobRecord.of(settings)
        self._patience = watched_patience(settings.options.store_patience / 1000, environment.loop, self._note)
        self._deaths = Deaths(environment.loop, environment.exit_codes, self._died)
        self._damaged: dict[str, str] = {}
        """The files that were found not to be as they were written, and what is wrong with them."""
        self._phase: Phase = Claiming()

    # --- phases -------------------------------------------------------------------------------------------------------

    @property
    def claimed(self) -> ClaimedJob | None:
        """Return the job as it is claimed now; None before that, while it is claimed anew, and at its end."""
        return self._phase if isinstance(self._phase, ClaimedJob) else None

    @property
    def is_claimed(self) -> bool:
        """True if the job was claimed, and can go on from what is in its tree."""
        match self._phase:
            case Over(is_claimed):
                return is_claimed
            case Claiming():
                return False
            case ClaimedJob() | ClaimingAgain():
                return True

    def begin(self) -> None:
        """Claim the job; all else follows from that."""
        settings, store, driver = self._settings, self._environment.store, str(self._environment.workers.address)
        patience, damaged = self._patience, dict(self._damaged)

        def claimed() -> Start:
            with naming_checkpoints(settings.store):
                return claim(store, settings, driver, patience, damaged)

        self._environment.threads.in_order.submit(claimed, self._claimed)

    def _claimed(self, outcome: Start | BaseException) -> None:
        match outcome:
            case _ if isinstance(self._phase, Over):
                return
            case Start():
                self._phase = job = ClaimedJob(self._settings, self._environment, self._record, outcome, self._over)
                job.begin()
            case Exception():
                self._end(outcome)
            case BaseException():
                self._end(RuntimeError(str(outcome)))

    def _over(self, how: End | Exception | Damaged) -> None:
        match how, self._phase:
            case Damaged(faults), ClaimedJob() as job:
                self._damaged |= faults
                job.close()
                self._phase = ClaimingAgain(job)
                self.begin()
            case Damaged(), _:
                pass
            case End() | Exception(), _:
                self._end(how)

    def _end(self, end: End | Exception) -> None:
        before, environment = self._phase, self._environment
        if isinstance(before, Over):
            return
        self._phase = Over(self.is_claimed)
        self._patience.give_up()
        self._deaths.close()
        match before:
            case (ClaimedJob() as job) | ClaimingAgain(job):
                job.end()
                if not isinstance(end, FencedOff | JournalInDoubt):
                    environment.threads.in_order.submit(job.tree.note_end, lambda _: None)
            case Claiming():
                pass
        reason = "the job has ended" if isinstance(end, End) else f"the job is over: {end}"
        reached(fail_points.BEFORE_LEAVE)
        self._record.savepoints.end(end if isinstance(end, Exception) else JobFailed("the job has ended"))
        try:
            self._told_end(end)
        finally:  # only now, as nobody starts them again any more
            environment.workers.send_all(Leave(reason, of_no_use(end, self._settings.plan)))

    # --- what the user wishes -----------------------------------------------------------------------------------------

    def savepoint(self, answer: Answer) -> None:
        """Take a savepoint; `answer` gets its epoch, or why there will be none; at once if the job is over."""
        self._record.savepoints.add(answer)
        self._request(events.SavepointRequested())

    def stop(self, *, savepoint: bool) -> None:
        """Stop after one more epoch."""
        self._request(self._record.endings.stop(savepoint=savepoint))

    def drain(self) -> None:
        """Let all sources end where they are, and then the job."""
        self._record.endings.draining = True
        if isinstance(self._phase, ClaimedJob):
            self._phase.epochs.drain()

    def _request(self, request: events.SavepointRequested | events.EpochRequested) -> None:
        """Ask for an epoch; before the job is claimed do nothing, as all wishes are asked for when it runs."""
        if isinstance(self._phase, ClaimedJob):
            self._phase.epochs.tell(request)

    def check_processes(self, seconds: float) -> None:
        """End the job if too few processes have come for a first attempt; report other waits.

        So much time has passed since the start, or since this was last called.
        """
        there, needed = len(self._environment.workers.there), self._settings.parallelism
        match self._phase:
            case Over():
                return
            case Claiming():
                ever, short_since = False, None
            case (ClaimedJob() as job) | ClaimingAgain(job):
                ever, short_since = job.deployment.ever, job.deployment.short_since
        if there < needed and not ever:
            self._end(
                JobFailed(
                    f"only {there} of {needed} processes have come in {seconds:g} s; is the driver's address "
                    f"{self._environment.workers.address} reachable from them, is this package installed for their "
                    "Python, and has the cluster enough free task slots?"
                )
            )
        elif isinstance(self._phase, Claiming):
            why = "its processes are there, and the store, or a source that looks for its splits, has not answered yet"
            self._environment.reporting.trouble("starting the job", why)
        elif short_since is not None and (waited := self._environment.loop.now() - short_since) >= seconds:
            why = f"only {there} of {needed} are there since {waited:.0f} s, and the job waits for the others"
            self._environment.reporting.trouble("the job's processes", why)

    def cannot_go_on(self, why: str) -> None:
        """End the job, as no process will ever be started again."""
        match self._phase:
            case (ClaimedJob() as job) | ClaimingAgain(job):
                epochs = job.epochs.journal.usable
            case Claiming() | Over():
                epochs = ()
        goes_on = f"goes on from epoch {epochs[-1].epoch}" if epochs else "begins anew"
        self._end(JobFailed(f"{why}; started again, the job {goes_on}"))

    def cancel(self, error: Exception) -> None:
        """End the job at once, with this error."""
        self._end(error)

    # --- processes ----------------------------------------------------------------------------------------------------

    def lost(self, worker: str, hello: Hello | None, reason: str, *, silent: bool, unusable: bool) -> None:
        """Report a process that is not there any more; look into its death if it had a partition, and said `hello`."""
        match self._phase:
            case Over():  # it was told to leave
                return
            case Claiming():
                partition = None
            case (ClaimedJob() as job) | ClaimingAgain(job):
                member = job.deployment.member_of(worker)
                partition = None if member is None else member.partition
        self._note(log.WorkerLost(at=means.wall(), worker=worker, partition=partition, reason=reason))
        if partition is not None and hello is not None and not silent:
            record = self._record
            record.failures.lost(partition)
            words, memory = self._environment.workers.take_words(worker), record.memory.get(partition, 0)
            self._deaths.lost(hello, partition, reason, memory, words, unusable=unusable)

    def _died(self, death: Death) -> None:
        for said in self._record.failures.died(death, means.wall()):
            match said:
                case GiveUpJob(error):
                    self._end(error)
                case log.WorkerDied():
                    self._note(said)

    def _note(self, event: log.AnyEvent) -> None:
        self._environment.reporting.event(event)
