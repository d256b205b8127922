"""Who gets in at a process's port and who does not, with real sockets; the honest get in whatever the strangers do."""

from __future__ import annotations

import os
import random
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from snapshot.host.net.connection_kinds import ConnectionKind, ControlOf, HeartbeatOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake import NONCE_SIZE, CallerHandshake
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.listener import Listener, PortTaken, StrangerLimits
from snapshot.host.protocol.messages import Address

LIMIT = 10.0
SECRET = b"s" * 32
CONTROL = ControlOf("w")
HOME = "127.0.0.1"


@dataclass
class Scene:
    """A listener, what it told, and those who connected to it."""

    loop: EventLoop
    stack: ExitStack
    kinds: list[ConnectionKind] = field(default_factory=list)
    hosted: list[socket.socket] = field(default_factory=list)
    connected: list[socket.socket] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def listen(
        self,
        judge: Callable[[ConnectionKind], str] = lambda kind: "",
        limits: StrangerLimits | None = None,
        ports: tuple[int, ...] = (0,),
    ) -> Listener:
        listener = Listener(
            self.loop,
            HOME,
            SECRET,
            judge=judge,
            on_connection=self._hosted,
            on_refused=lambda peer, reason: self.refused.append(f"{peer}: {reason}"),
            ports=ports,
            limits=limits,
        )
        self.stack.callback(listener.close)
        return listener

    def connect(
        self,
        address: Address,
        secret: bytes = SECRET,
        kind: ConnectionKind = CONTROL,
        seconds: float = LIMIT,
    ) -> Connector:
        return Connector(self.loop, address, secret, kind, self._connected, self.failed.append, seconds=seconds)

    def stranger(self, address: Address, says: bytes = b"e", source: str = HOME) -> socket.socket:
        reached = socket.create_connection((address.host, address.port), source_address=(source, 0))
        sock = self.stack.enter_context(reached)
        sock.sendall(says)
        sock.setblocking(False)
        return sock

    def until(self, true: Callable[[], bool]) -> None:
        assert self.loop.run(true, LIMIT), f"it did not happen; refused: {self.refused}, failed: {self.failed}"

    def _hosted(self, proved: Proved, kind: ConnectionKind, peer: str) -> None:
        self.hosted.append(self.stack.enter_context(proved.sock))
        self.kinds.append(kind)

    def _connected(self, proved: Proved) -> None:
        self.connected.append(self.stack.enter_context(proved.sock))


@pytest.fixture
def scene() -> Iterator[Scene]:
    loop = EventLoop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        yield Scene(loop, stack)


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(100) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_who_knows_the_secret_gets_in_and_both_ends_can_talk(scene: Scene) -> None:
    listener = scene.listen()
    scene.connect(listener.address, kind=HeartbeatOf("w"))
    scene.until(lambda: bool(scene.hosted and scene.connected))
    assert scene.kinds == [HeartbeatOf("w")]
    scene.hosted[0].send(b"down")
    scene.connected[0].send(b"up")
    scene.connected[0].setblocking(True)
    scene.hosted[0].setblocking(True)
    assert scene.connected[0].recv(10) == b"down"
    assert scene.hosted[0].recv(10) == b"up"
    assert listener.strangers == 0
    assert scene.refused == scene.failed == []


def test_what_the_host_says_right_after_the_handshake_is_not_swallowed_by_it(scene: Scene) -> None:
    listener = scene.listen()
    scene.until(lambda: not scene.hosted)
    connecting = scene.connect(listener.address)
    while not scene.hosted:
        scene.loop.run_once(LIMIT)
    scene.hosted[0].send(b"first frame")
    scene.until(lambda: bool(scene.connected))
    scene.connected[0].setblocking(True)
    assert scene.connected[0].recv(100) == b"first frame"
    connecting.cancel()
    assert scene.connected[0].fileno() >= 0


def test_a_wrong_secret_is_refused_on_both_sides_and_given_up_after_a_few_tries(scene: Scene) -> None:
    listener = scene.listen()
    scene.connect(listener.address, secret=b"another secret!!")
    scene.until(lambda: bool(scene.failed))
    assert "it has another one" in scene.failed[0]
    assert str(listener.address) in scene.failed[0]
    assert all("WrongSecret" in refused for refused in scene.refused)
    assert 1 < len(scene.refused) < 10
    assert scene.refused[0].startswith(HOME)


