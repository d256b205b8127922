"""The environment of a job, given to the driver, and the record of the job, which the driver keeps.

Invariant: both are the same from the first claim of the job to its end, also if it is claimed anew in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.decisions.restarts import RestartLimit
from recovery.driver.attempts.recovery_clock import RecoveryClock
from recovery.driver.attempts.requests import Endings, SavepointRequests
from recovery.driver.attempts.workers import Workers
from recovery.driver.launchers.launch import Scouting, TellsExitCodes
from recovery.driver.report.deliveries import Deliveries
from recovery.driver.report.epoch_times import EpochTimes
from recovery.driver.report.reporting import Reporting
from recovery.driver.settings.job import JobSettings
from recovery.schemes.rolling_back import Failures
from recovery.schemes.scheme import SchemeRun
from snapshot.epochs.trace import TraceWriter
from snapshot.host.net.event_loop import Background, EventLoop
from statebackend.ids import Partition, Uid
from statebackend.stores.store import BlobStore


class Threads:
    """The threads beside the loop, apart from each other: a wait in one kind of work holds up no other."""

    def __init__(self, loop: EventLoop) -> None:
        self.in_order = Background(loop, 1, "journal")
        self.confirming = Background(loop, 1, "claim")
        """A deployment may wait for it."""
        self.aside = Background(loop, 4, "aside")
        """For targets and sources."""
        self.deleting = Background(loop, 16, "deleting")
        """Hundreds of files may go with each epoch, each of which takes an object store tens of milliseconds."""

    def close(self) -> None:
        """Begin nothing more, and wait for nothing that is being done."""
        for each in (self.in_order, self.confirming, self.aside, self.deleting):
            each.close()


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a job."""

    loop: EventLoop
    store: BlobStore
    threads: Threads
    workers: Workers
    deliveries: Deliveries
    reporting: Reporting
    trace: TraceWriter | None = None
    scouting: Scouting | None = None
    exit_codes: TellsExitCodes | None = None


@dataclass(slots=True)
class JobRecord:
    """The record of a job: the requests to it, its failures, and the reports of its processes."""

    failures: Failures
    scheme: SchemeRun
    endings: Endings = field(default_factory=Endings)
    savepoints: SavepointRequests = field(default_factory=SavepointRequests)
    times: EpochTimes = field(default_factory=EpochTimes)
    clock: RecoveryClock = field(default_factory=RecoveryClock)
    memory: dict[Partition, int] = field(default_factory=dict)
    """The memory of the process of each partition in bytes, as it said last."""
    windows: dict[Partition, dict[Uid, int]] = field(default_factory=dict)
    """The number of rows that each stage let a sender have under way, as its partition last told."""
    restored_age: float | None = None
    """The age of the epoch that the job went back to, in milliseconds at the last failure."""

    @staticmethod
    def of(settings: JobSettings) -> JobRecord:
        """Return the record of a job that begins."""
        scheme = settings.scheme
        failures = Failures(RestartLimit(scheme.restarts, scheme.poisoned_after))
        return JobRecord(failures, scheme.begin(settings.parallelism))
