"""Somebody between two processes who lets the handshake pass and then speaks: refused by name, and nothing is run."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
from recovery.driver.attempts.workers import Appeared, Commanded, Lost, Refused, Reported, WorkerEvent, Workers
from recovery.driver.remote.command_messages import Asked, StopJob
from recovery.driver.remote.commands import Commands
from recovery.events import WorkerDied, WorkerLost
from snapshot import EOF, Collection, Stream, ToDriver
from snapshot.cut.frames import Watermark
from snapshot.cut.seals import SEAL_SIZE, RecordWriter, Seals
from snapshot.cut.wire import encode
from snapshot.host import links
from snapshot.host.net.connector import Connector
from snapshot.host.net.event_loop import EventLoop, Watch
from snapshot.host.net.tls import Tls, TlsSide
from snapshot.host.process.worker import DriverLost, Worker
from snapshot.host.protocol.messages import Address, Hello
from statebackend.ids import Attempt, Generation, Incarnation
from tests.certificates import Authority
from tests.connections import sealed, tcp_pair

HOME = "127.0.0.1"
SECRET = b"s" * 32
LIMIT = 20.0
BROKEN_BY_TLS = "decryption failed or bad record mac"


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (self.folder,)


@dataclass
class Relay:
    """Leads every connection on to the driver, and can say something of its own on it."""

    loop: EventLoop
    stack: ExitStack
    driver: Address
    ways: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    """To the process and to the driver, in the order in which they were made: the first is for messages."""

    def __post_init__(self) -> None:
        self._port = self.stack.enter_context(socket.create_server((HOME, 0)))
        self._watch(self._port, self._accept)

    @property
    def address(self) -> Address:
        return Address(HOME, int(self._port.getsockname()[1]))

    def _watch(self, sock: socket.socket, call: Callable[[], object]) -> Watch:
        watch = self.loop.watch(sock, call)
        watch.reading(True)
        self.stack.callback(watch.close)
        return watch

    def _accept(self) -> None:
        near = self.stack.enter_context(self._port.accept()[0])
        far = self.stack.enter_context(socket.create_connection((self.driver.host, self.driver.port)))
        self.ways.append((near, far))
        for source, target in ((near, far), (far, near)):
            self._carry(source, target)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        def hand_on() -> None:
            data = b""
            with suppress(OSError):
                data = source.recv(1 << 16)
                target.sendall(data)
            if not data:
                watch.reading(False)
                with suppress(OSError):
                    target.shutdown(socket.SHUT_WR)

        watch = self._watch(source, hand_on)


@dataclass
class Scene:
    """A driver's port, a process, and somebody between them."""

    loop: EventLoop
    stack: ExitStack
    tls: TlsSide | None
    hello: Hello | None = None
    reasons: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    process_said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        workers = Workers(self.loop, HOME, SECRET, LIMIT, self.hears, tls=self.tls)
        self.stack.callback(workers.close)
        self.workers = workers
        self.relay = Relay(self.loop, self.stack, workers.address)
        process = Worker(self.relay.address, SECRET, 0, 0, self.tls)
        thread = threading.Thread(target=self._run, args=(process,), daemon=True)
        thread.start()
        self.until(lambda: self.hello is not None and len(self.relay.ways) == 3)
        self.until(lambda: bool(workers._words) and all(worker.beats for worker in workers._workers.values()))

    def _run(self, process: Worker) -> None:
        try:
            process.run()
        except DriverLost as error:
            self.process_said.append(str(error))
        self.loop.wake()

    def until(self, true: Callable[[], bool]) -> None:
        assert self.loop.run(true, LIMIT), (self.reasons, self.refusals)

    def hears(self, event: WorkerEvent) -> None:
        match event:
            case Appeared(hello):
                self.hello = hello
            case Lost(reason=reason):
                self.reasons.append(reason)
            case Reported(_, message):
                self.reasons.append(f"it said {message}")
            case Refused(_, reason):
                self.refusals.append(reason)
            case Commanded():
                pass