def test_who_is_not_wanted_hears_why_and_it_is_reported(scene: Scene) -> None:
    listener = scene.listen(judge=lambda kind: f"no {kind} today")
    scene.connect(listener.address)
    scene.until(lambda: bool(scene.failed))
    assert "TurnedAway: no control of w today" in scene.failed[0]
    assert "no control of w today" in scene.refused[0]
    assert scene.hosted == []


@pytest.mark.parametrize("says", [b"GET / HTTP/1.1\r\n\r\n" + bytes(50), bytes(100), b"\x80\x04\x95" + bytes(60)])
def test_strange_bytes_are_refused_and_answered_with_nothing(scene: Scene, says: bytes) -> None:
    listener = scene.listen()
    stranger = scene.stranger(listener.address, says)
    scene.until(lambda: bool(scene.refused))
    assert "StrangeBytes" in scene.refused[0]
    assert is_closed(stranger)


def test_fuzzed_bytes_for_a_while_are_all_refused_and_an_honest_peer_gets_in(scene: Scene) -> None:
    listener = scene.listen()
    chance = random.Random(1)
    for _ in range(200):
        stranger = scene.stranger(listener.address, chance.randbytes(chance.randrange(200)))
        stranger.shutdown(socket.SHUT_WR)
        scene.loop.run_once(0)
    scene.connect(listener.address)
    scene.until(lambda: bool(scene.connected) and len(scene.refused) == 200)
    assert listener.strangers == 0
    assert len(scene.hosted) == 1


def test_who_is_too_slow_is_refused(scene: Scene) -> None:
    listener = scene.listen(limits=StrangerLimits(patience=0.02))
    stranger = scene.stranger(listener.address, b"epoch")
    scene.until(lambda: bool(scene.refused))
    assert "TooSlow: it took longer than 0.02 seconds" in scene.refused[0]
    assert is_closed(stranger)


def test_strangers_who_say_nothing_are_not_accepted_and_an_honest_peer_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshot.host.net.listener._FIRST_WORD", 60)
    listener = scene.listen(limits=StrangerLimits(connections=8, per_address=4))
    strangers = [scene.stranger(listener.address, b"") for _ in range(200)]
    scene.connect(listener.address)
    scene.until(lambda: bool(scene.connected))
    assert listener.strangers == 0
    assert scene.refused == []
    strangers[0].sendall(b"e")
    scene.until(lambda: listener.strangers == 1)


def test_who_says_nothing_for_long_is_accepted_and_refused(scene: Scene) -> None:
    listener = scene.listen(limits=StrangerLimits(patience=0.02))
    stranger = scene.stranger(listener.address, b"")
    scene.until(lambda: bool(scene.refused))
    assert "TooSlow: it took longer than 0.02 seconds" in scene.refused[0]
    assert is_closed(stranger)


def test_strangers_who_say_little_make_room_for_an_honest_peer_at_once(scene: Scene) -> None:
    listener = scene.listen(limits=StrangerLimits(connections=8, per_address=4, patience=LIMIT))
    strangers = [scene.stranger(listener.address) for _ in range(6)]
    scene.connect(listener.address)
    scene.until(lambda: bool(scene.connected))
    assert listener.strangers <= 4
    assert all("TooManyStrangers" in refused for refused in scene.refused)
    assert is_closed(strangers[0])


@pytest.mark.parametrize("limits", [{"connections": 4}, {"connections": 9, "per_address": 4}])
def test_there_are_never_more_strangers_than_allowed_and_the_oldest_make_room(
    scene: Scene, limits: dict[str, int]
) -> None:
    listener = scene.listen(limits=StrangerLimits(**limits, patience=LIMIT))
    strangers = [scene.stranger(listener.address) for _ in range(6)]
    most = 0
    while len(scene.refused) < 2:
        scene.loop.run_once(LIMIT)
        most = max(most, listener.strangers)
    assert most == listener.strangers == 4
    assert [is_closed(stranger) for stranger in strangers] == [True, True, False, False, False, False]
    strangers[2].close()
    scene.until(lambda: listener.strangers == 3)


