"""The faults of one process: whose connections are cut or slow, for how long, and what is said about it first."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from snapshot.host.faults.injector import Faults, Line
from snapshot.host.net.control import ControlConnection
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.protocol.messages import Address, BreakInside, Cut, Delay, Fault, Inject, Injected, Kill, Links, Stop
from tests.connections import sealed

PATIENCE = 10.0
ONE, TWO = Address("127.0.0.1", 1), Address("127.0.0.1", 2)


@dataclass
class Connection:
    """To a partition, or to the driver, which is at the other end and hears everything."""

    line: Line
    here: ControlConnection[object, object]
    there: ControlConnection[object, object]
    heard: list[object] = field(default_factory=list)


class Process:
    """With connections to two partitions and the driver."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.told: list[Injected] = []
        self.hushed: list[float] = []
        self.cleared = 0
        self.closed: list[str] = []
        self.connections = {peer: self.connect(peer) for peer in (ONE, TWO, None)}
        self.faults = Faults(self.loop, self.lines, self.hushed.append, self.clear)

    def lines(self) -> list[Line]:
        return [one.line for one in self.connections.values()]

    def clear(self) -> None:
        self.cleared += 1

    def connect(self, peer: Address | None) -> Connection:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            other = server.accept()[0]
        heard: list[object] = []
        near, far = sealed(one, other)
        here: ControlConnection[object, object] = ControlConnection(self.loop, near, heard.append, self.closed.append)
        there: ControlConnection[object, object] = ControlConnection(self.loop, far, heard.append, self.closed.append)
        return Connection(Line(peer, here), here, there, heard)

    def inject(self, fault: Fault) -> str:
        self.faults.inject(Inject(len(self.told), fault), self.told.append)
        return self.told[-1].problem

    def carries(self, peer: Address | None) -> bool:
        """Whether a word gets through, both ways, before any weather changes."""
        connection = self.connections[peer]
        connection.heard.clear()
        connection.here.send("to")
        connection.there.send("from")
        for _ in range(20):
            self.loop.run_once(0.001)
        return sorted(map(str, connection.heard)) == ["from", "to"]

    def close(self) -> None:
        for connection in self.connections.values():
            connection.here.close()
            connection.there.close()
        self.faults.close()
        self.loop.close()


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


def test_what_is_cut_carries_nothing_and_the_others_do_until_it_is_over(process: Process) -> None:
    assert process.inject(Cut(Links(frozenset([ONE])), 600)) == ""
    assert process.faults.is_cut(ONE)
    assert not process.faults.is_cut(TWO)
    assert not process.carries(ONE)
    assert process.carries(TWO)
    assert process.carries(None)
    assert process.hushed == []
    assert process.loop.run(lambda: process.cleared == 1, PATIENCE)
    assert process.loop.run(lambda: len(process.connections[ONE].heard) == 2, PATIENCE)
    assert not process.faults.is_cut(ONE)
    assert process.carries(ONE)
    assert process.closed == []


def test_a_process_that_is_cut_off_is_not_heard_of_either(process: Process) -> None:
    process.inject(Cut(Links(None, driver=True), 400))
    assert process.hushed == [0.4]
    assert not any(process.carries(peer) for peer in (ONE, TWO, None))
    assert process.loop.run(lambda: process.cleared == 1, PATIENCE)
    assert process.loop.run(lambda: all(len(one.heard) == 2 for one in process.connections.values()), PATIENCE)


def test_a_new_connection_is_as_bad_as_its_link(process: Process) -> None:
    process.inject(Cut(Links(frozenset([ONE])), 400))
    for peer in (ONE, TWO):
        process.connections[peer].here.close()
        process.connections[peer].there.close()
        process.connections[peer] = process.connect(peer)
    process.faults.connected(process.lines())
    assert not process.carries(ONE)
    assert process.carries(TWO)
    assert process.loop.run(lambda: len(process.connections[ONE].heard) == 2, PATIENCE)


def test_faults_that_overlap_end_one_by_one(process: Process) -> None:
    process.inject(Cut(Links(frozenset([ONE])), 200))
    process.inject(Delay(Links(frozenset([ONE])), 60_000, 300))
    process.inject(Cut(Links(None), 400))
    assert process.loop.run(lambda: process.cleared == 1, PATIENCE)
    assert not process.carries(ONE)
    assert process.loop.run(lambda: process.cleared == 2, PATIENCE)
    assert process.loop.run(lambda: len(process.connections[ONE].heard) == 2, PATIENCE)
    assert not process.carries(ONE)  # so soon
    assert process.carries(TWO)
    assert process.loop.run(lambda: len(process.connections[ONE].heard) == 2, PATIENCE)


def test_a_break_ends_those_connections_inside_their_next_message(process: Process) -> None:
    process.inject(BreakInside(Links(frozenset([TWO]))))
    assert process.carries(ONE)
    assert not process.carries(TWO)
    assert process.loop.run(lambda: len(process.closed) == 2, PATIENCE)
    assert process.connections[TWO].heard == []
    assert process.carries(None)


def test_what_cannot_be_is_said_and_not_done(process: Process) -> None:
    assert process.inject(BreakInside(Links(frozenset([Address("127.0.0.1", 9)])))) == "there is no such connection now"
    assert "not in a Spark executor of its own" in process.inject(Kill(executor=True))
    assert "not in a Spark executor of its own" in process.inject(Stop(100, executor=True))
    assert [said.number for said in process.told] == [0, 1, 2]
