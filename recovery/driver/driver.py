"""The driver of a run: one thread with an event loop, from the first process to the last.

Invariant: the job is touched in that thread alone; other threads ask it to do things and wait for the answer.
When the thread is over, so are the job's processes, the outcome is known, and all who have asked are answered, whatever
went wrong on the way there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from os import getpid
from pathlib import Path
from secrets import token_bytes
from typing import Final

from recovery import events as log
from recovery.driver.attempts.environment import Environment, Threads
from recovery.driver.attempts.failures import JobFailed
from recovery.driver.attempts.requests import End, EndKind, of_no_use
from recovery.driver.attempts.workers import Appeared, Commanded, Lost, Refused, Reported, WorkerEvent, Workers
from recovery.driver.generation import GenerationRun
from recovery.driver.launchers.launch import CannotLaunch, Launcher, Scouting, TellsExitCodes
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
from recovery.driver.report.deliveries import Deliveries
from recovery.driver.report.event_log import EventLog
from recovery.driver.report.line_file import LineFile
from recovery.driver.report.progress import ProgressLine
from recovery.driver.report.reporting import Reporting
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree import address as reach
from snapshot.epochs.trace import TraceWriter
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.net.handshake import TurnedAway
from snapshot.host.net.handshake_io import HungUp
from snapshot.host.net.tls import TlsSide
from snapshot.host.partition.folders import remove_state
from snapshot.host.protocol.messages import (
    BeatEvery,
    Hello,
    Injected,
    StateRead,
    UseStorage,
)
from statebackend.backends.unused_memory import keep_together
from statebackend.ids import Epoch
from statebackend.stores.store import BlobStore

_FAREWELL: Final = 2.0
"""Seconds in which the processes hear that the job is over."""
_PROGRESS: Final = 0.5
_ANSWERING: Final = 0.005
_TOO_LATE: Final = (HungUp.__name__, TurnedAway.__name__)
"""Why connections end of processes that know the run's secret, when the job is over."""
_NOT_ENCRYPTED: Final = (
    "on the network between the driver and its processes others may read rows, and passwords in the program and in "
    "storage_options, and change rows; give tls=recovery.Tls(certificate, key, authorities), unless it is yours alone"
)


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """The options of the driver itself. Times are in seconds."""

    ports: Sequence[int] = (0,)
    start_timeout: float = 120.0
    """So long the job waits for enough processes at its start; if they are too few later, it says so this often."""
    stop_timeout: float = 10.0
    """So long its processes have to end by themselves."""
    give_up_after: float | None = 600.0
    """A job that completes no epoch for so long, though it tries, is over; None: it goes on trying."""
    folder: Path | None = None
    """Where to leave how the driver is reached from other processes of its host; see `address`."""
    made: reach.Made = field(default_factory=reach.Made)
    """What this start makes on its host, which is taken back if the start is refused."""
    tls: TlsSide | None = None
    """What all connections are encrypted with."""
    storage_options: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    """What processes are told when they appear; see `UseStorage`."""