def test_room_is_made_by_the_address_that_has_most(scene: Scene) -> None:
    listener = scene.listen(limits=StrangerLimits(connections=8, per_address=6, patience=LIMIT))
    few = [scene.stranger(listener.address, source="127.0.0.2") for _ in range(2)]
    many = [scene.stranger(listener.address, source="127.0.0.3") for _ in range(20)]
    scene.until(lambda: len(scene.refused) == 14 and listener.strangers == 8)
    last = scene.stranger(listener.address, source="127.0.0.4")
    scene.until(lambda: len(scene.refused) == 15)
    assert all("TooManyStrangers" in refused and refused.startswith("127.0.0.3") for refused in scene.refused)
    assert not any(is_closed(one) for one in (*few, *many[15:], last))


def test_who_has_greeted_keeps_its_place_whatever_quiet_ones_of_its_address_do_and_the_other_way_round(
    scene: Scene,
) -> None:
    listener = scene.listen(limits=StrangerLimits(connections=20, per_address=6, patience=LIMIT))
    handshake = CallerHandshake(SECRET, b"n" * NONCE_SIZE, CONTROL)
    polite = scene.stranger(listener.address, handshake.greeting)
    scene.until(lambda: any(one.greeted for one in listener._strangers))
    quiet = [scene.stranger(listener.address) for _ in range(20)]
    scene.until(lambda: len(scene.refused) == 15 and listener.strangers == 6)
    assert not is_closed(polite)
    others = [scene.stranger(listener.address, handshake.greeting) for _ in range(20)]
    scene.until(lambda: len(scene.refused) == 35)
    assert any(not is_closed(one) for one in quiet)
    assert sum(not is_closed(one) for one in others) >= 3


def test_a_caller_far_away_keeps_its_place_whatever_other_addresses_do(scene: Scene) -> None:
    listener = scene.listen()
    handshake = CallerHandshake(SECRET, b"n" * NONCE_SIZE, CONTROL)
    caller = scene.stranger(listener.address, handshake.greeting, source="127.0.0.2")
    answer = bytearray()

    def answered() -> bool:
        with suppress(BlockingIOError):
            answer.extend(caller.recv(handshake.wanted))
        return len(answer) == handshake.wanted

    scene.until(answered)
    for _ in range(400):  # while our proof is on its way
        scene.stranger(listener.address, source="127.0.0.3").close()
        scene.stranger(listener.address, source="127.0.0.4")
        scene.loop.run_once(0)
    scene.until(lambda: len(scene.refused) > 400)
    caller.sendall(handshake.receive(bytes(answer)))
    scene.until(lambda: bool(scene.hosted))


def test_many_honest_peers_at_once_all_get_in(scene: Scene) -> None:
    listener = scene.listen()
    for number in range(200):
        scene.connect(listener.address, kind=ControlOf(str(number)))
    scene.until(lambda: len(scene.hosted) == len(scene.connected) == 200)
    assert {str(kind) for kind in scene.kinds} == {f"control of {number}" for number in range(200)}
    assert scene.failed == []


def test_an_honest_peer_that_was_too_slow_for_its_place_gets_in_when_there_is_room(scene: Scene) -> None:
    listener = scene.listen(limits=StrangerLimits(connections=1, patience=LIMIT))
    slow = EventLoop()
    scene.stack.callback(slow.close)
    connected: list[Proved] = []
    peer = Connector(slow, listener.address, SECRET, CONTROL, connected.append, scene.failed.append, seconds=LIMIT)
    assert slow.run(lambda: peer._handshake_io is not None, LIMIT), "it has said its greeting"
    scene.until(lambda: any(one.greeted for one in listener._strangers))
    stranger = scene.stranger(listener.address)  # while the peer is busy with something else
    scene.until(lambda: bool(scene.refused))
    stranger.close()
    while not connected and not scene.failed:
        slow.run_once(0.001)
        scene.loop.run_once(0.001)
    assert scene.failed == []
    scene.stack.enter_context(connected[0].sock)
    scene.until(lambda: bool(scene.hosted))


def test_a_port_that_is_taken_is_named_and_the_next_of_a_range_is_used(scene: Scene) -> None:
    taken = scene.listen().address.port
    with pytest.raises(PortTaken, match=f"port {taken} at {HOME} is taken"):
        scene.listen(ports=(taken,))
    other = scene.listen(ports=(taken, 0)).address.port
    assert other not in (taken, 0)


