"""Running a program: `run` starts it, or goes on with it, and gives the `Run` through which it is watched and stopped.

Invariant: a program that is run again with the same checkpoints goes on from its last complete epoch, whatever
ended the run before; everything that can be found wrong before anything starts is found then.
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from inspect import cleandoc
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

import pyarrow as pa
from fsspec.core import split_protocol

from recovery.driver.attempts.requests import Cancelled, End
from recovery.driver.driver import Driver
from recovery.driver.launchers.launch import Launcher
from recovery.driver.launchers.local_processes import LocalProcesses
from recovery.driver.launchers.spark_tasks import SparkTasks
from recovery.driver.report.description import describe
from recovery.driver.report.event_log import EventLog
from recovery.driver.report.notebook import html_of, notebook_bar
from recovery.driver.report.progress import ProgressLine
from recovery.driver.report.status import RunState, RunStatus
from recovery.driver.settings.job import DriverPlace, JobSettings
from recovery.driver.settings.options import (
    Options,
    RunOptions,
    in_a_list,
    options_of,
)
from recovery.driver.tree.address import Made, home_of
from recovery.driver.tree.identity import Birth, as_folder, naming_checkpoints, wanted_birth
from recovery.driver.tree.manifests import sinks_of
from recovery.events import AnyEvent
from recovery.offline.stopped_job import refuse_second_start
from recovery.schemes.passive import usual_scheme
from recovery.schemes.scheme import Scheme, interval_of
from recovery.waiting import wait_in_pieces
from snapshot.connectors.memory.driver_sink import ToDriver
from snapshot.cut.frames import MarkerMode
from snapshot.host.partition.folders import make_job_folder
from snapshot.host.protocol.options import use_storage
from snapshot.ids import JobId
from snapshot.operators.aggregate import RunningAggregate
from snapshot.operators.row_class import mappings_of
from snapshot.program.pickling import dumps
from snapshot.program.plan import Plan
from snapshot.program.problems import InvalidProgram, Problem, near_names
from snapshot.program.program import Program
from snapshot.program.source import AvailableNow, Source
from snapshot.program.stream import Stream
from statebackend.durations import Duration
from statebackend.ids import Epoch, Uid
from statebackend.readable import readable, readable_logger
from statebackend.stores.fsspec_store import absolute
from statebackend.stores.limited_store import open_limited

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from recovery.telemetry.telling import Telling

_PATIENCE: Final = 60.0
_LOG: Final = readable_logger("epochcut.job")


class Terminated(SystemExit):
    """The process was sent SIGTERM while a run was waited for; it ends with the exit code that this gives it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Run:
    """A job that runs, or has run, as `recovery.run` returns it. Any thread may use it.

    As a context manager it stops the job at the end of the block, after one more epoch, unless `wait` in the block has
    seen its end; a run with `available_now`, which ends by itself, is waited for. If the block ends with an exception,
    the job ends at once. A job that failed raises at the end of the block what `wait` raises, unless that was raised
    in the block already. Ctrl-C while `wait` or the block waits stops the job after one more epoch; a second one
    cancels it, and so does `interrupt_timeout` without that epoch. The same holds for SIGTERM, which Kubernetes,
    systemd and Docker send: in the main thread it raises `SystemExit` with the code 143, unless the program has a
    handler of its own.

    A program that ends while the job runs ends the job with it, and says so on standard error: `wait` for it.
    """

    def __init__(
        self,
        driver: Driver,
        birth: Birth,
        events_file: Path,
        outputs: Sequence[str],
        interrupt_timeout: float,
        available_now: bool,
        telling: Telling | None = None,
    ) -> None:
        self._driver = driver
        self._telling = telling
        self._available_now = available_now
        self._outputs = outputs  # to this program
        self._interrupt_timeout = interrupt_timeout
        self._raised = False  # what ended the job, to a caller
        self._block = ExitStack()  # what counts in a with block
        self.name = birth.name
        self.job = birth.job
        self.events_file = events_file

    def status(self) -> RunStatus:
        """Return the current status of the job."""
        return self._driver.status.show()

    @property
    def metrics_url(self) -> str | None:
        """Return where the job's metrics are served (option `metrics`); None if they are not."""
        return None if self._telling is None or self._telling.metrics is None else self._telling.metrics.url

    @property
    def page_url(self) -> str | None:
        """Return where the job's page is served (option `page`); None if it is not."""
        return None if self._telling is None or self._telling.page is None else self._telling.page.url

    def _repr_html_(self) -> str:
        """Return the current status for a notebook, which shows it where the run is the value of a cell."""
        return html_of(self.status(), self.page_url)

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """Return the newest ten thousand events, oldest first; `events_file` goes back further."""
        return self._driver.events.events

    def listen(self, listener: Callable[[AnyEvent], object]) -> Callable[[], None]:
        """Call `listener` with each event from now on, until the returned function is called.

        It is called in the driver's thread, and must return at once; a listener that raises is not called again, which
        does the job no harm.
        """
        return self._driver.events.listen(listener)

    def batches(self, uid: str) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the untaken rows of a `ToDriver` sink, as they come; it ends with the job.

        `JobFailed` at the end if the job did not end well; `KeyError` at once if there is no such sink.
        """
        if uid not in self._outputs:
            hint = near_names(uid, self._outputs)
            raise KeyError(f"the program has no output {uid!r} to the driver, write(ToDriver(), uid={uid!r}); {hint}")
        return self._batches(uid)

    def _batches(self, uid: str) -> Iterator[pa.RecordBatch]:
        yield from self._driver.deliveries.batches(Uid(uid))
        wait_in_pieces(self._driver.over.wait)
        self._raise_if_failed()

    def rows(self, uid: str) -> Iterator[dict[str, Any]]:
        """Return the rows of `batches` one by one, each as a dictionary with its columns."""
        return (row for batch in self.batches(uid) for row in mappings_of(batch))

    def wait(self, timeout: float | None = None) -> End | None:
        """Wait until the job is over, and return how it ended: None if it was cancelled.

        `JobFailed`, or the error that ended it, with the user's own traceback, if it did not end well; `TimeoutError`
        if it is not over after `timeout` seconds. Ctrl-C and SIGTERM stop the job cleanly.
        """
        with _raising_at_sigterm():
            try:
                self._wait(timeout)
            except KeyboardInterrupt:
                self._stop_cleanly("Ctrl-C")
                raise
            except Terminated:
                self._stop_cleanly("SIGTERM")
                raise
        return self._end()

    def stop(self, *, savepoint: bool = False, timeout: float | None = None) -> Epoch | None:
        """Stop the job after one more epoch, which is complete and committed when this returns.

        With `savepoint` the epoch is pinned, and returned. A job that is already over stays so.
        """
        self._driver.ask(lambda generation: generation.stop(savepoint=savepoint))
        self._wait(timeout)
        end = self._end()
        return end.epoch if end is not None and end.savepoint else None

    def drain(self, timeout: float | None = None) -> None:
        """End all sources where they are, and wait until the job has done all that follows from it and is over.

        All windows give their results and all timers of event time fire. Started again, the job reads on from where the
        sources were, and event time begins anew: no row is late, and a window that gave its results gives others, from
        the rows that come for it then. A run with `available_now` ends as it would by itself: its windows stay open.
        """
        self._driver.ask(lambda generation: generation.drain())
        self._wait(timeout)
        self._end()

    def savepoint(self, timeout: float | None = _PATIENCE) -> Epoch:
        """Take a savepoint while the job runs; it is complete and pinned when this returns."""
        return self._driver.savepoint().result(timeout)

    def cancel(self) -> None:
        """End the job at once; started again, it goes on from its last complete epoch."""
        self._driver.ask(lambda generation: generation.cancel(Cancelled("the job was cancelled")))
        self._wait(None)

    def __enter__(self) -> Run:
        self._block.enter_context(_raising_at_sigterm())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._block:
            self._leave(kind, error)

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        if self._driver.over.is_set():
            if error is None and not self._raised:
                self._raise_if_failed()
            elif error is not None and self._failure is not None and not self._raised:
                error.add_note(f"job {self.name} had failed before: {self._failure}")
        elif kind is None and self._available_now:
            self.wait()
        elif kind is None:
            self.stop()
        elif issubclass(kind, KeyboardInterrupt):
            self._stop_cleanly("Ctrl-C")
        elif issubclass(kind, Terminated):
            self._stop_cleanly("SIGTERM")
        else:
            self.cancel()

    def _wait(self, timeout: float | None) -> None:
        if not wait_in_pieces(self._driver.over.wait, timeout):
            raise TimeoutError(f"job {self.name} is not over after {timeout} s; it is {self.status().state.value}")

    def _end(self) -> End | None:
        outcome = self._driver.outcome
        self._raise_if_failed()
        return outcome if isinstance(outcome, End) else None

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            self._raised = True
            raise self._failure

    @property
    def _failure(self) -> Exception | None:
        outcome = self._driver.outcome
        return outcome if isinstance(outcome, Exception) and not isinstance(outcome, Cancelled) else None

    def _stop_cleanly(self, again: str) -> None:
        """Stop the job after one more epoch; cancel it if it is not over in time, or at a second signal."""
        try:
            self._driver.ask(lambda generation: generation.stop(savepoint=False))
            self._say(
                f"stopping {self.name} after one more epoch; {again} again cancels it, as do "
                f"{self._interrupt_timeout:g} s without that epoch (option interrupt_timeout){self._hindrance()}"
            )
            if self._driver.over.wait(self._interrupt_timeout):
                return
            self._say(
                f"cancelling {self.name}: no epoch could be completed in {self._interrupt_timeout:g} s"
                f"{self._hindrance()}; nothing is lost: its last complete epoch stands, and started again the job goes "
                "on from there"
            )
        except (KeyboardInterrupt, Terminated):
            pass
        self.cancel()

    def _hindrance(self) -> str:
        """Return what may keep an epoch from being completed, as far as that is known."""
        status = self.status()
        not_running = "" if status.state is RunState.RUNNING else f"; the job is {status.state.value}"
        return not_running + (f"; {status.trouble}" if status.trouble else "")

    def _say(self, text: str) -> None:
        """Log the text, and print it for the person who sent the signal, wherever `logging` goes."""
        _LOG.info("%s", text)
        with suppress(OSError, ValueError):  # a terminal that is gone takes no word
            print(f"\n{readable(text)}", file=sys.stderr)


@contextmanager
def _raising_at_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in the block, if this is the main thread and the program does not handle it."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def run(
    program: Program,
    spark: SparkSession | SparkContext | None = None,
    *,
    checkpoints: str | Path,
    job: str | None = None,
    every: Duration | None = None,
    parallelism: int = 2,
    scheme: Scheme | None = None,
    mode: MarkerMode | str = MarkerMode.ALIGNED,
    launcher: Launcher | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Run a program, as Spark tasks or, without a session or context, as processes on this machine.

    A context alone is quicker: a new session loads Spark SQL, which no job needs.

    `checkpoints` is the folder or URI of the job's tree. If there is a tree, the job goes on from its last complete
    epoch; if not, a new job begins under the name `job`. `every` is the interval between epochs
    (1s, or that of the scheme); `mode` is "aligned", "unaligned" or "at-least-once". All other options are listed
    below, with their defaults.

    Raises, before anything starts: `UnknownOption`, `NotADuration`, `ContradictingOptions`, `InvalidProgram` with all
    errors of the program, `WrongJob`, `JobRuns` if a driver of the job lives on this host, `CannotLaunch` for too few
    task slots or a session that was stopped, `UnusableTls` for files that cannot be used, an error of the store.
    `Run.wait` raises errors found while the job starts, such as a missing source, or a program that does not fit the
    epoch. A start that is refused takes back what it has made.
    """
    scheme = scheme or usual_scheme()
    given = options_of(interval_of(scheme, every), mode, options, scheme.rhythm)
    tls = None if given.tls is None else given.tls.load()
    if isinstance(cast("object", program), Stream):
        raise InvalidProgram([Problem("", "the stream is written nowhere; end it with .write(sink, uid=...)")])
    program.check()
    launcher = launcher or (LocalProcesses() if spark is None else SparkTasks(spark, given.driver_host))
    warnings = [*launcher.check(scheme.processes(parallelism)), *([tls.warning] if tls and tls.warning else [])]
    for warning in warnings:
        _LOG.warning("%s", warning)
    use_storage(given.storage_options)
    uri = str(checkpoints)
    made = Made()
    with ExitStack() as refused:
        refused.callback(made.take_back)
        made.expect(*_folder_at(uri))
        with naming_checkpoints(uri):
            store = open_limited(uri, given.host.store_timeout / 1000)
            wanted = wanted_birth(store, absolute(uri), job, given.max_parallelism, parallelism)
        birth = wanted.birth
        home = home_of(birth.job)
        local = (given.local or home).absolute()
        if not wanted.is_new and not given.take_over:
            refuse_second_start(birth.job, absolute(uri), {local, home})
        plan = program.plan(birth.max_parallelism)
        scheme.check(given.coordinator, plan)
        _examine(plan, birth.job, available_now=given.available_now)
        events_file = given.events or local / "events.jsonl"
        made.expect(local, events_file)
        make_job_folder(local)
        settings = JobSettings(
            job=birth.job,
            plan=plan,
            pickled_plan=_pickled(plan),
            parallelism=parallelism,
            store=absolute(uri),
            local=str(local)
            if given.local
            else ""
            if launcher.local is None
            else f"{launcher.local}/{as_folder(birth.job)}",
            scheme=scheme,
            options=given,
            newborn=birth if wanted.is_new else None,
        )
        place = DriverPlace(local, made, tls)
        telling = _telling(given, birth.job)
        if telling is not None:
            refused.callback(telling.close)
        driver = Driver(settings, store, launcher, EventLog(events_file), _progress_line(given.progress), place)
        begun = describe(settings)
        driver.events.add(begun)
        if telling is not None:
            telling.begin(begun, settings.store, driver.status.show, driver.events.listen)
            driver.at_the_end(telling.close)
        driver.start()
        refused.pop_all()
    atexit.register(_say_if_cut_off, weakref.ref(driver), birth.name)
    to_driver = [uid for uid, sink in sinks_of(plan).items() if isinstance(sink.sink, ToDriver)]
    return Run(driver, birth, events_file, to_driver, given.interrupt_timeout / 1000, given.available_now, telling)


