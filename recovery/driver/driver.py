"""The driver of a run: one thread with an event loop, from the first process to the last.

Invariant: the job is touched in that thread alone; other threads ask it to do things and wait for the answer.
When the thread is over, so are the job's processes, the outcome is known, and all who have asked are answered, whatever
went wrong on the way there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future  # noqa: TID251 - the program waits for it, which is not simulated
from contextlib import ExitStack
from typing import Final

from recovery.driver.attempts.environment import Threads
from recovery.driver.attempts.requests import End, of_no_use
from recovery.driver.generation import GenerationRun
from recovery.driver.launchers.launch import CannotLaunch, Launcher
from recovery.driver.report.deliveries import Deliveries
from recovery.driver.report.event_log import EventLog
from recovery.driver.report.line_file import LineFile
from recovery.driver.report.progress import ProgressLine
from recovery.driver.report.reporting import Reporting
from recovery.driver.serving import Serving
from recovery.driver.settings.job import DriverPlace, JobSettings
from recovery.driver.tree import address as reach
from recovery.schemes.rolling_back import JobFailed
from snapshot.epochs.trace import TraceWriter
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.partition.folders import remove_state
from snapshot.host.protocol.messages import Address
from statebackend import means
from statebackend.backends.unused_memory import keep_together
from statebackend.ids import Epoch
from statebackend.stores.store import BlobStore

_FAREWELL: Final = 2.0
"""Seconds in which the processes hear that the job is over."""


class Driver:
    """Runs one job. `start` returns at once; `over` is set when everything has ended."""

    def __init__(
        self,
        settings: JobSettings,
        store: BlobStore,
        launcher: Launcher,
        events: EventLog,
        progress: ProgressLine,
        place: DriverPlace,
    ) -> None:
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._progress = progress
        self._place = place
        self._trace = settings.options.trace
        self._trace_file: LineFile | None = None
        self._loop = EventLoop()
        self._serving: Serving | None = None
        """Once the driver listens."""
        self._reach: reach.Reach | None = None
        self._reporting = Reporting(settings, events, progress, self._loop.now)
        self._error: Exception | None = None
        """The error of the driver itself."""
        self._ready = means.Event()
        self._savepoints: dict[Future[Epoch], None] | None = {}
        """Not answered yet; None when nobody would answer any more."""
        self._asking = means.Lock()
        self._farewells: list[Callable[[], object]] = []
        self._thread = means.Thread(target=self._run, name=f"driver of {settings.job}", daemon=True)
        self.events = events
        self.status = self._reporting.status
        self.deliveries = Deliveries()
        self.over = means.Event()

    @property
    def outcome(self) -> End | Exception | None:
        """Return how the job has ended; None while it has not."""
        return self._ended_with if self.over.is_set() else None

    @property
    def _ended_with(self) -> End | Exception | None:
        of_job = None if self._serving is None else self._serving.outcome
        return self._error if of_job is None else of_job

    def start(self) -> None:
        """Begin, in a thread of its own; return when the driver listens, and raise here what listening raises."""
        keep_together()  # or what is free in the pools of some thirty threads would grow for hours
        self._thread.start()
        self._ready.wait()
        if self._serving is None:
            self._thread.join()
            raise self._error or RuntimeError("the driver did not start")

    def at_the_end(self, do: Callable[[], object]) -> None:
        """Have this done when the job and its processes have ended, before `over`; the caller owes that it is short."""
        self._farewells.append(do)

    def ask(self, wish: Callable[[GenerationRun], object]) -> None:
        """Have this done with the job, in the driver's thread; nothing happens if the job is over."""

        def granted() -> None:
            if self._serving is not None:
                wish(self._serving.generation)

        self._loop.wake(granted)

    def savepoint(self) -> Future[Epoch]:
        """Ask for a savepoint. The answer comes in any case: when the job is over at the latest."""
        future: Future[Epoch] = Future()
        with self._asking:
            if self._savepoints is None:
                future.set_exception(JobFailed("the job is over"))
                return future
            self._savepoints[future] = None
        self.ask(lambda generation: generation.savepoint(lambda answer: self._answer(future, answer)))
        return future

    def _answer(self, future: Future[Epoch], answer: Epoch | Exception) -> None:
        with self._asking:
            if self._savepoints is not None:
                self._savepoints.pop(future, None)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _answer_all(self) -> None:
        """Refuse all wishes for savepoints that are not answered: the loop is closed, and hears of none any more."""
        with self._asking:
            unanswered, self._savepoints = self._savepoints or {}, None
        for future in unanswered:
            self._answer(future, JobFailed("the job is over"))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop, settings, threads = self._loop, self._settings, Threads(self._loop)
        try:
            secret = means.token_bytes(32)
            self._serving = serving = Serving(
                settings,
                self._place.tls,
                self._store,
                self._launcher,
                loop,
                threads,
                secret,
                self._reporting,
                self._progress,
                self.deliveries,
                self._open_trace(),
            )
            serving.begin()
            address = serving.workers.address
            self._leave_reach(address, secret)
            serving.warn_of_the_network()
            self._ready.set()
            files = None if self._place.tls is None else self._place.tls.files
            self._launcher.start(address, secret, settings.processes, self._trouble, files)
            loop.run(lambda: serving.outcome is not None)
        except Exception as error:  # of the driver itself: the job must not go on without it
            self._fail(error)
        finally:
            self._wind_up(threads)

    def _leave_reach(self, address: Address, secret: bytes) -> None:
        if self._place.folder is None:
            return
        try:
            tls = None if self._place.tls is None else self._place.tls.files.absolute()
            self._reach = reach.Reach(self._settings.job, self._settings.store, address, means.getpid(), secret, tls)
            reach.leave(self._place.folder, self._reach)
        except OSError as error:
            what = "leaving the driver's address for other processes"
            self._reporting.trouble(what, f"{error}; no command can reach the job")

    def _take_reach_away(self) -> None:
        if self._place.folder is not None and self._reach is not None:
            reach.take_away(self._place.folder, self._reach)

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
            if self._serving is not None:
                self._serving.generation.cancel(error)
        finally:
            self._error = error

    def _wind_up(self, threads: Threads) -> None:
        """Let the processes hear of the end, and wait until they are gone; no step is left out if another one fails."""
        loop, serving = self._loop, self._serving
        with ExitStack() as steps:  # the last one that is named is the first one that is done
            steps.callback(self._ready.set)
            steps.callback(self.over.set)
            steps.callback(self._take_back_if_refused)
            steps.callback(self._answer_all)
            steps.callback(self.deliveries.end)
            for farewell in self._farewells:
                steps.callback(farewell)
            if self._trace_file is not None:
                steps.callback(self._trace_file.close)
            steps.callback(self.events.close)
            steps.callback(lambda: self._progress.end(self.status.show()))
            steps.callback(loop.close)
            if serving is not None:
                steps.callback(serving.commands.close)
            steps.callback(threads.close)
            if serving is not None:
                steps.callback(serving.workers.close)
                steps.callback(self._finish_journal, threads.in_order)
                steps.callback(self._forget_state)
                steps.callback(self._stop_processes)
                steps.callback(loop.run, lambda: serving.queued_bytes == 0, _FAREWELL)
            steps.callback(self._take_reach_away)

    def _take_back_if_refused(self) -> None:
        if self._serving is None or not self._serving.generation.is_claimed:
            self._place.made.take_back()

    def _forget_state(self) -> None:
        """Remove what processes that were killed have left on this host; the others do it themselves."""
        if self._place.folder is not None and self._ended_with is not None:
            remove_state(self._place.folder, of_no_use(self._ended_with, self._settings.plan))

    def _stop_processes(self) -> None:
        stopping = means.Thread(target=self._stop_launcher, name="stop", daemon=True)
        stopping.start()
        try:
            self._loop.run(lambda: not stopping.is_alive())
        finally:
            stopping.join()

    def _stop_launcher(self) -> None:
        try:
            self._launcher.stop(self._settings.options.stop_timeout / 1000)
        finally:
            self._loop.wake()

    def _finish_journal(self, in_order: Background) -> None:
        """Wait for what is under way in the journal, at most as long as the processes have to end."""
        written: list[object] = []
        in_order.submit(lambda: None, written.append)
        self._loop.run(lambda: bool(written), self._settings.options.stop_timeout / 1000)

    def _trouble(self, what: str | CannotLaunch) -> None:
        """Report, from any thread, a process that has ended or cannot be started; end the job if none ever can be."""
        if isinstance(what, CannotLaunch):
            self.ask(lambda generation: generation.cannot_go_on(str(what)))
            return
        told = what

        def report() -> None:
            if self._ended_with is None:
                self._reporting.trouble("the job's processes", told)

        self._loop.wake(report)
