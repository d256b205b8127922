"""What is asked of Spark: through a session, through a context alone, and through Spark Connect, which has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recovery.driver.launchers.application import Application, reason_of


class Conf:
    def __init__(self, **settings: str | None) -> None:
        self.settings = settings

    def get(self, name: str, default: str) -> str | None:
        return self.settings.get(name, default)


class Context:
    """A context that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.environment = {"PYTHONHASHSEED": "0"}

    def getConf(self) -> Conf:
        return Conf(speculation="TRUE", master="local")

    def parallelize(self, values: range, slices: int) -> Context:
        self.asked.append(f"{values} {slices}")
        return self

    def mapPartitions(self, task: Callable[[Iterator[object]], Iterator[object]]) -> Context:
        self.asked += list(map(str, task(iter(()))))
        return self

    def id(self) -> None:
        self.asked.append(f"made with {self.environment}")

    def collect(self) -> None:
        self.asked.append("collect")

    def addJobTag(self, tag: str) -> None:
        self.asked.append(f"tag {tag}")

    def cancelJobsWithTag(self, tag: str) -> None:
        self.asked.append(f"cancel {tag}")


class Session:
    """A session whose SQL nobody should use."""

    def __init__(self, context: Context) -> None:
        self.sparkContext = context


class Remote:
    """A session of Spark Connect that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.conf = Conf(master=None, speculation="true")

    @property
    def sparkContext(self) -> Context:
        raise NotImplementedError("there is none")

    def range(self, start: int, end: int, step: int, slices: int) -> Remote:
        self.asked.append(f"range {start} {end} {step} {slices}")
        return self

    def mapInArrow(self, task: Callable[[Iterator[object]], Iterator[object]], _schema: str) -> Remote:
        self.asked += list(map(str, task(iter(()))))
        return self

    def collect(self) -> None:
        self.asked.append("collect")

    def addTag(self, tag: str) -> None:
        self.asked.append(f"tag {tag}")

    def interruptTag(self, tag: str) -> None:
        self.asked.append(f"cancel {tag}")


def task(_nothing: Iterator[object]) -> Iterator[object]:
    yield "task"


def ask(spark: Any) -> Application:
    application = Application(spark)
    application.environment = {"MODULES": "a,b"}
    application.run(3, task, ("a", "b"))
    application.interrupt("a")
    return application


@pytest.mark.parametrize("of", [lambda context: context, Session])
def test_tasks_are_run_by_the_context_and_nothing_of_sql_is_used(of: Callable[[Context], object]) -> None:
    context = Context()
    application = ask(of(context))
    made = "made with {'PYTHONHASHSEED': '0', 'MODULES': 'a,b'}"
    assert context.asked == ["tag a", "tag b", "range(0, 3) 3", "task", made, "collect", "cancel a"]
    assert context.environment == {"PYTHONHASHSEED": "0"}, "other tasks run as they did"
    assert application.is_on("speculation")
    assert not application.is_on("dynamicAllocation")
    assert application.setting("master", "") == "local"


def test_through_spark_connect_the_session_runs_tasks_itself() -> None:
    session = Remote()
    application = ask(session)
    assert session.asked == ["tag a", "tag b", "range 0 3 1 3", "task", "collect", "cancel a"]
    assert application.is_on("speculation")
    assert application.setting("master", "none") == "none"


def test_a_session_that_is_gone_is_not_asked_to_end_its_jobs() -> None:
    class Gone(Context):
        def cancelJobsWithTag(self, tag: str) -> None:
            raise ConnectionError("there is no JVM any more")

    spark: Any = Gone()
    Application(spark).interrupt("a")


class Java:
    """The Java side of a context: it says whether it was stopped, or there is none any more."""

    def __init__(self, answer: bool | Exception) -> None:
        self.answer = answer

    def sc(self) -> Java:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self

    def isStopped(self) -> bool:
        return self.answer is True


@pytest.mark.parametrize(
    ("java", "over"),
    [
        (Java(False), ""),
        (Java(True), "the Spark session was stopped"),
        (None, "the Spark session was stopped"),
        (Java(ConnectionRefusedError()), "the Java process of the Spark session has died"),
    ],
)
def test_an_application_says_why_nothing_runs_there_any_more(java: Java | None, over: str) -> None:
    spark: Any = Context()
    spark._jsc = java
    assert Application(spark).over == over


@pytest.mark.parametrize("stopped", [False, True])
def test_a_session_of_spark_connect_says_itself_that_it_was_stopped(stopped: bool) -> None:
    spark: Any = Remote()
    assert Application(spark).over == "", "one that is too old to say"
    spark.is_stopped = stopped
    assert Application(spark).over == ("the Spark session was stopped" if stopped else "")


RAISED = """\
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    run()
ValueError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 2, in main
    run()
snapshot.host.process.worker.DriverLost: the driver is gone

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)

Driver stacktrace:"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Job 3 cancelled part of cancelled job tags a\nand more", "Job 3 cancelled part of cancelled job tags a"),
        (RAISED, "snapshot.host.process.worker.DriverLost: the driver is gone"),
        (
            "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure\n\tat scala.Option",
            "org.apache.spark.SparkException: Job aborted due to stage failure",
        ),
        ("", "OSError"),
    ],
)
def test_of_what_spark_raises_the_reason_is_found(said: str, reason: str) -> None:
    assert reason_of(OSError(said)) == reason
