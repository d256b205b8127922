"""Processes that are forked from one that is ready: quick, independent of it, and of each other."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

import recovery
from recovery.driver.launchers import forking, local_processes
from recovery.driver.launchers.launch_rules import Launch
from recovery.driver.launchers.supervisor import Keeper
from recovery.events import WorkerJoined, WorkerLost
from snapshot.host.process.fork_server import Advice, Ended, Lines, Message, Ready, Started, Wanted
from snapshot.host.process.preload import MODULES
from snapshot.host.process.worker import DRIVER_LOST
from snapshot.host.protocol.messages import Address
from tests.test_running_locally import check_exact, program, start, when_complete

pytestmark = pytest.mark.usefixtures("with_pandas")

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0
NOBODY = ("127.0.0.1", 1)
TOO_SHORT = "ab"
"""A process refuses this secret, and ends at once, with exit code 1."""


class Server:
    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self._heard: list[Message] = []

    def next(self, kind: type[Message]) -> Message:
        """What it says of this kind, with which nothing that came before it is lost."""
        while True:
            for message in self._heard:
                if isinstance(message, kind):
                    self._heard.remove(message)
                    return message
            self._heard += self.lines.receive()


@contextmanager
def fork_server(advice: tuple[str, ...] = (), **environment: str) -> Iterator[Server]:
    ours, its = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "snapshot.host.process.fork_server"],
        stdin=its.fileno(),
        env={**os.environ, **environment},
    )
    its.close()
    ours.settimeout(PATIENCE)
    try:
        server = Server(Lines(ours))
        server.lines.send(Advice(advice))
        yield server
        ours.close()
        assert process.wait(PATIENCE) == 0, "it ends when nobody needs it"
    finally:
        ours.close()
        process.kill()
        process.wait()


def test_a_process_is_forked_by_one_that_has_a_single_thread_and_its_end_is_told() -> None:
    with fork_server() as server:
        assert server.next(Ready) == Ready(1)
        for launch in (1, 2):
            server.lines.send(Wanted(launch, 0, *NOBODY, TOO_SHORT))
        pids = {message.pid for message in (server.next(Started), server.next(Started)) if isinstance(message, Started)}
        assert len(pids) == 2
        assert {server.next(Ended), server.next(Ended)} == {Ended(1, 1), Ended(2, 1)}


def test_a_process_whose_forerunner_has_threads_is_started_anew(tmp_path: Path) -> None:
    module = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "with_a_thread.py").write_text(module)
    with fork_server(("with_a_thread",), PYTHONPATH=f"{tmp_path}{os.pathsep}{Path(__file__).parent.parent}") as server:
        assert server.next(Ready) == Ready(2)
        server.lines.send(Wanted(1, 0, *NOBODY, TOO_SHORT))
        assert server.next(Ended) == Ended(1, 1)


def test_a_process_keeps_no_descriptor_and_no_session_of_its_forerunner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as driver, fork_server() as server:
        driver.settimeout(PATIENCE)
        server.lines.send(Wanted(1, 0, "127.0.0.1", driver.getsockname()[1], "ab" * 32))
        connection, _ = driver.accept()
        started = server.next(Started)
        assert isinstance(started, Started)
        links = {link.name: str(link.readlink()) for link in Path(f"/proc/{started.pid}/fd").iterdir()}
        with connection:
            assert os.getsid(started.pid) == started.pid
            sockets = [link for link in links.values() if link.startswith("socket:")]
            assert len(sockets) == 3, "its own two of the event loop, and the one to the driver"
            assert links["0"] == os.devnull
        assert server.next(Ended) == Ended(1, DRIVER_LOST)


def test_each_process_draws_random_numbers_of_its_own() -> None:
    code = """
import os, sys
from snapshot.host.process.preload import preload
preload(["numpy.random"])
import numpy
drawn = set()
for _ in range(3):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, str(numpy.random.random()).encode())
        os._exit(0)
    drawn.add(os.read(reading, 100))
print(len(drawn))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.split() == ["3"]


@pytest.mark.parametrize(
    ("variables", "loaded"),
    [
        (
            {MODULES: "snapshot.connectors.files.sink,snapshot.connectors.files.of_another_version"},
            ["snapshot.connectors.files.sink"],
        ),
        ({}, ["snapshot.connectors.files.sink", "snapshot.connectors.kafka.sink"]),
    ],
)
def test_a_daemon_of_spark_loads_what_the_driver_asks_for_and_everything_if_it_cannot_ask(
    variables: dict[str, str], loaded: list[str]
) -> None:
    code = """
import sys
from snapshot.host.process.preload import preload, wanted_modules
preload(wanted_modules())
print(*(name for name in ("snapshot.connectors.files.sink", "snapshot.connectors.kafka.sink") if name in sys.modules))
"""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.split() == loaded


