"""What goes wrong around a driver and is not the job's own fault: the job goes on, or ends, and everybody hears it."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import recovery
import recovery.driver.tree.owned
from recovery.driver import generation, housekeeping
from recovery.driver.attempts.requests import Cancelled, End, EndKind
from recovery.driver.claim import Start, claim
from recovery.events import AnyEvent, EpochsRemoved, GaveUp, PeerRefused, Trouble, WorkerJoined, WorkerLost
from snapshot.cut.pauses import Then
from snapshot.host.net.connection_kinds import LastWordsOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.protocol.messages import AssignSplits, TriggerEpoch
from statebackend.ids import Epoch
from statebackend.stores.local_store import LocalStore
from tests.scripted_workers import PATIENCE, ScriptedCluster
from tests.test_driver_runs import completed, of_kind, start


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


def heard(run: recovery.Run, wanted: Callable[[AnyEvent], bool]) -> threading.Event:
    """Set when such an event comes."""
    came = threading.Event()
    run._driver.events.listen(lambda event: came.set() if wanted(event) else None)
    return came


# --- the terminal


class Broken(io.StringIO):
    """A terminal whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_job_whose_terminal_is_gone_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Broken())
    end = start(tmp_path, ScriptedCluster(end=True), every="1h", progress=True).wait(PATIENCE)
    assert end is not None
    assert end.kind is EndKind.FINISHED


