"""The thread that keeps slots filled outlives whatever the launcher cannot do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from recovery.driver.launchers.launch_rules import Launch
from recovery.driver.launchers.spark_tasks import SparkTasks
from recovery.driver.launchers.supervisor import Keeper
from tests.test_driver_parts import tasks

PATIENCE = 20.0


class Failing:
    """A launcher that raises what it is given, and notes what it was asked for."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.launched: SimpleQueue[Launch] = SimpleQueue()
        self.cancelled: SimpleQueue[int] = SimpleQueue()

    def launch(self, launch: Launch) -> None:
        if self.errors:
            raise self.errors.pop()
        self.launched.put(launch)

    def cancel(self, number: int) -> None:
        self.cancelled.put(number)
        raise ConnectionError("nobody is there")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def keepers() -> Iterator[list[Keeper]]:
    keepers: list[Keeper] = []
    yield keepers
    for keeper in keepers:
        keeper.release()
        keeper.join()


def test_a_launch_that_fails_in_any_way_is_told_and_followed_by_another(told: list[str], keepers: list[Keeper]) -> None:
    launcher = Failing(RuntimeError("can't start new thread"))
    keepers.append(Keeper(launcher, 1, 0.0, told.append, "task"))
    keepers[0].begin()
    assert launcher.launched.get(timeout=PATIENCE) == Launch(0, 2)
    assert told == ["the task in slot 0 cannot be started, which is tried again: RuntimeError: can't start new thread"]


def test_what_cannot_be_cancelled_is_told_and_the_next_launch_begins(told: list[str], keepers: list[Keeper]) -> None:
    launcher = Failing()
    keepers.append(Keeper(launcher, 1, 0.0, told.append, "task"))
    keepers[0].begin()
    assert keepers[0].appeared(launcher.launched.get(timeout=PATIENCE).number, "a")
    keepers[0].lost("a", silent=True)
    assert launcher.cancelled.get(timeout=PATIENCE) == 1
    assert launcher.launched.get(timeout=PATIENCE) == Launch(0, 2)
    assert told == ["a task that is not needed cannot be ended: ConnectionError: nobody is there"]


def test_tasks_for_which_there_is_no_thread_are_not_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = tasks(spark_master="local[2]")
    assert isinstance(spark, SparkTasks)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError):
        spark.launch(Launch(0, 1))
    spark.stop(PATIENCE)


def test_no_scouts_are_given_out_from_the_release_on(told: list[str], keepers: list[Keeper]) -> None:
    keepers.append(Keeper(Failing(), 1, 0.0, told.append, "task"))
    keepers[0].begin()
    assert keepers[0].scouts() is not None
    keepers[0].release()
    assert keepers[0].scouts() is None


def test_nobody_waits_for_scouts_for_which_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    spark, over = tasks(spark_master="spark://h:7077"), list[bool]()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    spark.scout(2, lambda: over.append(True))
    assert over == [True]
