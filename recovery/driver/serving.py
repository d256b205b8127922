"""The driver as it listens: it hears its processes and its callers, and looks after the job.

Invariant: all of it happens in the driver's thread. Once the job is over, `outcome` says how, and no process is
started again.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from recovery import events as log
from recovery.driver.attempts.environment import Environment, Threads
from recovery.driver.attempts.requests import Cancelled, End, EndKind
from recovery.driver.attempts.workers import Appeared, Commanded, Lost, Refused, Reported, WorkerEvent, Workers
from recovery.driver.generation import GenerationRun
from recovery.driver.launchers.launch import Launcher, Scouting, TellsExitCodes
from recovery.driver.remote.command_messages import (
    CancelJob,
    DrainJob,
    InjectFault,
    ReadLive,
    ShowStatus,
    StopJob,
    TakeSavepoint,
    ToCarryOut,
)
from recovery.driver.remote.commands import Commands, Reply
from recovery.driver.remote.injection import Injection
from recovery.driver.remote.live_reads import LiveReads
from recovery.driver.report import worker_events
from recovery.driver.report.deliveries import Deliveries
from recovery.driver.report.progress import ProgressLine
from recovery.driver.report.reporting import Reporting
from recovery.driver.settings.job import JobSettings
from recovery.schemes.rolling_back import JobFailed
from snapshot.epochs.trace import TraceWriter
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake import TurnedAway
from snapshot.host.net.handshake_io import HungUp
from snapshot.host.net.tls import TlsSide
from snapshot.host.protocol.messages import (
    BeatEvery,
    CannotHear,
    Followed,
    FromWorker,
    Hello,
    Injected,
    Leave,
    Refusal,
    Stalled,
    StateRead,
    UseStorage,
)
from statebackend import means
from statebackend.stores.store import BlobStore

_PROGRESS: Final = 0.5
_ANSWERING: Final = 0.005
_TOO_LATE: Final = (HungUp.__name__, TurnedAway.__name__)
"""Why connections end of processes that know the run's secret, when the job is over."""
_NOT_ENCRYPTED: Final = (
    "on the network between the driver and its processes others may read rows, and passwords in the program and in "
    "storage_options, and change rows; give tls=recovery.Tls(certificate, key, authorities), unless it is yours alone"
)


