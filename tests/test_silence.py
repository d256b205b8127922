"""Connections between two processes that live, and that carry nothing: they break; slow ones do not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest

from recovery.driver.attempts import workers
from recovery.driver.attempts.workers import Appeared, Lost, WorkerEvent, Workers
from snapshot.cut.frames import Data, Frame
from snapshot.epochs.coordinator_options import ContradictingOptions
from snapshot.host.net.channels import ReceivingChannel, SendingChannel
from snapshot.host.net.connection_kinds import ConnectionKind
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.listener import Listener
from snapshot.host.process import worker
from snapshot.host.process.heartbeat import Beats, Heartbeat
from snapshot.host.process.worker import DriverLost, Worker
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import ChannelId, Copy
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.connections import sealed
from tests.silence import deafen

US = Incarnation(Generation(3), Attempt(2))
CHANNEL = Copy(ChannelId(Uid("clicks"), Uid("count"), Partition(0), Partition(1)))
OPTIONS = HostOptions(socket_buffer=16 << 10, channel_buffer=64 << 10, channel_timeout=1_000)
LIMIT = 30.0


@dataclass
class Line:
    """A channel, both ends of it in one loop."""

    options: HostOptions = OPTIONS
    arrived: list[Frame] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.near = socket.create_connection(listener.getsockname())
            self.far = listener.accept()[0]
        self.loop = EventLoop()
        self.sending = SendingChannel(
            self.loop,
            sealed(self.near, self.far)[0],
            CHANNEL,
            US,
            lambda: None,
            self.broken.append,
            ordered=True,
            options=self.options,
        )
        self.receiving = ReceivingChannel(
            self.loop,
            sealed(self.near, self.far)[1],
            CHANNEL,
            US,
            lambda _, frame: self.arrived.append(frame),
            self.broken.append,
            options=self.options,
        )

    def close(self) -> None:
        self.sending.close()
        self.receiving.close()
        self.loop.close()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def data(size: int) -> Data:
    return Data(bytes(size), size)


@pytest.mark.parametrize("deaf", [("near", "far"), ("far",)], ids=["cut", "one way"])
@pytest.mark.parametrize("in_use", [False, True])
def test_a_channel_that_carries_nothing_breaks_in_time(line: Line, deaf: tuple[str, ...], in_use: bool) -> None:
    line.sending.put(data(10))
    assert line.loop.run(lambda: bool(line.arrived), LIMIT)
    began = time.monotonic()
    for end in deaf:
        deafen(getattr(line, end))
    if in_use:
        line.sending.put(data(100))
    assert line.loop.run(lambda: bool(line.broken), LIMIT)
    assert "timed out" in line.broken[0]
    assert time.monotonic() - began < 6
    assert len(line.arrived) == 1


def test_neither_an_idle_channel_nor_one_that_is_full_for_long_breaks(line: Line) -> None:
    idle = Line()
    line.receiving.pause()
    for _ in range(80):
        line.sending.put(data(100_000))
    assert not line.loop.run(lambda: bool(line.broken), 2.0)
    assert not idle.loop.run(lambda: bool(idle.broken), 2.5)  # meanwhile nobody serves the full one, as in a slow call
    assert line.sending.bytes > 1_000_000, "the kernel takes no more"
    line.receiving.resume()
    assert line.loop.run(lambda: len(line.arrived) == 80, LIMIT)
    assert not line.broken
    idle.close()


def test_a_time_that_the_kernel_cannot_count_is_refused() -> None:
    with pytest.raises(ContradictingOptions, match="channel_timeout is 999; it must be at least 1000"):
        replace(OPTIONS, channel_timeout=999)


def test_a_process_is_lost_to_its_driver_if_only_its_beats_come_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (workers, worker):
        monkeypatch.setattr(module, "SILENCE", 1_000)
    loop, secret, said, heard = EventLoop(), b"a secret of 16 b", list[str](), list[WorkerEvent]()
    port = Workers(loop, "127.0.0.1", secret, LIMIT, heard.append)
    process = Worker(port.address, secret, 0, 0)

    def run() -> None:
        with pytest.raises(DriverLost) as caught:
            process.run()
        said.append(str(caught.value))
        loop.wake()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert loop.run(lambda: any(isinstance(event, Appeared) for event in heard), LIMIT)
    assert process._control is not None
    for end in (process._control, next(iter(port._workers.values())).control):
        deafen(end._sock)
    assert loop.run(lambda: bool(said) and isinstance(heard[-1], Lost), LIMIT)
    assert isinstance(heard[-1], Lost)
    assert "timed out" in heard[-1].reason
    assert "timed out" in said[0]
    thread.join(LIMIT)
    port.close()
    loop.close()


def test_a_process_hears_from_its_heart_that_the_driver_does_not_react_any_more() -> None:
    loop, beats, lost = EventLoop(), list[Beats](), list[str]()
    with ExitStack() as stack:
        stack.callback(loop.close)

        def connected(proved: Proved, _kind: ConnectionKind, _peer: str) -> None:
            beats.append(Beats(loop, proved, lambda: None, lambda _: None))
            stack.callback(beats[-1].close)

        listener = Listener(
            loop,
            "127.0.0.1",
            b"a secret of 16 b",
            judge=lambda _: "",
            on_connection=connected,
            on_refused=lambda *_: None,
        )
        stack.callback(listener.close)
        heart = Heartbeat(listener.address, b"a secret of 16 b", "w", 0.05, on_lost=lost.append, patience=1.0)
        stack.callback(heart.stop)
        assert loop.run(lambda: bool(beats), LIMIT)
        assert not loop.run(lambda: bool(lost), 1.5), "as long as its machine reacts, it may do nothing"
        deafen(beats[0]._sock)
        listener.close()
        assert loop.run(lambda: bool(lost), LIMIT)
    assert "no connection to 127.0.0.1" in lost[0]