def test_a_job_goes_on_though_what_forks_its_processes_is_killed_and_one_of_them_too(tmp_path: Path) -> None:
    launcher = recovery.LocalProcesses()
    run = start(tmp_path, launcher, program())
    killed: list[int] = []

    def kill() -> None:
        assert launcher.server_pid is not None
        killed.append(launcher.server_pid)
        os.kill(launcher.server_pid, signal.SIGKILL)
        os.kill(launcher.pids[1], signal.SIGKILL)

    when_complete(run, 3, kill)
    run.wait(PATIENCE)
    check_exact(run)
    assert launcher.server_pid not in killed
    lost = [event for event in run.events if isinstance(event, WorkerLost)]
    assert len(lost) == 1, "the other process has lived on"


@pytest.mark.usefixtures("kept")
def test_two_jobs_go_on_though_what_forks_the_processes_of_both_is_killed_and_one_of_each(tmp_path: Path) -> None:
    launchers = [recovery.LocalProcesses(), recovery.LocalProcesses()]
    runs = [start(tmp_path / str(place), launcher, program()) for place, launcher in enumerate(launchers)]
    try:
        for run in runs:
            run.savepoint(PATIENCE)
        (server,) = {launcher.server_pid for launcher in launchers}
        assert server is not None
        os.kill(server, signal.SIGKILL)
        for launcher in launchers:
            os.kill(launcher.pids[0], signal.SIGKILL)
        for run in runs:
            run.wait(PATIENCE)
            check_exact(run)
    finally:
        for run in runs:
            run.cancel()


def test_a_program_that_ends_while_its_job_runs_ends_at_once(tmp_path: Path) -> None:
    """The thread that hears of the end of what forks processes must not wait for those that live on."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom tests.endless_job import start\n"
        "if __name__ == '__main__':\n    start(Path(sys.argv[1])).savepoint(60)\n"
    )
    command = [sys.executable, str(script), str(tmp_path / "job")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=variables, check=False)
    assert (ended.returncode, "the program ended" in ended.stderr) == (0, True), ended.stderr


@contextmanager
def launching(told: SimpleQueue[str]) -> Iterator[recovery.LocalProcesses]:
    """Processes that end at once, as they refuse their secret; what is told of them is put into the queue."""
    launcher = recovery.LocalProcesses()
    launcher.start(Address(*NOBODY), bytes.fromhex(TOO_SHORT), 1, told.put)
    try:
        yield launcher
    finally:
        launcher.stop(0.0)


def ended_of(told: SimpleQueue[str]) -> None:
    assert "ended with exit code" in told.get(timeout=PATIENCE)


def server_of_a_job() -> int:
    """The fork server of a job whose process has come and ended."""
    told: SimpleQueue[str] = SimpleQueue()
    with launching(told) as launcher:
        ended_of(told)
        assert launcher.server_pid is not None
        return launcher.server_pid


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[forking._Kept]:
    """Nothing that other tests have left."""
    kept = forking._Kept()
    monkeypatch.setattr(forking, "_KEPT", kept)
    yield kept
    kept.close()


@pytest.mark.usefixtures("kept")
def test_jobs_of_one_process_share_what_forks_their_processes_and_each_hears_of_its_own() -> None:
    first, second, told = SimpleQueue[str](), SimpleQueue[str](), SimpleQueue[str]()
    with launching(first) as one, launching(second) as other:
        for queue in (first, second):
            ended_of(queue)
        server = one.server_pid
        assert server == other.server_pid is not None
    with launching(told) as third:
        ended_of(told)
        assert third.server_pid == server, "it outlives a job"
        assert server is not None
        os.kill(server, signal.SIGKILL)
        while third.server_pid in (server, None):
            told.get(timeout=PATIENCE)
    assert server_of_a_job() not in (server, None), "one that has died is replaced"


@pytest.mark.usefixtures("kept")
def test_a_job_has_what_forks_anew_if_it_would_not_be_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server_of_a_job()
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert server_of_a_job() != first
    assert not Path(f"/proc/{first}").exists(), "nobody would use it"
    found = [forking._surroundings()]
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another one")
    assert forking._surroundings() == found[0]
    monkeypatch.chdir(tmp_path)
    found.append(forking._surroundings())
    mask, output, ignored = os.umask(0o27), os.dup(1), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        found.append(forking._surroundings())
        with (tmp_path / "output").open("w") as file:
            os.dup2(file.fileno(), 1)
        found.append(forking._surroundings())
    finally:
        os.umask(mask)
        os.dup2(output, 1)
        os.close(output)
    found.append(forking._surroundings())
    signal.signal(signal.SIGHUP, ignored)
    found.append(forking._surroundings())
    assert len(set(found)) == 5, "the folder, the mask of new files, the output, the signals"
    assert found[-1] == found[1]


def test_what_forks_is_not_shared_with_a_process_that_was_forked_and_ends_with_the_one_that_started_it(
    tmp_path: Path,
) -> None:
    code = """