@pytest.fixture(params=["plain", "tls"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    tls = Authority(tmp_path_factory.mktemp("tls") / "ours").issue().load() if request.param == "tls" else None
    with ExitStack() as stack:
        loop = EventLoop()
        stack.callback(loop.close)
        yield Scene(loop, stack, tls)


def forged(scene: Scene, trap: Path) -> bytes:
    """A message as its receiver would take it, but for what only who knows the keys can make."""
    record = RecordWriter(Seals(bytes(32), bytes(32))).record(pickle.dumps(Trap(trap)))
    return record if scene.tls is None else b"\x17\x03\x03" + struct.pack(">H", len(record)) + record


def test_what_a_relay_says_to_the_driver_is_not_unpickled_and_the_process_is_lost_by_name(
    scene: Scene, tmp_path: Path
) -> None:
    scene.relay.ways[0][1].sendall(forged(scene, tmp_path / "trap"))
    scene.until(lambda: bool(scene.reasons))
    (reason,) = scene.reasons
    assert (BROKEN_BY_TLS if scene.tls else "ForgedRecord: message 1 of") in reason
    assert not (tmp_path / "trap").exists()
    scene.until(lambda: bool(scene.process_said))


def test_what_a_relay_says_to_a_process_is_not_unpickled_and_it_ends_with_the_reason(
    scene: Scene, tmp_path: Path
) -> None:
    scene.relay.ways[0][0].sendall(forged(scene, tmp_path / "trap"))
    scene.until(lambda: bool(scene.process_said))
    assert (BROKEN_BY_TLS if scene.tls else "ForgedRecord: message 0 of") in scene.process_said[0]
    assert not (tmp_path / "trap").exists()
    scene.until(lambda: bool(scene.reasons))
    if scene.tls is None:
        (told,) = scene.reasons
        assert told.startswith("what came to it from the driver cannot be used: ForgedRecord: message 0 of")
        assert told.endswith("turn on tls")


def test_what_a_relay_says_between_beats_ends_that_connection_and_the_heart_comes_back(
    scene: Scene, tmp_path: Path
) -> None:
    for _, to_driver in scene.relay.ways[1:]:
        to_driver.sendall(forged(scene, tmp_path / "trap"))
    if scene.tls is None:
        scene.until(lambda: bool(scene.refusals))
        assert scene.refusals[0].startswith(f"heartbeat of {scene.hello and scene.hello.worker}: ForgedRecord")
    scene.until(lambda: len(scene.relay.ways) == 4)
    scene.until(lambda: len([one for one in scene.workers._workers.values() if one.beats is not None]) == 1)
    assert scene.reasons == []
    assert not (tmp_path / "trap").exists()


def test_what_a_relay_says_as_a_person_commands_nothing_and_is_told_with_the_name() -> None:
    loop, refused, commanded = EventLoop(), list[str](), list[object]()
    near, far = tcp_pair()
    commands = Commands(loop, lambda *command: commanded.append(command), lambda *told: refused.append(": ".join(told)))
    commands.take(sealed(far, near)[0], "somebody (process 7)")
    asked = pickle.dumps(Asked(1, StopJob(savepoint=False)))
    near.sendall(RecordWriter(Seals(bytes(32), bytes(32))).record(asked))
    assert loop.run(lambda: bool(refused), LIMIT)
    assert refused[0].startswith("somebody (process 7): ForgedRecord: message 0 of")
    assert commanded == []
    near.close()
    commands.close()
    loop.close()


# --- a whole job


class InThreads:
    """A launcher whose processes are threads of this one, and reach the driver through a relay."""

    host = HOME
    local = None

    def __init__(self) -> None:
        self.loop, self.stack = EventLoop(), ExitStack()
        self.to_driver: Relay | None = None
        self.to_partitions: dict[Address, Relay] = {}
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._processes: list[threading.Thread] = []
        self._thread.start()

    def _run(self) -> None:
        self.loop.run(lambda: self._over)
        self.stack.close()
        self.loop.close()

    def now(self, do: Callable[[], object]) -> Any:
        """Do it in the thread of the relays; what came of it."""
        done, results = threading.Event(), list[object]()

        def call() -> None:
            results.append(do())
            done.set()

        self.loop.wake(call)
        assert done.wait(LIMIT)
        return results[0]

    def through(self, address: Address) -> Address:
        """Return where a relay listens that leads there."""
        relay = self.now(lambda: self.to_partitions.get(address) or Relay(self.loop, self.stack, address))
        return self.to_partitions.setdefault(address, relay).address

    def check(self, processes: int) -> Sequence[str]:
        return ()

    def start(self, driver: Address, secret: bytes, processes: int, trouble: object, tls: Tls | None = None) -> None:
        self.to_driver = self.now(lambda: Relay(self.loop, self.stack, driver))
        for slot in range(processes):
            thread = threading.Thread(target=self._serve, args=(secret, slot), daemon=True)
            self._processes.append(thread)
            thread.start()

    def _serve(self, secret: bytes, slot: int) -> None:
        assert self.to_driver is not None
        with suppress(DriverLost):
            Worker(self.to_driver.address, secret, slot, slot).run()

    def appeared(self, launch: int, worker: str) -> bool:
        return True

    def lost(self, worker: str, *, silent: bool) -> None:
        pass

    def release(self) -> None:
        pass

    def stop(self, seconds: float) -> None:
        for thread in self._processes:
            thread.join(seconds)
        self._over = True
        self.loop.wake()
        self._thread.join(LIMIT)


def started(folder: Path, launcher: InThreads, parallelism: int) -> recovery.Run:
    """A job that has committed an epoch, waits for more input, and is not tried again."""
    schema = pa.schema({"k": pa.string(), "n": pa.int64()})
    numbers = Stream.read(Collection([("a", 1), EOF(), ("never", 1)], schema), uid="numbers")
    run = recovery.run(
        numbers.key_by("k").sum("n", uid="count").write(ToDriver(), uid="out"),
        checkpoints=folder / "tree",
        local=folder / "local",
        launcher=launcher,
        parallelism=parallelism,
        every="50ms",
        progress=False,
        job="relayed",
        scheme=recovery.Passive(restarts=recovery.NoRestart()),
    )
    assert next(run.rows("out")) == {"k": "a", "n": 1}
    return run


@pytest.mark.parametrize("to_driver", [True, False], ids=["to the driver", "to a process"])
def test_a_job_that_a_relay_has_spoken_to_says_what_happened_and_what_to_do(
    to_driver: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = InThreads()
    run = started(tmp_path, launcher, 1)
    assert launcher.to_driver is not None
    near, far = launcher.to_driver.ways[0]
    record = RecordWriter(Seals(bytes(32), bytes(32))).record(pickle.dumps(Trap(tmp_path / "trap")))
    launcher.now(lambda: (far if to_driver else near).sendall(record))
    with pytest.raises(recovery.JobFailed, match=r"ForgedRecord: message .* turn on tls"):
        run.wait(LIMIT)
    (lost,) = [event for event in run.events if isinstance(event, WorkerLost)]
    assert "ForgedRecord" in lost.reason
    for died in [event for event in run.events if isinstance(event, WorkerDied)]:
        assert "was given up with its connection to the driver: " in died.how
        assert "killer" not in died.how
    assert "ForgedRecord" in run.status().failure
    assert "turn on tls" in run.status().failure
    assert any("ForgedRecord" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert not (tmp_path / "trap").exists()


def test_a_job_whose_channel_a_relay_has_spoken_on_says_what_happened_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = InThreads()

    def led_astray(loop: EventLoop, address: Address, *others: Any, **named: Any) -> Connector:
        return Connector(loop, launcher.through(address), *others, **named)

    monkeypatch.setattr(links, "Connector", led_astray)
    run = started(tmp_path, launcher, 2)
    watermark = b"".join(encode(Watermark(10**15), Incarnation(Generation(1), Attempt(1)))) + bytes(SEAL_SIZE)
    relay = next(iter(launcher.to_partitions.values()))
    launcher.now(lambda: relay.ways[0][1].sendall(watermark))
    with pytest.raises(recovery.JobFailed, match=r"ForgedFrame: channel .* turn on tls"):
        run.wait(LIMIT)
    assert "ForgedFrame" in run.status().failure
    assert any("ForgedFrame" in record.getMessage() for record in caplog.records)