def test_who_listens_later_is_reached_as_long_as_there_is_time(scene: Scene) -> None:
    with socket.socket() as reserved:
        reserved.bind((HOME, 0))
        port = int(reserved.getsockname()[1])
        scene.connect(Address(HOME, port))
        scene.loop.run_once(LIMIT)
        scene.loop.run_once(LIMIT)
    scene.listen(ports=(port,))
    scene.until(lambda: bool(scene.connected))


def test_who_hangs_up_before_a_word_is_tried_again(scene: Scene) -> None:
    with socket.create_server((HOME, 0)) as hasty:
        port = int(hasty.getsockname()[1])
        scene.connect(Address(HOME, port))
        scene.loop.run_once(LIMIT)
        hasty.accept()[0].close()
    scene.listen(ports=(port,))
    scene.until(lambda: bool(scene.connected))
    assert scene.failed == []


def test_who_never_listens_is_given_up_with_the_reason(scene: Scene) -> None:
    with socket.socket() as reserved:
        reserved.bind((HOME, 0))
        scene.connect(Address(HOME, int(reserved.getsockname()[1])), seconds=0.1)
        scene.until(lambda: bool(scene.failed))
    assert "Connection refused, and the time is over" in scene.failed[0]


def test_a_host_that_accepts_and_says_nothing_is_given_up(scene: Scene) -> None:
    with socket.create_server((HOME, 0)) as mute:
        scene.connect(Address(HOME, int(mute.getsockname()[1])), seconds=0.05)
        scene.until(lambda: bool(scene.failed))
    assert "time" in scene.failed[0] or "longer than" in scene.failed[0]
    assert len(scene.failed) == 1


def test_an_unknown_host_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.connect(Address("nowhere.invalid", 1))
    scene.until(lambda: bool(scene.failed))
    assert "nowhere.invalid:1" in scene.failed[0]


def test_nothing_is_told_after_a_cancel_or_a_close(scene: Scene) -> None:
    listener = scene.listen()
    stranger = scene.stranger(listener.address)
    scene.until(lambda: listener.strangers == 1)
    connecting = scene.connect(listener.address)
    connecting.cancel()
    connecting.cancel()
    listener.close()
    for _ in range(5):
        scene.loop.run_once(0.001)
    assert scene.connected == scene.hosted == []
    assert scene.failed == scene.refused == []
    assert is_closed(stranger)


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Until the end this process has only those file descriptors that it has."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_who_has_no_free_descriptor_for_a_moment_connects_after_it(scene: Scene) -> None:
    listener = scene.listen()
    with no_free_descriptor():
        connecting = scene.connect(listener.address)
        assert not scene.loop.run(lambda: bool(scene.failed), 0.2)
    assert connecting._last == "[Errno 24] Too many open files"
    scene.until(lambda: bool(scene.connected))


def test_who_has_no_free_descriptor_for_long_is_told_so(scene: Scene) -> None:
    listener = scene.listen()
    with no_free_descriptor():
        scene.connect(listener.address, seconds=0.1)
        scene.until(lambda: bool(scene.failed))
    assert "Too many open files, and the time is over" in scene.failed[0]


def test_a_port_without_a_free_descriptor_takes_the_connection_when_there_is_one(scene: Scene) -> None:
    listener = scene.listen()
    scene.stranger(listener.address)
    with no_free_descriptor():
        scene.until(lambda: bool(scene.refused))
        assert "a connection cannot be accepted: [Errno 24] Too many open files" in scene.refused[0]
        assert listener.strangers == 0
    scene.until(lambda: listener.strangers == 1)


def test_a_stranger_gives_its_descriptor_to_the_next_caller_if_none_is_free(scene: Scene) -> None:
    listener = scene.listen()
    silent = scene.stranger(listener.address)
    scene.until(lambda: listener.strangers == 1)
    caller = scene.stranger(listener.address, b"epochcut")
    with no_free_descriptor():
        scene.until(lambda: len(scene.refused) == 2)
        scene.until(lambda: listener.strangers == 1)
    assert is_closed(silent)
    assert not is_closed(caller)