import os
from tests.test_local_processes import forking, server_of_a_job
server = server_of_a_job()
if os.fork() == 0:
    other = server_of_a_job()
    assert other != server
    forking._KEPT.close()
    os._exit(0)
assert os.wait()[1] == 0
assert server_of_a_job() == server
print(server)
"""
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, "such as that nobody waits for a process"
    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_what_forks_ends_when_no_job_has_needed_it_for_long(
    kept: forking._Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_LISTEN", 0.05)
    monkeypatch.setattr(forking, "_IDLE", 0.0)
    told: SimpleQueue[str] = SimpleQueue()
    with launching(told):
        ended_of(told)
        server = kept._server
        assert server is not None
    server._thread.join(PATIENCE)
    assert server.process.poll() is not None
    assert server_of_a_job() != server.process.pid


def test_a_process_that_hangs_is_killed_and_another_one_takes_its_place(tmp_path: Path) -> None:
    launcher = recovery.LocalProcesses()
    run = start(tmp_path, launcher, program(), heartbeat="50ms", lost_after="500ms")
    hanging: list[int] = []

    def stop() -> None:
        hanging.append(launcher.pids[0])
        os.kill(hanging[0], signal.SIGSTOP)

    when_complete(run, 3, stop)
    run.wait(PATIENCE)
    check_exact(run)
    joined = [event.pid for event in run.events if isinstance(event, WorkerJoined)]
    assert len(joined) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(hanging[0], 0)


@pytest.mark.usefixtures("kept")
def test_a_process_that_cannot_be_started_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    popen, failures = subprocess.Popen, [BlockingIOError(errno.EAGAIN, "too many"), MemoryError()]
    told: list[str] = []
    started = threading.Event()

    def scarce(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if failures:
            raise failures.pop(0)
        started.set()
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", scarce)
    launcher = recovery.LocalProcesses()
    launcher.start(Address(*NOBODY), b"s" * 32, 1, told.append)
    assert started.wait(PATIENCE)
    launcher.stop(0.0)
    assert [line.partition(", which")[0] for line in told[:2]] == ["the process in slot 0 cannot be started"] * 2
    assert "too many" in told[0]


def test_a_launch_that_is_asked_for_while_the_forking_process_ends_hides_no_other() -> None:
    launcher, told = recovery.LocalProcesses(), list[str]()
    launcher._keeper = Keeper(launcher, 2, 0.0, told.append, "process")
    server = SimpleNamespace(launches={1, 2}, was_ready=False)

    class Asked(dict[int, local_processes._Running]):
        """What runs, whose first look-up coincides with the keeper's next request."""

        def __contains__(self, launch: object) -> bool:
            server.launches.add(3 + len(server.launches))
            return super().__contains__(launch)

    launches = [step for step in launcher._keeper._slots.step(time.monotonic()) if isinstance(step, Launch)]
    launcher._running = Asked({launch.number: local_processes._Running(launch) for launch in launches})
    launcher.server_ended(server)  # type: ignore[arg-type]  # what it has of one
    assert launcher._running == {}
    assert len(told) == 2


@pytest.mark.usefixtures("kept")
def test_what_forks_processes_is_not_left_behind_when_there_is_no_thread_to_hear_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    popen, begin = subprocess.Popen, threading.Thread.start
    forking: list[subprocess.Popen[bytes]] = []
    told: SimpleQueue[str] = SimpleQueue()

    def noted(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        forking.append(popen(command, **options))
        return forking[-1]

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "fork-server":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(threading.Thread, "start", scarce)
    launcher = recovery.LocalProcesses()
    launcher.start(Address(*NOBODY), b"s" * 32, 1, told.put)
    for _ in range(2):
        assert told.get(timeout=PATIENCE).endswith("which is tried again: RuntimeError: can't start new thread")
    launcher.stop(0.0)
    assert all(process.poll() is not None for process in forking)
