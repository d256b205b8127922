"""Running a program: `run` starts it, or goes on with it, and gives the `Run` through which it is watched and stopped.

What always holds: a program that is run again with the same checkpoints goes on from its last complete epoch, whatever
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

from recovery.driver.birth import Birth, as_folder, wanted_birth
from recovery.driver.driver import Cancelled, Driver, DriverOptions
from recovery.driver.endings import End
from recovery.driver.event_log import EventLog
from recovery.driver.events import AnyEvent
from recovery.driver.job import JobSettings
from recovery.driver.launch import Launcher
from recovery.driver.local_processes import LocalProcesses
from recovery.driver.manifests import sinks_of, sources_of
from recovery.driver.options import (
    RunOptions,
    check_names,
    coordinator_options,
    host_options,
    in_a_list,
    lost_after,
    seconds,
    storage_options,
)
from recovery.driver.progress import ProgressLine
from recovery.driver.reach import Made, home_of
from recovery.driver.spark_tasks import SparkTasks
from recovery.driver.status import RunStatus
from recovery.passive import Passive
from recovery.savepoints.stopped_job import refuse_second_start
from snapshot.frames import MarkerMode
from snapshot.host.folders import make_job_folder
from snapshot.host.storage import use_storage
from snapshot.ids import JobId
from snapshot.operators.aggregate import RunningAggregate
from snapshot.program.durations import Duration
from snapshot.program.pickling import dumps
from snapshot.program.plan import KeyedHead, Plan
from snapshot.program.problems import Problem, ProgramError, near_names
from snapshot.program.program import Program
from snapshot.program.row_class import mappings_of
from snapshot.program.source import AvailableNow, Source
from snapshot.program.stream import Stream
from snapshot.readable import readable_logger
from snapshot.sinks.driver_sink import ToDriver
from statebackend.ids import Epoch, Uid
from statebackend.stores.fsspec_store import absolute
from statebackend.stores.limited_store import open_limited

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_PATIENCE: Final = 60.0
_LOG: Final = readable_logger("epochcut.job")


class Terminated(SystemExit):
    """The process was sent SIGTERM while a run was waited for; it ends with the exit code that this gives it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Run:
    """A job that runs, or has run. Any thread may use it.

    As a context manager it stops the job at the end of the block, after one more epoch; if the block ends with an
    exception, at once. A job that failed raises at the end of the block what `wait` raises, unless that was raised in
    the block already. Ctrl-C while `wait` or the block waits stops the job cleanly, a second one cancels it. So does
    SIGTERM, which Kubernetes, systemd and Docker send: in the main thread it raises `SystemExit` with the code 143,
    unless the program has a handler of its own.

    A program that ends while the job runs ends the job with it, and says so on standard error: `wait` for it.
    """

    def __init__(self, driver: Driver, birth: Birth, events_file: Path, outputs: Sequence[str]) -> None:
        self._driver = driver
        self._outputs = outputs  # to this program
        self._raised = False  # what ended the job, to a caller
        self._block = ExitStack()  # what counts in a with block
        self.name = birth.name
        self.job = birth.job
        self.events_file = events_file

    def status(self) -> RunStatus:
        """How it stands now."""
        return self._driver.status.show()

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """What has happened, oldest first: the newest ten thousand; `events_file` goes back further."""
        return self._driver.events.events

    def listen(self, listener: Callable[[AnyEvent], object]) -> Callable[[], None]:
        """Call it with each event from now on, until what is returned is called, which says that this is enough.

        It is called in the driver's thread, and must return at once; a listener that raises is not called again, and
        harms the job no more than that.
        """
        return self._driver.events.listen(listener)

    def batches(self, uid: str) -> Iterator[pa.RecordBatch]:
        """The rows of a `ToDriver` sink that nobody has taken yet, as they come; ends when the job does.

        `JobFailed` at the end if the job did not end well; `KeyError` at once if there is no such sink.
        """
        if uid not in self._outputs:
            hint = near_names(uid, self._outputs)
            raise KeyError(f"the program has no output {uid!r} to the driver, write(ToDriver(), uid={uid!r}); {hint}")
        return self._batches(uid)

    def _batches(self, uid: str) -> Iterator[pa.RecordBatch]:
        yield from self._driver.deliveries.batches(Uid(uid))
        self._driver.over.wait()
        self._raise_if_failed()

    def rows(self, uid: str) -> Iterator[dict[str, Any]]:
        """The same as `batches`, row by row, each as a dictionary with its columns."""
        return (row for batch in self.batches(uid) for row in mappings_of(batch))

    def wait(self, timeout: float | None = None) -> End | None:
        """Wait until the job is over, and say how it ended: None if it was cancelled.

        `JobFailed`, or what else ended it, with the user's own traceback, if it did not end well; `TimeoutError` if
        it is not over after so many seconds. Ctrl-C and SIGTERM stop the job cleanly.
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
        """Stop the job behind one more epoch, which is complete and committed when this returns.

        With `savepoint` the epoch is pinned, and returned. A job that is over already stays so.
        """
        self._driver.ask(lambda generation: generation.stop(savepoint=savepoint))
        self._wait(timeout)
        end = self._end()
        return end.epoch if end is not None and end.savepoint else None

    def drain(self, timeout: float | None = None) -> None:
        """Let all sources end where they are, everything that follows from the end of input happen, and the job end.

        All windows give their results and all timers of event time fire. Started again, the job reads on from where the
        sources were, and event time begins anew: nothing that comes is late, and a window that gave its results gives
        others, of what comes for it then. A run with `available_now` ends as it does by itself: its windows stay open.
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
        elif kind is None:
            self.stop()
        elif issubclass(kind, KeyboardInterrupt):
            self._stop_cleanly("Ctrl-C")
        elif issubclass(kind, Terminated):
            self._stop_cleanly("SIGTERM")
        else:
            self.cancel()

    def _wait(self, timeout: float | None) -> None:
        if not self._driver.over.wait(timeout):
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
        try:
            self._driver.ask(lambda generation: generation.stop(savepoint=False))
            with suppress(OSError, ValueError):  # a terminal that is gone takes no word
                print(f"\nstopping {self.name} behind one more epoch; {again} again cancels it", file=sys.stderr)
            self._wait(None)
        except (KeyboardInterrupt, Terminated):
            self.cancel()