run.__doc__ = f"{cleandoc(run.__doc__ or '')}\n\nOptions:\n\n{in_a_list()}"


def _telling(options: Options, job: JobId) -> Telling | None:
    """Return what is to tell other systems of the run, if anything is."""
    if not (options.metrics or options.page or options.traces):
        return None
    from recovery.telemetry.telling import Telling  # loads a server, which few jobs need

    return Telling(options, job)


def _say_if_cut_off(driver: Callable[[], Driver | None], job: str) -> None:
    """Print, as the program ends, that its job ends with it, with the driver's thread; nothing if the job is over."""
    left = driver()
    if left is not None and not left.over.is_set():
        with suppress(OSError, ValueError):  # a terminal that is gone takes no word
            print(
                f"epochcut: the program ended while job {job} was running, which ended the job too; call wait() or "
                "stop() of the run before, or use it in a with statement; started again, the job goes on from its "
                "last complete epoch",
                file=sys.stderr,
            )


def _folder_at(uri: str) -> tuple[Path, ...]:
    """Return the folder of the checkpoints if they are on this host, else nothing."""
    protocol, path = split_protocol(uri)
    return (Path(path).absolute(),) if protocol in (None, "file") else ()


def _examine(plan: Plan, job: JobId, *, available_now: bool) -> None:
    """Raise `InvalidProgram` for sources and sinks that cannot serve; warn of results that would never come.

    A source has to say what is available now, if that is asked for; a sink's target has to take the program's rows.
    """
    sources = plan.sources
    problems = [
        Problem(uid, sentence)
        for uid, source in sources.items()
        for sentence in (_unavailable(source) if available_now else ())
    ]
    problems += [
        Problem(sink.uid, sentence)
        for sink in sinks_of(plan).values()
        for sentence in sink.sink.examine(job, sink.uid, sink.schema)
    ]
    if problems:
        raise InvalidProgram(problems)
    endless = [uid for uid, source in sources.items() if not source.bounded]
    if endless and not available_now:
        for uid, operator in plan.keyed.items():
            if isinstance(operator, RunningAggregate) and operator.per == "end":
                _LOG.warning(
                    "%s gives its results when all input has ended, and %s does not end: they come when the job is "
                    "drained, or when it is run with available_now=True",
                    uid,
                    endless[0],
                )


def _unavailable(source: Source) -> Sequence[str]:
    if isinstance(source, AvailableNow):
        return source.unavailable()
    if source.bounded:
        return ()
    return ("with available_now=True a source has to end, or to have methods `unavailable` and `available`",)


def _pickled(plan: Plan) -> bytes:
    try:
        return dumps(plan)
    except Exception as error:
        problem = Problem(
            "",
            f"it cannot be sent to the processes that run it: {type(error).__name__}: {error}; functions must not "
            "refer to what belongs to this process, such as a lock, an open file or a Spark session",
        )
        raise InvalidProgram([problem]) from error


def _progress_line(wanted: bool | None) -> ProgressLine:
    if wanted is False:
        return ProgressLine(None)
    return ProgressLine(notebook_bar() or sys.stderr, always=wanted is True)