class Serving:
    """One job, from the moment when its driver listens. All calls come in the driver's thread, `begin` first."""

    def __init__(
        self,
        settings: JobSettings,
        tls: TlsSide | None,
        store: BlobStore,
        launcher: Launcher,
        loop: EventLoop,
        threads: Threads,
        secret: bytes,
        reporting: Reporting,
        progress: ProgressLine,
        deliveries: Deliveries,
        trace: TraceWriter | None,
    ) -> None:
        """Listen from now on; processes and commands prove `secret`. It raises what listening raises."""
        self._settings = settings
        self._options = settings.options
        self._tls = tls
        self._launcher = launcher
        self._scouting = launcher if isinstance(launcher, Scouting) else None
        self._loop = loop
        self._reporting = reporting
        self._progress = progress
        self._deliveries = deliveries
        lost_after, ports = settings.options.lost_after / 1000, settings.options.ports
        self.workers = Workers(loop, launcher.host, secret, lost_after, self._heard, ports, tls)
        self.commands = Commands(loop, self._command, self._refused)
        codes = launcher if isinstance(launcher, TellsExitCodes) else None
        environment = Environment(
            loop, store, threads, self.workers, deliveries, reporting, trace, self._scouting, codes
        )
        status = reporting.status.show
        self._injection = Injection(self.workers, status, reporting.event, self._when_answered)
        self._live_reads = LiveReads(settings, self.workers, status)
        reporting.followers += (self._injection.event, self.commands.event)
        self.generation = GenerationRun(settings, environment, self._ended)
        self.outcome: End | Exception | None = None
        """The end of the job; None while it runs."""

    def begin(self) -> None:
        """Claim the job, and look after it from now on."""
        self.generation.begin()
        self._loop.call_at(self._loop.now() + self._options.start_timeout / 1000, self._check_processes)
        self._show_progress()
        self._check_epochs()

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes have been sent to processes and callers, and not been taken by the network yet."""
        return self.workers.queued_bytes + self.commands.queued_bytes

    def _ended(self, end: End | Exception) -> None:
        """Keep the outcome, start no process again, report the end, and end the deliveries."""
        self.outcome = end
        self._launcher.release()
        now = means.wall()
        match end:
            case End(kind=EndKind.FINISHED, nothing_since=epoch):
                self._reporting.event(log.Finished(at=now, nothing_since=epoch, looked=self._options.available_now))
            case End(epoch=epoch, savepoint=savepoint):
                self._reporting.event(log.Stopped(at=now, savepoint=epoch if savepoint else None))
            case Cancelled():
                self._reporting.event(log.Stopped(at=now, savepoint=None, cancelled=True))
            case JobFailed():
                self._reporting.event(log.GaveUp(at=now, reason=end.reason, traceback=end.traceback))
            case _:
                self._reporting.event(log.GaveUp(at=now, reason=f"{type(end).__name__}: {end}"))
        self._deliveries.end()

    # --- what the processes tell --------------------------------------------------------------------------------------

    def _heard(self, event: WorkerEvent) -> None:
        match event:
            case Reported(worker, message):
                self._reported(worker, message)
            case Appeared(hello):
                self._appeared(hello)
            case Lost(worker, hello, reason, silent, unusable):
                self._launcher.lost(worker, silent=silent)
                self._live_reads.lost(worker)
                self.generation.lost(worker, hello, reason, silent=silent, unusable=unusable)
                if (job := self.generation.claimed) is not None:
                    job.lost(worker, reason, silent=silent)
            case Commanded(proved, name):
                self.commands.take(proved, name)
            case Refused(peer, reason):
                self._refused(peer, reason)

    def _reported(self, worker: str, message: FromWorker) -> None:
        """Give a process's message to the part that it is for; after the job's end only commands await answers."""
        job = self.generation.claimed
        match message:
            case Injected():
                self._injection.said(worker, message)
            case StateRead():
                self._live_reads.said(worker, message)
            case _ if self.outcome is not None:
                return
            case Refusal(peer, reason):
                self._reporting.event(log.PeerRefused(at=means.wall(), worker=worker, peer=peer, reason=reason))
            case Stalled():
                self._reporting.event(worker_events.stalled(message))
            case Followed():
                self._reporting.followed(worker, message)
                if job is not None:
                    job.followed(worker, message)
            case Hello() | CannotHear():
                raise TypeError(f"{type(message).__name__} is not for the job")
            case _:
                if job is not None:
                    job.reported(worker, message)

    def _appeared(self, hello: Hello) -> None:
        """Take in a process, unless it is one too many or comes when the job is over."""
        unlike = self._unlike(hello)
        if unlike and self._settings.scheme.agreeing:
            self.workers.dismiss(hello.worker, unlike)
            self._refused(f"{hello.worker} at {hello.address}", unlike)
            return
        if not self._is_wanted(hello):
            self.workers.dismiss(hello.worker, "there is another process in its slot")
            return
        self.workers.send(hello.worker, BeatEvery(self._options.host.heartbeat))
        if self._options.storage_options:
            self.workers.send(hello.worker, UseStorage(self._options.storage_options))
        if self.outcome is not None:
            self.workers.send(hello.worker, Leave("the job has ended"))
            return
        self._reporting.event(worker_events.joined(hello))
        if unlike:
            self._reporting.trouble(f"process {hello.worker} in slot {hello.slot}", unlike)
        if (job := self.generation.claimed) is not None:
            job.appeared()

    def _unlike(self, hello: Hello) -> str:
        """Return how the Python of this process differs from that of the others; "" if it does not."""
        others = (other for name, other in self.workers.there.items() if name != hello.worker)
        first = next(others, None)
        return "" if first is None else hello.interpreter.differs_from(first.interpreter)

    def _is_wanted(self, hello: Hello) -> bool:
        scouting = self._scouting
        if scouting is None or not scouting.is_scout(hello.launch):
            return self._launcher.appeared(hello.launch, hello.worker)
        job = self.generation.claimed
        if job is None or not job.wants(hello):
            return False
        scouting.keep(hello.launch, hello.worker)
        return True

    def _refused(self, peer: str, reason: str) -> None:
        """Report a peer that was refused, but not a process of the job that comes as the job is over."""
        if self.outcome is None or not reason.startswith(_TOO_LATE):
            self._reporting.event(log.PeerRefused(at=means.wall(), worker=None, peer=peer, reason=reason))

    # --- what others ask for ------------------------------------------------------------------------------------------

    def _command(self, command: ToCarryOut, by: str, reply: Reply) -> None:
        """Do what another process asks for, now or later, and answer."""
        match command:
            case ShowStatus():
                reply(self._reporting.status.show())
            case InjectFault(order):
                self._injection.inject(order, by, reply)
            case TakeSavepoint():
                self.generation.savepoint(reply)
            case StopJob(savepoint):
                reply(None)
                self.generation.stop(savepoint=savepoint)
            case DrainJob():
                reply(None)
                self.generation.drain()
            case ReadLive():
                self._live_reads.read(command, reply)
            case CancelJob():
                reply(None)
                cancelled = Cancelled(f"the job was cancelled by {by}")
                self._when_answered(lambda: self.generation.cancel(cancelled))

    def _when_answered(self, act: Callable[[], object]) -> None:
        if self.commands.queued_bytes:
            self._loop.call_at(self._loop.now() + _ANSWERING, lambda: self._when_answered(act))
        else:
            act()

    def _check_processes(self) -> None:
        if self.outcome is None:
            self.generation.check_processes(self._options.start_timeout / 1000)
            self._loop.call_at(self._loop.now() + self._options.start_timeout / 1000, self._check_processes)

    def _check_epochs(self) -> None:
        """Report it if no epoch is completed any more, and give the job up if that lasts."""
        if self.outcome is not None:
            return
        late = self._reporting.overdue.look(self._loop.now())
        if late is not None:
            self._reporting.event(
                log.NoEpochs(
                    at=means.wall(),
                    seconds=late.seconds,
                    abandoned=late.abandoned,
                    reason=late.reason,
                    gives_up_in=late.gives_up_in,
                )
            )
            if late.gives_up:
                self.generation.cancel(
                    JobFailed(
                        f"no epoch has been completed for {late.seconds:.0f} s; {late.abandoned} were abandoned, the "
                        f"last one because {late.reason}. When that is put right, start the job again: it goes on "
                        "from its last complete epoch. Option give_up_after says how long it tries"
                    )
                )
        self._loop.call_at(self._loop.now() + _PROGRESS, self._check_epochs)

    def _show_progress(self) -> None:
        if self.outcome is None:
            self._progress.show(self._reporting.status.show())
            self._loop.call_at(self._loop.now() + _PROGRESS, self._show_progress)

    def warn_of_the_network(self) -> None:
        """Report it if others may read what the driver and its processes send each other."""
        if self._tls is None and not _is_loopback(self._launcher.host):
            self._reporting.trouble("connections are not encrypted", _NOT_ENCRYPTED)


def _is_loopback(host: str) -> bool:
    """True if only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
