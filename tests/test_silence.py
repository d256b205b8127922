"""Connections between two processes that live, and that carry nothing: they break; slow ones do not."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from snapshot.coordinator_options import ContradictingOptions
from snapshot.frames import Data, Frame
from snapshot.host.channels import ReceivingChannel, SendingChannel
from snapshot.host.event_loop import EventLoop
from snapshot.host.options import HostOptions
from snapshot.ids import ChannelId
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.silence import deafen

US = Incarnation(Generation(3), Attempt(2))
CHANNEL = ChannelId(Uid("clicks"), Uid("count"), Partition(0), Partition(1))
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
            self.near,
            CHANNEL,
            US,
            lambda: None,
            self.broken.append,
            ordered=True,
            options=self.options,
        )
        self.receiving = ReceivingChannel(
            self.loop,
            self.far,
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