class Driver:
    """Runs one job. `start` returns at once; `over` is set when everything has ended."""

    def __init__(
        self,
        settings: JobSettings,
        store: BlobStore,
        launcher: Launcher,
        events: EventLog,
        progress: ProgressLine,
        options: DriverOptions,
        trace: Path | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._scouting = launcher if isinstance(launcher, Scouting) else None
        self._progress = progress
        self._options = options
        self._trace = trace
        self._trace_file: LineFile | None = None
        self._loop = EventLoop()
        self._generation: GenerationRun | None = None
        self._workers: Workers | None = None
        self._commands = Commands(self._loop, self.command, self.refused)
        self._injection: Injection | None = None
        self._live_reads: LiveReads | None = None
        self._reach: reach.Reach | None = None
        self._reporting = Reporting(settings, events, progress, options.give_up_after, self._loop.now)
        self._outcome: End | Exception | None = None
        self._ready = threading.Event()
        self._savepoints: set[Future[Epoch]] | None = set()  # not answered yet; None when nobody would answer any more
        self._asking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"driver of {settings.job}", daemon=True)
        self.events = events
        self.status = self._reporting.status
        self.deliveries = Deliveries()
        self.over = threading.Event()

    @property
    def outcome(self) -> End | Exception | None:
        """Return how the job has ended; None while it has not."""
        return self._outcome if self.over.is_set() else None

    def start(self) -> None:
        """Begin, in a thread of its own; return when the driver listens, and raise here what listening raises."""
        keep_together()  # or what is free in the pools of some thirty threads would grow for hours
        self._thread.start()
        self._ready.wait()
        if self._generation is None:
            self._thread.join()
            raise self._outcome if isinstance(self._outcome, Exception) else RuntimeError("the driver did not start")

    def ask(self, wish: Callable[[GenerationRun], object]) -> None:
        """Have this done with the job, in the driver's thread; nothing happens if the job is over."""

        def granted() -> None:
            if self._generation is not None:
                wish(self._generation)

        self._loop.wake(granted)

    def savepoint(self) -> Future[Epoch]:
        """Ask for a savepoint. The answer comes in any case: when the job is over at the latest."""
        future: Future[Epoch] = Future()
        with self._asking:
            if self._savepoints is None:
                future.set_exception(JobFailed("the job is over"))
                return future
            self._savepoints.add(future)
        self.ask(lambda generation: generation.savepoint(lambda answer: self._answer(future, answer)))
        return future

    def _answer(self, future: Future[Epoch], answer: Epoch | Exception) -> None:
        with self._asking:
            if self._savepoints is not None:
                self._savepoints.discard(future)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _answer_all(self) -> None:
        """Refuse all wishes for savepoints that are not answered: the loop is closed, and hears of none any more."""
        with self._asking:
            unanswered, self._savepoints = self._savepoints or set(), None
        for future in unanswered:
            self._answer(future, JobFailed("the job is over"))

    def _ended(self, end: End | Exception) -> None:
        """Keep the outcome, start no process again, report the end, and end the deliveries."""
        self._outcome = end
        self._launcher.release()
        now = time.time()
        match end:
            case End(kind=EndKind.FINISHED, nothing_since=epoch):
                self._reporting.event(log.Finished(at=now, nothing_since=epoch, looked=self._settings.available_now))
            case End(epoch=epoch, savepoint=savepoint):
                self._reporting.event(log.Stopped(at=now, savepoint=epoch if savepoint else None))
            case Cancelled():
                self._reporting.event(log.Stopped(at=now, savepoint=None, cancelled=True))
            case JobFailed():
                self._reporting.event(log.GaveUp(at=now, reason=end.reason, traceback=end.traceback))
            case _:
                self._reporting.event(log.GaveUp(at=now, reason=f"{type(end).__name__}: {end}"))
        self.deliveries.end()

    # --- what the processes tell --------------------------------------------------------------------------------------

    def _heard(self, event: WorkerEvent) -> None:
        match event:
            case Reported(worker, Injected() as message):
                if self._injection is not None:
                    self._injection.said(worker, message)
            case Reported(worker, StateRead() as message):
                if self._live_reads is not None:
                    self._live_reads.said(worker, message)
            case Reported(worker, message):
                self._the_generation.reported(worker, message)
            case Appeared(hello):
                self._appeared(hello)
            case Lost(worker, reason, silent, unusable):
                self._launcher.lost(worker, silent=silent)
                if self._live_reads is not None:
                    self._live_reads.lost(worker)
                self._the_generation.lost(worker, reason, silent=silent, unusable=unusable)
            case Commanded(proved, name):
                self._commands.take(proved, name)
            case Refused(peer, reason):
                self.refused(peer, reason)

    def _appeared(self, hello: Hello) -> None:
        """Take in a process, unless it is one too many."""
        assert self._workers is not None
        if not self._is_wanted(hello):
            self._workers.dismiss(hello.worker, "there is another process in its slot")
            return
        self._workers.send(hello.worker, BeatEvery(self._settings.host.heartbeat))
        if self._options.storage_options:
            self._workers.send(hello.worker, UseStorage(self._options.storage_options))
        self._the_generation.appeared(hello)

    def _is_wanted(self, hello: Hello) -> bool:
        scouting = self._scouting
        if scouting is None or not scouting.is_scout(hello.launch):
            return self._launcher.appeared(hello.launch, hello.worker)
        if not self._the_generation.wants(hello):
            return False
        scouting.keep(hello.launch, hello.worker)
        return True

    def refused(self, peer: str, reason: str) -> None:
        """Report a peer that was refused, but not a process of the job that comes as the job is over."""
        if self._outcome is None or not reason.startswith(_TOO_LATE):
            self._the_generation.refused(peer, reason)

    # --- what others ask for ------------------------------------------------------------------------------------------

    def command(self, command: ToCarryOut, by: str, reply: Reply) -> None:
        """Do what another process asks for, now or later, and answer."""
        match command:
            case ShowStatus():
                reply(self.status.show())
            case InjectFault(order):
                assert self._injection is not None
                self._injection.inject(order, by, reply)
            case TakeSavepoint():
                self._the_generation.savepoint(reply)
            case StopJob(savepoint):
                reply(None)
                self._the_generation.stop(savepoint=savepoint)
            case DrainJob():
                reply(None)
                self._the_generation.drain()
            case ReadLive():
                assert self._live_reads is not None
                self._live_reads.read(command, reply)
            case CancelJob():
                reply(None)
                cancelled = Cancelled(f"the job was cancelled by {by}")
                self._when_answered(lambda: self._the_generation.cancel(cancelled))

    def _when_answered(self, act: Callable[[], object]) -> None:
        if self._commands.queued_bytes:
            self._loop.call_at(self._loop.now() + _ANSWERING, lambda: self._when_answered(act))
        else:
            act()

    @property
    def _the_generation(self) -> GenerationRun:
        assert self._generation is not None
        return self._generation

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self._loop
        threads = Threads(loop)
        workers: Workers | None = None
        try:
            secret = token_bytes(32)
            lost_after, tls = self._settings.lost_after / 1000, self._options.tls
            workers = Workers(loop, self._launcher.host, secret, lost_after, self._heard, self._options.ports, tls)
            self._workers = workers
            trace = self._open_trace()
            codes = self._launcher if isinstance(self._launcher, TellsExitCodes) else None
            environment = Environment(
                loop, self._store, threads, workers, self.deliveries, self._reporting, trace, self._scouting, codes
            )
            self._injection = Injection(workers, self.status.show, self._reporting.event, self._when_answered)
            self._reporting.followers += (self._injection.event, self._commands.event)
            self._live_reads = LiveReads(self._settings, workers, self.status.show)
            self._generation = GenerationRun(self._settings, environment, self._ended)
            self._generation.begin()
            self._leave_reach(workers, secret)
            self._warn_of_the_network(tls)
            self._ready.set()
            processes = self._settings.parallelism + self._settings.scheme.standbys
            files = None if tls is None else tls.files
            self._launcher.start(workers.address, secret, processes, self._trouble, files)
            loop.call_at(loop.now() + self._options.start_timeout, self._check_processes)
            self._show_progress()
            self._check_epochs()
            loop.run(lambda: self._outcome is not None)
        except Exception as error:  # of the driver itself: the job must not go on without it
            self._fail(error)
        finally:
            self._wind_up(workers, threads)

    def _leave_reach(self, workers: Workers, secret: bytes) -> None:
        if self._options.folder is None:
            return
        try:
            tls = None if self._options.tls is None else self._options.tls.files.absolute()
            self._reach = reach.Reach(self._settings.job, self._settings.store, workers.address, getpid(), secret, tls)
            reach.leave(self._options.folder, self._reach)
        except OSError as error:
            what = "leaving the driver's address for other processes"
            self._reporting.trouble(what, f"{error}; nobody can attach to the job")

    def _warn_of_the_network(self, tls: TlsSide | None) -> None:
        if tls is None and not _is_loopback(self._launcher.host):
            self._reporting.trouble("connections are not encrypted", _NOT_ENCRYPTED)

    def _take_reach_away(self) -> None:
        if self._options.folder is not None and self._reach is not None:
            reach.take_away(self._options.folder, self._reach)

    def _open_trace(self) -> TraceWriter | None:
        if self._trace is None:
            return None
        self._trace_file = LineFile(self._trace, gaps=False)
        return TraceWriter(self._write_trace)

    def _write_trace(self, line: str) -> None:
        said = self._trace_file.write(line) if self._trace_file is not None else ""
        if said:
            self._reporting.trouble("the file of the trace", said)

    def _fail(self, error: Exception) -> None:
        try:
            if self._generation is not None:
                self._generation.cancel(error)
        finally:
            if self._outcome is None:
                self._outcome = error

    def _wind_up(self, workers: Workers | None, threads: Threads) -> None:
        """Let the processes hear of the end, and wait until they are gone; no step is left out if another one fails."""
        loop = self._loop
        with ExitStack() as steps:  # the last one that is named is the first one that is done
            steps.callback(self._ready.set)
            steps.callback(self.over.set)
            steps.callback(self._take_back_if_refused)
            steps.callback(self._answer_all)
            steps.callback(self.deliveries.end)
            if self._trace_file is not None:
                steps.callback(self._trace_file.close)
            steps.callback(self.events.close)
            steps.callback(lambda: self._progress.end(self.status.show()))
            steps.callback(loop.close)
            steps.callback(self._commands.close)
            steps.callback(threads.close)
            if workers is not None:
                steps.callback(workers.close)
            if workers is not None and self._generation is not None:
                steps.callback(self._finish_journal, threads.in_order)
                steps.callback(self._forget_state)
                steps.callback(self._stop_processes)
                steps.callback(
                    loop.run, lambda: workers.queued_bytes == 0 and self._commands.queued_bytes == 0, _FAREWELL
                )
            steps.callback(self._take_reach_away)

    def _take_back_if_refused(self) -> None:
        if self._generation is None or not self._generation.is_claimed:
            self._options.made.take_back()

    def _forget_state(self) -> None:
        """Remove what processes that were killed have left on this host; the others do it themselves."""
        if self._options.folder is not None and self._outcome is not None:
            remove_state(self._options.folder, of_no_use(self._outcome, self._settings.plan))

    def _stop_processes(self) -> None:
        stopping = threading.Thread(target=self._stop_launcher, name="stop", daemon=True)
        stopping.start()
        try:
            self._loop.run(lambda: not stopping.is_alive())
        finally:
            stopping.join()

    def _stop_launcher(self) -> None:
        try:
            self._launcher.stop(self._options.stop_timeout)
        finally:
            self._loop.wake()

    def _finish_journal(self, in_order: Background) -> None:
        """Wait for what is under way in the journal, at most as long as the processes have to end."""
        written: list[object] = []
        in_order.submit(lambda: None, written.append)
        self._loop.run(lambda: bool(written), self._options.stop_timeout)

    def _check_processes(self) -> None:
        if self._generation is not None and self._outcome is None:
            self._generation.check_processes(self._options.start_timeout)
            self._loop.call_at(self._loop.now() + self._options.start_timeout, self._check_processes)

    def _check_epochs(self) -> None:
        """Report it if no epoch is completed any more, and give the job up if that lasts."""
        if self._outcome is not None:
            return
        late = self._reporting.overdue.look(self._loop.now())
        if late is not None:
            self._reporting.event(
                log.NoEpochs(
                    at=time.time(),
                    seconds=late.seconds,
                    abandoned=late.abandoned,
                    reason=late.reason,
                    gives_up_in=late.gives_up_in,
                )
            )
            if late.gives_up:
                self._the_generation.cancel(
                    JobFailed(
                        f"no epoch has been completed for {late.seconds:.0f} s; {late.abandoned} were abandoned, the "
                        f"last one because {late.reason}. When that is put right, start the job again: it goes on "
                        "from its last complete epoch. Option give_up_after says how long it tries"
                    )
                )
        self._loop.call_at(self._loop.now() + _PROGRESS, self._check_epochs)

    def _show_progress(self) -> None:
        if self._outcome is None:
            self._progress.show(self.status.show())
            self._loop.call_at(self._loop.now() + _PROGRESS, self._show_progress)

    def _trouble(self, what: str | CannotLaunch) -> None:
        """Report, from any thread, a process that has ended or cannot be started; end the job if none ever can be."""
        if isinstance(what, CannotLaunch):
            self.ask(lambda generation: generation.cannot_go_on(str(what)))
            return
        told = what

        def report() -> None:
            if self._outcome is None:
                self._reporting.trouble("the job's processes", told)

        self._loop.wake(report)


class Cancelled(Exception):
    """The job was cancelled by its user; started again, it goes on from its last complete epoch."""


def _is_loopback(host: str) -> bool:
    """True if only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