@contextmanager
def _raising_at_sigterm() -> Iterator[None]:
    """Have SIGTERM raise `Terminated`, in the main thread of a program that does nothing else with it."""
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
    every: Duration = "1s",
    parallelism: int = 2,
    scheme: Passive | None = None,
    mode: MarkerMode | str = MarkerMode.ALIGNED,
    launcher: Launcher | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Run a program, as Spark tasks or, without a session or context, as processes on this machine.

    A context alone is quicker: a new session loads Spark SQL, which no job of ours needs.

    `checkpoints` is the folder or URI of the job's tree: if there is one, the job goes on from its last complete
    epoch, else it is born under the name `job`. An epoch is taken `every` so often; in `mode` "aligned",
    "unaligned" or "at-least-once". All other options stand below, with their values when left out.

    Before anything starts, what is wrong is raised: `UnknownOption`, `NotADuration`, `ContradictingOptions`,
    `ProgramError` with all that is wrong with the program, `WrongJob`, `JobRuns` if a driver of the job lives on this
    host, `CannotLaunch` for too few task slots or a session that was stopped, `UnusableTls` for files that cannot be
    used, an error of the store. What is found while the job starts, such as a source that is not there, or a program
    that does not fit the epoch, is raised by `Run.wait`. A start that is refused takes back what it has made.
    """
    check_names(options)
    scheme = scheme or Passive()
    coordinator, host = coordinator_options(every, mode, options), host_options(options)
    files, storage = options.get("tls"), storage_options(options)
    tls = None if files is None else files.load()
    if isinstance(cast("object", program), Stream):
        raise ProgramError([Problem("", "the stream is written nowhere; end it with .write(sink, uid=...)")])
    program.check()
    launcher = launcher or (LocalProcesses() if spark is None else SparkTasks(spark, options.get("driver_host")))
    warnings = [*launcher.check(parallelism + scheme.standbys), *([tls.warning] if tls and tls.warning else [])]
    for warning in warnings:
        _LOG.warning("%s", warning)
    use_storage(storage)
    uri = str(checkpoints)
    made = Made()
    with ExitStack() as refused:
        refused.callback(made.take_back)
        made.expect(*_folder_at(uri))
        store = open_limited(uri, host.store_timeout / 1000)
        wanted = wanted_birth(store, absolute(uri), job, options.get("max_parallelism"), parallelism)
        birth = wanted.birth
        home = home_of(birth.job)
        local = Path(options.get("local") or home).absolute()
        if not wanted.is_new and not options.get("take_over", False):
            refuse_second_start(birth.job, absolute(uri), {local, home})
        plan = program.plan(birth.max_parallelism)
        available_now = options.get("available_now", False)
        _examine_sources(plan, available_now=available_now)
        _examine_targets(plan, birth.job)
        events_file = Path(options.get("events") or local / "events.jsonl")
        made.expect(local, events_file)
        make_job_folder(local)
        settings = JobSettings(
            job=birth.job,
            plan=plan,
            pickled_plan=_pickled(plan),
            parallelism=parallelism,
            store=absolute(uri),
            local=str(local)
            if options.get("local")
            else ""
            if launcher.local is None
            else f"{launcher.local}/{as_folder(birth.job)}",
            scheme=scheme,
            coordinator=coordinator,
            host=host,
            newborn=birth if wanted.is_new else None,
            lost_after=lost_after(options, host),
            allow_non_restored_state=options.get("allow_non_restored_state", False),
            ignore_state=frozenset(map(Uid, options.get("ignore_state", ()))),
            available_now=available_now,
            accept_duplicates=options.get("accept_duplicates", False),
            store_patience=int(seconds(options, "store_patience", 300.0) * 1000),
            compact_after=options.get("compact_after", 256),
            program_version=options.get("program_version", ""),
            inline_broadcast=options.get("inline_broadcast", 64 << 10),
        )
        driver = Driver(
            settings,
            store,
            launcher,
            EventLog(events_file),
            _progress_line(options.get("progress")),
            DriverOptions(
                ports=tuple(options.get("ports", (0,))),
                start_timeout=seconds(options, "start_timeout", 120.0),
                stop_timeout=seconds(options, "stop_timeout", 10.0),
                give_up_after=None
                if options.get("give_up_after", 0) is None
                else seconds(options, "give_up_after", 600.0),
                folder=local,
                made=made,
                tls=tls,
                storage_options=storage,
            ),
            Path(options["trace"]) if "trace" in options else None,
        )
        driver.start()
        refused.pop_all()
    atexit.register(_say_if_cut_off, weakref.ref(driver), birth.name)
    to_driver = [uid for uid, sink in sinks_of(plan).items() if isinstance(sink.sink, ToDriver)]
    return Run(driver, birth, events_file, to_driver)


run.__doc__ = f"{cleandoc(run.__doc__ or '')}\n\nOptions:\n\n{in_a_list()}"


def _say_if_cut_off(driver: Callable[[], Driver | None], job: str) -> None:
    """The program ends, and the driver's thread and the job with it."""
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
    """Return the folder of checkpoints that are on this host."""
    protocol, path = split_protocol(uri)
    return (Path(path).absolute(),) if protocol in (None, "file") else ()


