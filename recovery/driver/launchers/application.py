"""The Spark application as jobs use it: its settings, and tasks that run Python, through a session or a context.

Invariant: where there is a context, nothing of Spark SQL is used: a new JVM takes seconds of CPU time to load
its classes, and a job that comes back waits for them.

An executor that has run no Python task yet takes seconds for its first, so each runs one in time that does nothing. It
takes only slots that are free, each for a moment; the job does not depend on its success.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PythonTask = Callable[[Iterator[object]], Iterator[object]]
"""The function that runs in a task; it takes nothing and gives nothing."""

_STOPPED: Final = "the Spark session was stopped"
_ENVIRONMENT: Final = Lock()
"""Held while a context has another environment, of which all sessions may share one."""


class _Settings(Protocol):
    def get(self, key: str, default: str, /) -> str | None: ...


class Application:
    """The application of a session, of a session of Spark Connect, or of a context alone. Any thread may use it."""

    def __init__(self, spark: SparkSession | SparkContext) -> None:
        self._spark = spark
        self.context = _context_of(spark)
        """None through Spark Connect."""
        self.environment: Mapping[str, str] = {}
        """Variables of the processes in which tasks run that are asked for here, but not through Spark Connect. Spark
        has a daemon of its own for them, and leaves those of all other tasks as they are."""

    @property
    def over(self) -> str:
        """Return why nothing runs here any more, in a sentence; empty if something can."""
        if self.context is None:
            return _STOPPED if getattr(self._spark, "is_stopped", False) else ""
        from py4j.protocol import Py4JNetworkError

        java = self.context._jsc
        if java is None:
            return _STOPPED
        try:
            return _STOPPED if java.sc().isStopped() else ""
        except (Py4JNetworkError, OSError):
            return "the Java process of the Spark session has died"

    @cached_property
    def _settings(self) -> _Settings:
        settings: _Settings = self._spark.conf if self.context is None else self.context.getConf()
        return settings

    def setting(self, name: str, default: str) -> str:
        """Return a setting as the application was started with it, or `default`."""
        value = self._settings.get(name, default)
        return default if value is None else str(value)

    def is_on(self, name: str) -> bool:
        """True if a setting that is off by default is on."""
        return self.setting(name, "false").lower() == "true"

    def run(self, tasks: int, task: PythonTask, tags: tuple[str, ...] = ()) -> None:
        """Run a Spark job of so many tasks, and wait for its end; what Spark raises is raised here."""
        for tag in tags:
            self._add_tag(tag)
        if self.context is None:
            self._spark.range(0, tasks, 1, tasks).mapInArrow(task, "nothing long").collect()
        else:
            work = self.context.parallelize(range(tasks), tasks).mapPartitions(task)
            with _ENVIRONMENT:
                before = self.context.environment
                self.context.environment = {**before, **self.environment}
                try:
                    work.id()  # with which it is made, and the environment noted
                finally:
                    self.context.environment = before
            work.collect()

    def interrupt(self, tag: str) -> None:
        """End the jobs with this tag, if there are any."""
        with suppress(Exception):  # the session may be gone, and its jobs with it
            if self.context is None:
                self._spark.interruptTag(tag)
            else:
                self.context.cancelJobsWithTag(tag)

    def _add_tag(self, tag: str) -> None:
        """Add the tag to all jobs that this thread begins; a session's own tags are seen by that thread alone."""
        if self.context is None:
            self._spark.addTag(tag)
        else:
            self.context.addJobTag(tag)


def reason_of(error: Exception) -> str:
    """Return what the job's task raised, if the error is that, or else what Spark says first."""
    said = [line for line in str(error).strip().splitlines() if not line.startswith("An error occurred while calling")]
    lines = said or [type(error).__name__]
    traces = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    raised = [line for line in lines[traces[-1] + 1 :] if line[:1].strip()] if traces else []
    return (raised or lines)[0].removeprefix(": ")


def _context_of(spark: SparkSession | SparkContext) -> SparkContext | None:
    if hasattr(spark, "parallelize"):
        return spark
    try:
        return spark.sparkContext
    except Exception:  # what kind, depends on the version
        return None


_AFTER: Final = (5.0, 9.0)
"""Seconds after a process of the job has come: then the job runs again; and then a lost executor is surely replaced."""
_MOMENT: Final = 0.1
"""Seconds that each task takes, so that all free slots are taken, and with them every executor that has one."""


class WarmUp:
    """A warm-up of an application's executors; `free` says how many slots are free. Any thread may call it."""

    def __init__(self, spark: Application, free: Callable[[], int]) -> None:
        self._spark = spark
        self._free = free
        self._timers: list[threading.Timer] = []
        self._stopped = False
        self._lock = threading.Lock()

    def soon(self) -> None:
        """Warm executors up for the next start, some seconds after a process has come."""
        with self._lock:
            self._cancel()
            if self._stopped:
                return
            self._timers = [threading.Timer(seconds, self._run) for seconds in _AFTER]
            for timer in self._timers:
                timer.daemon = True
                with suppress(RuntimeError):  # too many threads
                    timer.start()

    def stop(self) -> None:
        """Begin no warm-up any more, whichever processes come."""
        with self._lock:
            self._stopped = True
            self._cancel()

    def _cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _run(self) -> None:
        with suppress(Exception):  # the session may be gone
            tasks = self._free()
            if tasks > 0 and not self._stopped:
                self._spark.run(tasks, _nothing)


def _nothing(_nothing: Iterator[object]) -> Iterator[object]:
    from time import sleep

    sleep(_MOMENT)
    yield from ()
