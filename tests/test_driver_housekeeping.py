"""Deleting what nobody needs: however long it takes, nothing else of the job waits for it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recovery
from recovery.driver.housekeeping import Housekeeping
from recovery.driver.tree.owned import Removal
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.protocol.messages import Deploy
from snapshot.journal.state import JournalState
from statebackend.ids import Attempt, Generation, Incarnation
from statebackend.stores.local_store import LocalStore
from tests.scripted_workers import PATIENCE, ScriptedCluster
from tests.test_driver_runs import SECOND, start
from tests.test_running_locally import when_complete

THIRD = Incarnation(Generation(1), Attempt(3))


def test_a_recovery_does_not_wait_for_what_is_being_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answers = threading.Semaphore(0), threading.Event()

    def delete(_: LocalStore, path: str) -> None:
        if path.startswith("epochs/"):
            begun.release()
            answers.wait(3 * PATIENCE)

    monkeypatch.setattr(LocalStore, "delete", delete)
    cluster = ScriptedCluster()
    scheme = recovery.Passive(restarts=recovery.FailureRate(9, "1s", delay=0))
    run = start(tmp_path, cluster, retain=1, scheme=scheme)
    try:
        for _ in range(4):
            assert begun.acquire(timeout=PATIENCE)
        cluster.habits.restore = False
        for incarnation in (SECOND, THIRD):  # before the third one it is asked whether the job is still ours
            cluster.worker_of(1).die()
            cluster.await_heard(Deploy, 2, lambda deploy, now=incarnation: deploy.incarnation == now)  # type: ignore[misc]
    finally:
        answers.set()
        run.cancel()


def test_a_driver_that_lives_long_forgets_epochs_that_are_gone(tmp_path: Path) -> None:
    run, old = start(tmp_path, ScriptedCluster(), retain=1, every="10ms", compact_after=8), threading.Event()
    when_complete(run, 80, old.set)
    try:
        assert old.wait(PATIENCE)
        serving = run._driver._serving
        assert serving is not None
        assert serving.generation.claimed is not None
        journal = serving.generation.claimed.epochs.journal
        assert journal.newest_complete.number >= 80
        assert max(len(journal.epochs), len(journal.removals)) < 40
    finally:
        run.cancel()


class Slow:
    """A tree in which "slow" is not deleted until it may be."""

    def __init__(self) -> None:
        self.state = JournalState()
        self.may = threading.Event()
        self.compacted: list[int] = []

    def delete(self, paths: tuple[str, ...]) -> None:
        if "slow" in paths:
            assert self.may.wait(PATIENCE)

    def compact(self, state: JournalState, carried_out: int) -> None:
        assert carried_out == state.number
        self.compacted.append(state.number)


def test_the_journal_is_compacted_up_to_what_is_deleted_though_there_is_always_more_to_delete() -> None:
    loop, tree, events = EventLoop(), Slow(), list[object]()
    deleting, settings = Background(loop, 2), SimpleNamespace(options=SimpleNamespace(compact_after=1))
    begins_behind: list[int] = []
    housekeeping = Housekeeping(_any(settings), loop, deleting, _any(tree), events.append, begins_behind.append)
    try:
        for number, path in ((1, "quick"), (2, "slow"), (3, "quick")):
            housekeeping.delete(Removal(number, (), (path,)), JournalState(number=number))
        assert loop.run(lambda: len(events) == 2 and bool(tree.compacted), PATIENCE)
        assert tree.compacted == [1], "the summary forgets what is deleted, and nothing else"
        tree.may.set()
        assert loop.run(lambda: len(tree.compacted) == 2, PATIENCE)
        assert begins_behind == tree.compacted == [1, 2]
    finally:
        tree.may.set()
        deleting.close()
        loop.close()


def _any(given: object) -> Any:
    return given