def test_ctrl_c_stops_a_job_whose_terminal_is_gone(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    monkeypatch.setattr(sys, "stderr", Broken())
    with pytest.raises(KeyboardInterrupt), run:
        raise KeyboardInterrupt
    assert run.status().state is recovery.RunState.STOPPED


# --- SIGTERM


@pytest.fixture
def no_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "it is put back"
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("no_handler")
def test_a_second_sigterm_cancels_a_job_that_cannot_stop(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    cluster.habits.acknowledge = False

    def terminate_twice() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        cluster.await_heard(TriggerEpoch, 1, lambda told: told.then is Then.STOP)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    sender = threading.Thread(target=terminate_twice)

    def wait() -> None:
        with run:
            sender.start()
            sender.join(PATIENCE)

    with pytest.raises(SystemExit) as ended:
        wait()
    sender.join()
    assert ended.value.code == 143
    assert run.status().state is recovery.RunState.STOPPED
    assert isinstance(run._driver.outcome, Cancelled)


@pytest.mark.usefixtures("no_handler")
def test_a_signal_that_another_thread_is_given_stops_the_job(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run, main = start(tmp_path, cluster), threading.main_thread().ident or 0
    completed(cluster, 1)

    def take() -> None:
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            os.sched_yield()
        while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
            os.sched_yield()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    began = time.monotonic()
    taker = threading.Thread(target=take)
    taker.start()
    with pytest.raises(SystemExit):
        run.wait(PATIENCE)
    taker.join()
    assert time.monotonic() < began + PATIENCE / 2, "the main thread's lock is not woken by it"
    assert isinstance(run._driver.outcome, End)


@pytest.mark.usefixtures("no_handler")
def test_sigterm_in_a_with_block_stops_the_job_cleanly(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    with pytest.raises(SystemExit), run:
        signal.raise_signal(signal.SIGTERM)
    assert isinstance(run._driver.outcome, End)


def test_a_handler_of_the_program_and_other_threads_are_left_alone(tmp_path: Path, cluster: ScriptedCluster) -> None:
    def mine(_signal: int, _frame: object) -> None:
        raise AssertionError

    seen: list[object] = []
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with start(tmp_path, cluster) as run:
            seen.append(signal.getsignal(signal.SIGTERM))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

            def look() -> None:
                with suppress(TimeoutError):
                    run.wait(0.0)
                with run:
                    seen.append(signal.getsignal(signal.SIGTERM))

            looking = threading.Thread(target=look)
            looking.start()
            looking.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [mine, signal.SIG_DFL]


# --- the end


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_is_over_whatever_fails_while_its_end_is_told(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)

    close = run._driver.events.close

    def fails(*_: object) -> None:
        close()
        raise RuntimeError("no more")

    monkeypatch.setattr(run._driver.events, "close", fails)
    monkeypatch.setattr(run._driver._progress, "end", fails)
    run._driver.ask(lambda generation: generation.stop(savepoint=False))
    end = run.wait(PATIENCE)
    assert end is not None
    assert end.kind is EndKind.STOPPED
    assert list(run.batches("out"))
    run._driver._thread.join(PATIENCE)
    assert not any(worker.there for worker in cluster.workers)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_processes_are_stopped_also_if_the_job_ends_with_an_error_that_is_raised_again(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)

    def mistake(_: AnyEvent) -> None:
        raise ValueError("of the driver")

    monkeypatch.setattr(run._driver.status, "event", mistake)
    with pytest.raises(ValueError, match="of the driver"):
        run.wait(PATIENCE)
    run._driver._thread.join(PATIENCE)
    assert not any(worker.there for worker in cluster.workers)


def test_who_wishes_for_a_savepoint_while_the_job_ends_is_answered_at_once(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, cluster, every="1h")
    cluster.await_heard(AssignSplits, 2)
    answers: list[BaseException | None] = []
    stop = cluster.stop

    def ask_and_stop(seconds: float) -> None:
        answers.append(run._driver.savepoint().exception(PATIENCE))
        stop(seconds)

    monkeypatch.setattr(cluster, "stop", ask_and_stop)
    run.cancel()
    assert [type(answer) for answer in answers] == [Cancelled]


def test_a_wish_that_the_driver_does_not_come_to_hear_is_answered_when_the_job_is_over(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, cluster, every="1h")
    wished: list[Future[Epoch]] = []
    close = run._driver._loop.close

    def ask_and_close() -> None:
        wished.append(run._driver.savepoint())
        close()
        wished.append(run._driver.savepoint())

    monkeypatch.setattr(run._driver._loop, "close", ask_and_close)
    run.cancel()
    for wish in (*wished, run._driver.savepoint()):
        with pytest.raises(recovery.JobFailed, match="the job is over"):
            wish.result(PATIENCE)
    assert len(wished) == 2


# --- processes


def test_a_job_that_waits_for_processes_says_so_again_and_again(tmp_path: Path) -> None:
    cluster = ScriptedCluster(relaunch=False)
    run = start(tmp_path, cluster, start_timeout="1500ms")
    completed(cluster, 1)
    lost, troubled = (heard(run, lambda event, kind=kind: isinstance(event, kind)) for kind in (WorkerLost, Trouble))  # type: ignore[misc]
    run._driver.ask(lambda generation: generation.check_processes(0.0))
    cluster.worker_of(1).die()
    assert lost.wait(PATIENCE)
    assert troubled.wait(PATIENCE)
    run.cancel()
    trouble = of_kind(run, Trouble)[0]
    assert trouble.what == "the job's processes"
    assert trouble.reason.startswith("only 1 of 2 are there since")
    assert trouble.at - of_kind(run, WorkerLost)[0].at >= 1.4


# --- the store, the port


def test_a_job_whose_store_takes_long_for_the_claim_is_not_ended_for_want_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, joined = ScriptedCluster(first=()), threading.Semaphore(0)
    answers = threading.Event()

    def claim_late(*given: Any) -> Start:
        assert answers.wait(PATIENCE)
        return claim(*given)

    monkeypatch.setattr(generation, "claim", claim_late)
    run = start(tmp_path, cluster)
    run._driver.events.listen(lambda event: joined.release() if isinstance(event, WorkerJoined) else None)
    for slot in (0, 1):
        cluster._launch(slot)
        assert joined.acquire(timeout=PATIENCE)
    told = heard(run, lambda event: isinstance(event, Trouble | GaveUp))
    run._driver.ask(lambda generation: generation.check_processes(120.0))
    assert told.wait(PATIENCE)
    answers.set()
    completed(cluster, 1)
    run.cancel()
    assert [event.what for event in of_kind(run, Trouble)] == ["starting the job"]


def test_what_could_not_be_deleted_is_deleted_later_and_the_journal_is_kept_short(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_PAUSES", (0.01, 0.02))
    delete, compact = LocalStore.delete, recovery.driver.tree.owned.Tree.compact
    fails, compacted = iter(range(3)), threading.Event()

    def delete_at_last(store: LocalStore, path: str) -> None:
        if path.startswith("epochs/") and next(fails, None) is not None:
            raise OSError(errno.EIO, f"not {path}")
        delete(store, path)

    def and_say_so(*given: Any) -> None:
        compact(*given)
        compacted.set()

    monkeypatch.setattr(LocalStore, "delete", delete_at_last)
    monkeypatch.setattr(recovery.driver.tree.owned.Tree, "compact", and_say_so)
    run = start(tmp_path, cluster, compact_after=1, retain=1)
    assert compacted.wait(PATIENCE)
    run.stop()
    assert [event.what for event in of_kind(run, Trouble)] == ["deleting files that are not needed"] * 3
    removed = [epoch for event in of_kind(run, EpochsRemoved) for epoch in event.epochs]
    first = min(removed)
    assert first.number == 1, "the one whose deletion failed first"
    assert len(removed) == len(set(removed))


def test_strangers_at_the_drivers_port_do_not_fill_the_log(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster)
    completed(cluster, 1)
    assert cluster.driver is not None
    counted = heard(run, lambda event: isinstance(event, PeerRefused) and not event.peer)
    for _ in range(60):
        with socket.create_connection((cluster.driver.host, cluster.driver.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
    assert counted.wait(PATIENCE)
    run.cancel()
    told = of_kind(run, PeerRefused)
    assert len(told) < 60
    others = [int(event.reason.split()[0]) for event in told if not event.peer]
    assert len([event for event in told if event.peer]) + sum(others) == 60


class WithOneOnItsWay(ScriptedCluster):
    """A process has reached the driver and said nothing yet, and hangs up when the job is over; another one comes then
    with its last words, and strangers do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused = threading.Semaphore(0)
        self.on_its_way: socket.socket | None = None

    def connect(self) -> socket.socket:
        assert self.driver is not None
        return socket.create_connection((self.driver.host, self.driver.port))

    def say_last_words(self) -> None:
        assert self.driver is not None
        loop, failed = EventLoop(), list[str]()
        Connector(loop, self.driver, self.secret, LastWordsOf("nobody"), print, failed.append, seconds=PATIENCE)
        loop.run(lambda: bool(failed))
        loop.close()
        assert "TurnedAway" in failed[0]

    def stop(self, seconds: float) -> None:
        assert self.on_its_way is not None
        self.on_its_way.close()
        self.say_last_words()
        for _ in range(2):  # when the driver has heard the second one, it has heard that the first process hung up
            with self.connect() as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
                assert self.refused.acquire(timeout=PATIENCE)
        super().stop(seconds)


def test_a_process_that_is_on_its_way_when_the_job_is_over_is_not_told_as_refused_and_a_stranger_is(
    tmp_path: Path,
) -> None:
    cluster = WithOneOnItsWay()
    run = start(tmp_path, cluster)
    run.listen(lambda event: cluster.refused.release() if isinstance(event, PeerRefused) else None)
    completed(cluster, 1)
    cluster.on_its_way = cluster.connect()
    run.cancel()
    told = of_kind(run, PeerRefused)
    assert len(told) == 2
    assert all("does not speak our protocol" in event.reason for event in told)
