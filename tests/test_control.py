"""Messages come in order, each once and whole, or the connection ends with a reason; beats have their own thread."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from recovery.driver.attempts.workers import Workers
from snapshot import Collection, Stream, ToDriver
from snapshot.cut.seals import RecordWriter
from snapshot.host.net.connection_kinds import ConnectionKind, HeartbeatOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.control import ControlConnection, OverLongMessage
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.listener import Listener
from snapshot.host.process import worker
from snapshot.host.process.heartbeat import Beats, Heartbeat
from snapshot.host.protocol.messages import (
    Address,
    BeatEvery,
    CannotHear,
    Drain,
    FromWorker,
    Hello,
    Leave,
    Stalled,
    ToWorker,
)
from statebackend.columns import schema_of
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.connections import FAR, sealed
from tests.driven_worker import DrivenWorker

LIMIT = 10.0
SECRET = b"s" * 32
MAX = 1 << 20


@dataclass
class Wire:
    """Both ends of a connection in one loop, and what they told."""

    loop: EventLoop
    at_worker: list[ToWorker] = field(default_factory=list)
    at_driver: list[FromWorker] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.one = socket.create_connection(listener.getsockname())
        self.other = listener.accept()[0]
        listener.close()
        self.driver = ControlConnection[ToWorker, FromWorker](
            self.loop, sealed(self.one, self.other)[0], self.at_driver.append, self.closed.append, MAX
        )

    def worker(self) -> ControlConnection[FromWorker, ToWorker]:
        return ControlConnection[FromWorker, ToWorker](
            self.loop,
            sealed(self.one, self.other)[1],
            self.at_worker.append,
            self.closed.append,
            MAX,
            parting=CannotHear,
        )


@pytest.fixture
def wire() -> Iterator[Wire]:
    loop = EventLoop()
    wire = Wire(loop)
    yield wire
    wire.driver.close()
    wire.one.close()
    wire.other.close()
    loop.close()


def test_messages_arrive_in_order_in_both_directions(wire: Wire) -> None:
    worker = wire.worker()
    down: list[ToWorker] = [Leave(f"reason {number}") for number in range(300)]
    up: list[FromWorker] = [Hello(f"worker {number}", Address("host", number), 1, 0) for number in range(300)]
    for one, other in zip(down, up, strict=True):
        wire.driver.send(one)
        worker.send(other)
    assert wire.loop.run(lambda: len(wire.at_worker) == len(wire.at_driver) == 300, LIMIT)
    assert wire.at_worker == down
    assert wire.at_driver == up
    worker.close()


def test_large_messages_go_through_a_small_socket_and_what_waits_is_known(wire: Wire) -> None:
    wire.one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    sent = [Leave(str(number) * 900_000) for number in range(8)]
    for message in sent:
        wire.driver.send(message)
    assert wire.driver.queued_bytes > 1_000_000
    worker = wire.worker()
    assert wire.loop.run(lambda: len(wire.at_worker) == 8, LIMIT)
    assert wire.at_worker == sent
    assert wire.driver.queued_bytes == 0
    worker.close()


def test_a_message_that_is_too_long_is_refused_by_who_sends_it_and_the_connection_goes_on(wire: Wire) -> None:
    worker = wire.worker()
    with pytest.raises(OverLongMessage, match=r"a Leave of \d+ bytes; a message has at most 1048576"):
        wire.driver.send(Leave("x" * MAX))
    wire.driver.send(Leave("short"))
    assert wire.loop.run(lambda: bool(wire.at_worker), LIMIT)
    assert wire.at_worker == [Leave("short")]
    worker.close()


def test_a_length_that_is_too_long_ends_the_connection_before_it_is_read(wire: Wire) -> None:
    wire.other.sendall(struct.pack(">I", MAX + 1))
    assert wire.loop.run(lambda: bool(wire.closed), LIMIT)
    assert wire.closed == ["OverLongRecord: the peer announced a message of 1048577 bytes; at most 1048576 are read"]


@pytest.mark.parametrize("pickled", [b"nonsense", b"", pickle.dumps(Leave("x"))[:-3], b"cno_such_module\nname\n."])
def test_a_message_that_cannot_be_read_ends_the_connection(wire: Wire, pickled: bytes) -> None:
    good: FromWorker = Hello("w", Address("host", 1), 1, 0)
    writer = RecordWriter(FAR)
    wire.other.sendall(writer.record(pickle.dumps(good)) + writer.record(pickled))
    assert wire.loop.run(lambda: bool(wire.closed), LIMIT)
    assert wire.at_driver == [good]
    assert wire.closed[0].startswith("a message cannot be read: ")


@pytest.mark.parametrize("can_be_told", [True, False])
def test_what_was_forged_is_the_reason_and_the_other_end_is_told_if_it_can_be(wire: Wire, can_be_told: bool) -> None:
    worker = wire.worker()
    if not can_be_told:
        wire.other.shutdown(socket.SHUT_WR)
    wire.one.sendall(RecordWriter(FAR).record(pickle.dumps(Leave("a relay says so"))))
    assert wire.loop.run(lambda: len(wire.closed) == 2, LIMIT)
    forged = [reason for reason in wire.closed if reason.startswith("ForgedRecord: message 0 of")]
    assert len(forged) == 1, wire.closed
    assert wire.at_driver == [CannotHear(forged[0])] * can_be_told
    assert wire.at_worker == []
    assert worker.was_unusable


def test_a_peer_that_closes_is_told_once_and_inside_a_message_it_is_said(wire: Wire) -> None:
    wire.other.sendall(b"\0\0")
    wire.other.close()
    assert wire.loop.run(lambda: bool(wire.closed), LIMIT)
    wire.driver.send(Leave("to nobody"))
    wire.loop.run_once(0)
    assert wire.closed == ["the peer closed the connection inside a message"]


def test_a_peer_that_dies_while_we_send_is_told_by_the_loop_and_not_inside_send(wire: Wire) -> None:
    wire.other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.other.close()
    drain = Drain(Incarnation(Generation(1), Attempt(1)))
    for _ in range(20):
        wire.driver.send(drain)
    assert wire.closed == []
    assert wire.loop.run(lambda: bool(wire.closed), LIMIT)
    wire.loop.run_once(0)
    assert len(wire.closed) == 1


def test_nothing_is_told_after_a_close_even_in_the_middle_of_messages(wire: Wire) -> None:
    worker = wire.worker()
    seen: list[FromWorker] = []

    def close_at_once(message: FromWorker) -> None:
        seen.append(message)
        again.close()

    again = ControlConnection[ToWorker, FromWorker](
        wire.loop, sealed(wire.one.dup(), wire.other)[0], close_at_once, wire.closed.append
    )
    wire.driver.close()
    for number in range(3):
        worker.send(Hello("w", Address("host", number), 1, 0))
    assert wire.loop.run(lambda: bool(seen), LIMIT)
    for _ in range(3):
        wire.loop.run_once(0)
    assert len(seen) == 1
    worker.close()


@dataclass
class Driver:
    """Hears beats."""

    loop: EventLoop
    stack: ExitStack
    beats: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    heard: list[Stalled] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)
    ends: list[Beats] = field(default_factory=list)

    def listen(self, ports: tuple[int, ...] = (0,)) -> Listener:
        listener = Listener(
            self.loop,
            "127.0.0.1",
            SECRET,
            judge=lambda kind: "",
            on_connection=self._hear,
            on_refused=lambda peer, reason: pytest.fail(reason),
            ports=ports,
        )
        self.stack.callback(listener.close)
        return listener

    def _hear(self, proved: Proved, kind: ConnectionKind, peer: str) -> None:
        assert isinstance(kind, HeartbeatOf)
        worker = kind.worker

        def ended(why: str) -> None:
            self.ended.append(worker)
            self.whys.append(why)

        self.ends.append(Beats(self.loop, proved, lambda: self.beats.append(worker), ended, self.heard.append))
        self.stack.callback(self.ends[-1].close)


@pytest.fixture
def driver() -> Iterator[Driver]:
    loop = EventLoop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        yield Driver(loop, stack)


def test_beats_arrive_whatever_the_main_thread_of_the_process_does_and_end_with_stop(driver: Driver) -> None:
    heartbeat = Heartbeat(driver.listen().address, SECRET, "w", 0.005)
    assert driver.loop.run(lambda: len(driver.beats) >= 3, LIMIT)
    heartbeat.stop()
    assert driver.loop.run(lambda: bool(driver.ended), LIMIT)
    assert set(driver.beats) == {"w"}
    assert driver.ended == ["w"]
    assert not any(thread.name == "heartbeat-w" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "word", [b"nonsense", pickle.dumps(Leave("x")), pickle.dumps(Leave("x"))[:-3], b"cno_such_module\nname\n."]
)
def test_a_word_between_beats_that_makes_no_sense_ends_that_connection_and_nothing_else(
    driver: Driver, word: bytes
) -> None:
    connected: list[Proved] = []
    address = driver.listen().address
    Connector(driver.loop, address, SECRET, HeartbeatOf("w"), connected.append, pytest.fail, seconds=LIMIT)
    assert driver.loop.run(lambda: bool(connected and driver.ends), LIMIT)
    writer = RecordWriter(connected[0].seals)
    connected[0].sock.sendall(writer.record(b"") + writer.record(word))
    assert driver.loop.run(lambda: bool(driver.ended), LIMIT)
    assert driver.whys[0].startswith("MalformedWord: ")
    connected[0].sock.close()
    heartbeat = Heartbeat(address, SECRET, "w", 0.005)
    assert driver.loop.run(lambda: bool(driver.beats), LIMIT)
    heartbeat.stop()


def test_a_word_between_beats_is_heard_beside_the_beats(driver: Driver) -> None:
    stalled = Stalled(Incarnation(Generation(1), Attempt(2)), Partition(1), Uid("count"), 70.0, "a call", None, "stack")
    said = [stalled]
    heartbeat = Heartbeat(
        driver.listen().address, SECRET, "w", 0.005, watch=lambda: said.pop() if said and driver.beats else None
    )
    assert driver.loop.run(lambda: bool(driver.heard), LIMIT)
    heartbeat.stop()
    assert driver.heard == [stalled]


def test_a_heart_that_is_told_to_beat_faster_does_so_at_once(driver: Driver) -> None:
    heartbeat = Heartbeat(driver.listen().address, SECRET, "w", 10 * LIMIT)
    assert driver.loop.run(lambda: bool(driver.ends), LIMIT)
    heartbeat.beat_every(0.005)
    assert driver.loop.run(lambda: len(driver.beats) >= 3, LIMIT)
    heartbeat.stop()


def test_a_process_beats_as_often_as_its_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[str] = []
    monkeypatch.setattr(worker, "_BEAT", 10 * LIMIT)
    monkeypatch.setattr(Workers, "_beat", lambda _, name: beats.append(name))
    nothing = Stream.read(Collection([], schema_of({"n": int})), uid="rows").write(ToDriver(), uid="out")
    with DrivenWorker(tmp_path, nothing) as driven:
        driven.tell(BeatEvery(5))
        assert driven._loop.run(lambda: len(beats) >= 3, LIMIT)


def test_a_heartbeat_whose_connection_breaks_connects_again(driver: Driver) -> None:
    heartbeat = Heartbeat(driver.listen().address, SECRET, "w", 0.005)
    assert driver.loop.run(lambda: bool(driver.beats), LIMIT)
    driver.ends[0].close()
    driver.beats.clear()
    assert driver.loop.run(lambda: len(driver.ends) == 2 and bool(driver.beats), LIMIT)
    heartbeat.stop()


def test_a_heart_whose_driver_is_gone_says_so_soon_and_again_if_its_process_does_not_end(driver: Driver) -> None:
    said: list[tuple[str, float]] = []

    def heard(word: str) -> None:
        said.append((word, time.monotonic()))
        driver.loop.wake()

    listener = driver.listen()
    heartbeat = Heartbeat(
        listener.address,
        SECRET,
        "w",
        10 * LIMIT,  # so it is not the next beat that finds out
        on_lost=lambda reason: heard(f"lost: {reason}"),
        on_overdue=lambda reason: heard(f"overdue: {reason}"),
        in_order=0.2,
    )
    assert driver.loop.run(lambda: bool(driver.ends), LIMIT)
    listener.close()
    began = time.monotonic()
    driver.ends[0].close()
    assert driver.loop.run(lambda: len(said) == 2, LIMIT)
    (lost, lost_at), (overdue, overdue_at) = said
    assert "Connection refused" in lost
    assert lost.partition(":")[2] == overdue.partition(":")[2]
    assert lost_at - began < 4
    assert overdue_at - lost_at >= 0.2
    heartbeat.stop()


def test_a_heart_that_is_stopped_in_time_does_not_say_that_its_process_is_overdue(driver: Driver) -> None:
    said: list[str] = []
    listener = driver.listen()
    heartbeat = Heartbeat(
        listener.address,
        SECRET,
        "w",
        0.005,
        on_lost=lambda _: driver.loop.wake(lambda: said.append("lost")),
        on_overdue=lambda _: said.append("overdue"),
        in_order=0.3,
    )
    assert driver.loop.run(lambda: bool(driver.ends), LIMIT)
    listener.close()
    driver.ends[0].close()
    assert driver.loop.run(lambda: bool(said), LIMIT)
    heartbeat.stop()
    assert not driver.loop.run(lambda: len(said) > 1, 0.5)


def test_a_heart_whose_process_was_let_go_does_not_come_back_when_the_driver_closes_its_connection(
    driver: Driver,
) -> None:
    lost: list[str] = []
    heartbeat = Heartbeat(driver.listen().address, SECRET, "w", 0.005, on_lost=lost.append)
    assert driver.loop.run(lambda: bool(driver.ends), LIMIT)
    heartbeat.leave()
    driver.ends[0].close()
    assert not driver.loop.run(lambda: len(driver.ends) > 1, 0.3)
    heartbeat.stop()
    assert lost == []


def test_a_heartbeat_begins_when_the_driver_listens_at_last(driver: Driver) -> None:
    listener = driver.listen()
    port = listener.address.port
    listener.close()
    heartbeat = Heartbeat(Address("127.0.0.1", port), SECRET, "w", 0.005)
    driver.listen(ports=(port,))
    assert driver.loop.run(lambda: bool(driver.beats), LIMIT)
    heartbeat.stop()


def test_a_heart_reaches_a_driver_that_is_so_far_away_that_their_handshake_takes_longer_than_many_beats(
    driver: Driver,
) -> None:
    relay = _far_away(driver, driver.listen().address, 0.3)
    heartbeat = Heartbeat(relay, SECRET, "w", 0.005)
    assert driver.loop.run(lambda: bool(driver.beats), LIMIT)
    assert len(driver.ends) == 1
    heartbeat.stop()


def _far_away(driver: Driver, address: Address, seconds: float) -> Address:
    """Where one gets through to the address, and all that is said takes so long, each way."""
    loop, listener = driver.loop, socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket) -> None:
        def arrived() -> None:
            try:
                data = source.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            watch.reading(bool(data))
            loop.call_at(loop.now() + seconds, lambda: hand_on(data))

        def hand_on(data: bytes) -> None:
            with suppress(OSError):  # whom it is for may have gone
                if data:
                    target.sendall(data)
                else:
                    target.shutdown(socket.SHUT_WR)

        watch = loop.watch(source, arrived)
        watch.reading(True)
        driver.stack.callback(watch.close)

    def accept() -> None:
        near, far = listener.accept()[0], socket.create_connection((address.host, address.port))
        driver.stack.callback(near.close)
        driver.stack.callback(far.close)
        carry(near, far)
        carry(far, near)

    watch = loop.watch(listener, accept)
    watch.reading(True)
    driver.stack.callback(listener.close)
    driver.stack.callback(watch.close)
    return Address("127.0.0.1", int(listener.getsockname()[1]))