def _examine_sources(plan: Plan, *, available_now: bool) -> None:
    """Raise `ProgramError` if a source cannot say what there is now, though it should; warn of results that would never
    come.
    """
    sources = sources_of(plan)
    endless = [uid for uid, source in sources.items() if not source.bounded]
    if available_now:
        problems = [Problem(uid, sentence) for uid, source in sources.items() for sentence in _unavailable(source)]
        if problems:
            raise ProgramError(problems)
    elif endless:
        for stage in plan.stages:
            aggregate = stage.head.operator if isinstance(stage.head, KeyedHead) else None
            if isinstance(aggregate, RunningAggregate) and aggregate.per == "end":
                _LOG.warning(
                    "%s gives its results when all input has ended, and %s does not end: they come when the job is "
                    "drained, or when it is run with available_now=True",
                    stage.uid,
                    endless[0],
                )


def _unavailable(source: Source) -> Sequence[str]:
    if isinstance(source, AvailableNow):
        return source.unavailable()
    if source.bounded:
        return ()
    return ("with available_now=True a source has to end, or to have methods `unavailable` and `available`",)


def _examine_targets(plan: Plan, job: JobId) -> None:
    """`ProgramError` if a sink's target cannot take what the program would give it."""
    problems = [
        Problem(sink.uid, sentence)
        for sink in sinks_of(plan).values()
        for sentence in sink.sink.examine(job, sink.uid, sink.schema)
    ]
    if problems:
        raise ProgramError(problems)


def _pickled(plan: Plan) -> bytes:
    try:
        return dumps(plan)
    except Exception as error:
        problem = Problem(
            "",
            f"it cannot be sent to the processes that run it: {type(error).__name__}: {error}; functions must not "
            "refer to what belongs to this process, such as a lock, an open file or a Spark session",
        )
        raise ProgramError([problem]) from error


def _progress_line(wanted: bool | None) -> ProgressLine:
    if wanted is False:
        return ProgressLine(None)
    return ProgressLine(sys.stderr, always=wanted is True)
