"""Encrypted connections: who gets in, what is refused and why, and that they carry what plain ones do."""

from __future__ import annotations

import os
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode
from snapshot.host.faults.fault_proxy import FaultProxy
from snapshot.host.net.channels import ReceivingChannel, SendingChannel
from snapshot.host.net.connection_kinds import ConnectionKind, ControlOf
from snapshot.host.net.connector import Connector
from snapshot.host.net.control import ControlConnection
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from snapshot.host.net.listener import Listener, StrangerLimits
from snapshot.host.net.tls import Tls, TlsSide, TlsSocket, UnusableTls
from snapshot.host.protocol.messages import Address
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import ChannelId, Copy
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from tests.certificates import Authority, with_password
from tests.connections import plain

LIMIT = 10.0
SECRET = b"s" * 32
HOME = "127.0.0.1"
US = Incarnation(Generation(1), Attempt(1))
CHANNEL = Copy(ChannelId(Uid("a"), Uid("b"), Partition(0), Partition(1)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture(scope="module")
def ours(authority: Authority) -> TlsSide:
    return authority.issue().load()


@dataclass
class Scene:
    """A listener and who connects to it, all in one loop."""

    loop: EventLoop
    stack: ExitStack
    hosted: list[Proved] = field(default_factory=list)
    connected: list[Proved] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def listen(self, tls: TlsSide | None, secret: bytes = SECRET, patience: float = 5.0) -> Address:
        listener = Listener(
            self.loop,
            HOME,
            secret,
            judge=lambda kind: "",
            on_connection=self._hosted,
            on_refused=lambda peer, reason: self.refused.append(reason),
            limits=StrangerLimits(patience=patience),
            tls=tls,
        )
        self.stack.callback(listener.close)
        return listener.address

    def connect(self, address: Address, tls: TlsSide | None, seconds: float = LIMIT) -> Connector:
        return Connector(
            self.loop,
            address,
            SECRET,
            ControlOf("w"),
            self._connected,
            self.failed.append,
            seconds=seconds,
            tls=tls,
        )

    def pair(self, host: TlsSide, caller: TlsSide | None = None) -> tuple[socket.socket, socket.socket]:
        """The host's and the caller's end of a connection that stands."""
        self.connect(self.listen(host), caller or host)
        self.until(lambda: bool(self.hosted and self.connected))
        return self.hosted[0].sock, self.connected[0].sock

    def _hosted(self, proved: Proved, _kind: ConnectionKind, _peer: str) -> None:
        self.stack.enter_context(proved.sock)
        self.hosted.append(proved)

    def _connected(self, proved: Proved) -> None:
        self.stack.enter_context(proved.sock)
        self.connected.append(proved)

    def until(self, true: Callable[[], bool]) -> None:
        assert self.loop.run(true, LIMIT), f"it did not happen; refused: {self.refused}, failed: {self.failed}"


@pytest.fixture
def scene() -> Iterator[Scene]:
    loop = EventLoop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        yield Scene(loop, stack)


# --- who gets in


def test_two_certificates_of_one_authority_get_a_connection_in_tls_1_3(
    scene: Scene, ours: TlsSide, authority: Authority
) -> None:
    host, caller = scene.pair(ours, authority.issue().load())
    assert isinstance(host, TlsSocket)
    assert isinstance(caller, TlsSocket)
    assert host.session == caller.session
    assert host.version() == caller.version() == "TLSv1.3"
    assert scene.refused == scene.failed == []


def test_what_is_said_right_behind_the_handshake_arrives(scene: Scene, ours: TlsSide) -> None:
    scene.connect(scene.listen(ours), ours)
    while not scene.hosted:
        scene.loop.run_once(LIMIT)
    scene.hosted[0].sock.send(b"first frame")
    scene.until(lambda: bool(scene.connected))
    arrived: list[bytes] = []
    scene.loop.watch(scene.connected[0].sock, lambda: arrived.append(scene.connected[0].sock.recv(100))).reading(True)
    scene.until(lambda: bool(arrived))
    assert arrived == [b"first frame"]


def test_a_certificate_of_another_authority_is_refused_and_both_sides_say_why(
    scene: Scene, ours: TlsSide, authority: Authority, other_authority: Authority
) -> None:
    stranger = other_authority.issue()
    knows_us = Tls(stranger.certificate, stranger.key, authority.certificate)
    scene.connect(scene.listen(ours), knows_us.load())
    scene.until(lambda: bool(scene.failed and scene.refused))
    assert scene.refused == ["TlsRefused: its certificate is not accepted: unable to get local issuer certificate"]
    assert "TlsRefused: it does not accept our certificate, or the connection: unknown ca" in scene.failed[0]
    assert not scene.hosted


def test_a_caller_refuses_a_host_with_a_certificate_of_another_authority(
    scene: Scene, ours: TlsSide, authority: Authority, other_authority: Authority
) -> None:
    stranger = other_authority.issue()
    knows_us = Tls(stranger.certificate, stranger.key, authority.certificate)
    scene.connect(scene.listen(knows_us.load()), ours)
    scene.until(lambda: bool(scene.failed and scene.refused))
    assert "TlsRefused: its certificate is not accepted" in scene.failed[0]
    assert scene.refused == ["TlsRefused: it does not accept our certificate, or the connection: unknown ca"]


@pytest.mark.parametrize("expired", ["host", "caller"])
def test_an_expired_certificate_is_refused_and_both_sides_say_so(
    scene: Scene, ours: TlsSide, authority: Authority, expired: str
) -> None:
    old = authority.issue(days=-1).load()
    host, caller = (old, ours) if expired == "host" else (ours, old)
    scene.connect(scene.listen(host), caller)
    scene.until(lambda: bool(scene.failed and scene.refused))
    refusing, refused = (scene.failed, scene.refused) if expired == "host" else (scene.refused, scene.failed)
    assert "TlsRefused: its certificate is not accepted: certificate has expired" in refusing[0]
    assert "TlsRefused: it does not accept our certificate, or the connection: certificate expired" in refused[0]


def test_who_shows_no_certificate_is_refused(scene: Scene, ours: TlsSide, other_authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = scene.listen(ours)
    bare = socket.create_connection((address.host, address.port))
    bare.setblocking(False)
    sock = scene.stack.enter_context(TlsSocket(bare, context, b"", server=False))
    sock.send(b"hello")

    def read() -> None:
        with suppress(OSError):
            sock.recv(100)

    scene.loop.watch(sock, read).reading(True)
    scene.until(lambda: bool(scene.refused))
    assert scene.refused == ["TlsRefused: it shows no certificate"]


def test_a_plain_caller_at_an_encrypted_port_is_refused_and_knows_why(scene: Scene, ours: TlsSide) -> None:
    scene.connect(scene.listen(ours), None)
    scene.until(lambda: bool(scene.failed and scene.refused))
    assert scene.refused[0].startswith("TlsRefused: it does not speak TLS, as this run does; it began with b'epochcut")
    assert "StrangeBytes" in scene.failed[0]
    assert "that is TLS, which is off in this run" in scene.failed[0]


def test_an_encrypting_caller_at_a_plain_port_is_refused_and_knows_why(scene: Scene, ours: TlsSide) -> None:
    scene.connect(scene.listen(None), ours, seconds=0.3)
    scene.until(lambda: bool(scene.failed))
    assert "that is TLS, which is off in this run" in scene.refused[0]
    assert "in the middle of the TLS handshake; does it speak TLS" in scene.failed[0]


def test_who_says_nothing_has_no_more_time_for_a_handshake_than_without_tls(scene: Scene, ours: TlsSide) -> None:
    address = scene.listen(ours, patience=0.1)
    scene.stack.enter_context(socket.create_connection((address.host, address.port)))
    scene.until(lambda: bool(scene.refused))
    assert scene.refused == ["TooSlow: it took longer than 0.1 seconds"]


def test_the_secret_must_be_proved_behind_a_good_certificate_too(scene: Scene, ours: TlsSide) -> None:
    scene.connect(scene.listen(ours, secret=b"another secret!!"), ours)
    scene.until(lambda: bool(scene.failed and scene.refused))
    assert "WrongSecret" in scene.refused[0]
    assert "it has another one" in scene.failed[0]


def test_proofs_that_somebody_with_a_good_certificate_hands_on_prove_nothing(
    scene: Scene, ours: TlsSide, authority: Authority
) -> None:
    host = scene.listen(ours)
    middle = authority.issue().load()
    port = scene.stack.enter_context(socket.create_server((HOME, 0)))
    port.setblocking(False)

    def stand_between() -> None:
        outer = middle.accept(port.accept()[0])
        inner = middle.call(socket.create_connection((host.host, host.port)))
        scene.stack.callback(_Relay(scene.loop, outer, inner).close)

    scene.loop.watch(port, stand_between).reading(True)
    scene.connect(Address(HOME, port.getsockname()[1]), ours, seconds=1.0)
    scene.until(lambda: bool(scene.failed and scene.refused))
    assert "WrongSecret" in scene.refused[0]
    assert not scene.hosted


class _Relay:
    """Hands on what it hears from one to the other, and keeps a record."""

    def __init__(self, loop: EventLoop, one: socket.socket, other: socket.socket) -> None:
        self.recorded = bytearray()
        self._sockets = (one, other)
        self._watches = [
            loop.watch(source, lambda source=source, target=target: self._hand_on(source, target))  # type: ignore[misc]
            for source, target in ((one, other), (other, one))
        ]
        for watch in self._watches:
            watch.reading(True)

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(4096)
            self.recorded += data
            if data:
                target.send(data)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()

    def close(self) -> None:
        for watch, sock in zip(self._watches, self._sockets, strict=True):
            watch.close()
            sock.close()


# --- files that are no use


def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: Authority) -> None:
    good, another = authority.issue(), authority.issue()
    absent, damaged = tmp_path / "absent.pem", tmp_path / "damaged.pem"
    damaged.write_text("nothing")
    for tls, problem in (
        (Tls(absent, good.key, good.authorities), f"the certificate {absent} cannot be read"),
        (Tls(good.certificate, absent, good.authorities), f"the key {absent} cannot be read"),
        (Tls(good.certificate, good.key, absent), f"the authorities {absent} cannot be read"),
        (Tls(good.certificate, another.key, good.authorities), "do not go together: key values mismatch"),
        (Tls(good.certificate, good.key, damaged), f"the authorities in {damaged} cannot be read"),
        (Tls(damaged, good.key, good.authorities), f"the certificate in {damaged} and the key"),
        (Tls(good.certificate, with_password(Path(good.key)), good.authorities), "wants a password"),
    ):
        with pytest.raises(UnusableTls) as error:
            tls.load()
        assert problem in str(error.value)


# --- what is carried


def test_bytes_come_out_as_they_went_in_whatever_the_kernel_takes_at_once(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    host.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    rng = random.Random(1)
    sent = rng.randbytes(3_000_000)
    waiting, arrived = memoryview(sent), bytearray()

    def write() -> None:
        nonlocal waiting
        while waiting:
            pieces, at = [], 0
            for _ in range(rng.randrange(1, 6)):
                size = rng.choice((0, 1, 100, 20_000, 200_000))
                pieces.append(waiting[at : at + size])
                at += size
            with suppress(BlockingIOError):
                waiting = waiting[caller.sendmsg(pieces) :]
                continue
            return
        sending.writing(False)

    def read() -> None:
        with suppress(BlockingIOError):
            arrived.extend(host.recv(rng.choice((1, 1000, 300_000))))

    sending = scene.loop.watch(caller, lambda: None, write)
    sending.reading(True)
    sending.writing(True)
    scene.loop.watch(host, read).reading(True)
    scene.until(lambda: len(arrived) == len(sent))
    assert arrived == sent


def test_what_was_taken_leaves_though_nobody_wants_to_write_any_more(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    sent = os.urandom(60_000)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    taken = caller.send(sent)
    watch = scene.loop.watch(caller, lambda: None)
    watch.reading(True)
    assert taken == len(sent)
    assert watch.unsent > 0
    arrived = bytearray()
    scene.loop.watch(host, lambda: arrived.extend(host.recv(100_000))).reading(True)
    scene.until(lambda: watch.unsent == 0)
    scene.until(lambda: len(arrived) == len(sent))
    assert arrived == sent


def test_what_waits_inside_tls_is_read_though_the_kernel_has_nothing(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    caller.send(b"abc")
    arrived: list[bytes] = []

    def read() -> None:
        arrived.append(host.recv(1))
        watch.reading(len(arrived) > 1)

    watch = scene.loop.watch(host, read)
    watch.reading(True)
    scene.until(lambda: bool(arrived))
    scene.loop.run_once(0)
    assert arrived == [b"a"]
    watch.reading(True)
    scene.until(lambda: len(arrived) == 3)
    assert arrived == [b"a", b"b", b"c"]


def test_an_idle_connection_does_not_keep_the_loop_busy(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    calls: list[bool] = []

    def read(sock: socket.socket) -> None:
        calls.append(True)
        with suppress(BlockingIOError):
            sock.recv(100)

    for sock in (host, caller):
        scene.loop.watch(sock, lambda sock=sock: read(sock)).reading(True)  # type: ignore[misc]
    caller.send(b"x")
    assert not scene.loop.run(lambda: len(calls) > 3, 0.2)


def test_a_peer_that_is_gone_is_noticed_and_what_it_said_before_is_heard(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    caller.send(b"last words")
    caller.close()
    heard: list[bytes] = []
    scene.loop.watch(host, lambda: heard.append(host.recv(100))).reading(True)
    scene.until(lambda: heard[-1:] == [b""])
    assert b"".join(heard) == b"last words"


def test_bytes_that_were_changed_on_the_way_break_the_connection(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    os.write(caller.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
    broken: list[str] = []
    control: ControlConnection[object, object] = ControlConnection(
        scene.loop, plain(host), lambda _: None, broken.append
    )
    scene.until(lambda: bool(broken))
    assert "decryption failed or bad record mac" in broken[0]
    control.close()


def test_control_messages_longer_than_any_buffer_arrive_and_are_counted_until_they_left(
    scene: Scene, ours: TlsSide
) -> None:
    host, caller = scene.pair(ours)
    arrived: list[object] = []
    one: ControlConnection[object, object] = ControlConnection(
        scene.loop, plain(caller), arrived.append, arrived.append
    )
    other: ControlConnection[object, object] = ControlConnection(
        scene.loop, plain(host), arrived.append, arrived.append
    )
    messages = [bytes(5_000_000), *range(1000)]
    for message in messages:
        one.send(message)
    assert one.queued_bytes > 0
    scene.until(lambda: one.queued_bytes == 0)
    scene.until(lambda: len(arrived) == len(messages))
    assert arrived == messages
    one.close()
    other.close()


def test_a_message_counts_as_queued_while_it_waits_inside_tls(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    arrived: list[object] = []
    one: ControlConnection[object, object] = ControlConnection(
        scene.loop, plain(caller), arrived.append, arrived.append
    )
    one.send(bytes(60_000))
    assert one.queued_bytes > 0
    other: ControlConnection[object, object] = ControlConnection(
        scene.loop, plain(host), arrived.append, arrived.append
    )
    scene.until(lambda: one.queued_bytes == 0)
    one.close()
    scene.until(lambda: bool(arrived))
    assert arrived == [bytes(60_000)]
    other.close()


def test_a_channel_is_held_up_by_a_slow_receiver_and_its_unaligned_marker_overtakes(
    scene: Scene, ours: TlsSide
) -> None:
    host, caller = scene.pair(ours)
    options = HostOptions(socket_buffer=65_536)
    arrived: list[Frame] = []
    broken: list[str] = []
    sending = SendingChannel(
        scene.loop, plain(caller), CHANNEL, US, lambda: None, broken.append, ordered=False, options=options
    )
    receiving = ReceivingChannel(
        scene.loop, plain(host), CHANNEL, US, lambda _, frame: arrived.append(frame), broken.append, options=options
    )
    receiving.pause()
    payloads = [os.urandom(100_000) for _ in range(40)]
    for payload in payloads:
        sending.put(Data(payload, len(payload)))
    scene.loop.run(lambda: False, 0.1)
    assert sending.bytes > 3_000_000
    assert arrived == []
    overtaken = sending.put(Marker(Epoch(US.generation, 7), MarkerMode.UNALIGNED))
    sending.put(End())
    assert 0 < len(overtaken) < len(payloads)
    receiving.resume()
    scene.until(lambda: bool(arrived) and isinstance(arrived[-1], End))
    before = next(at for at, frame in enumerate(arrived) if isinstance(frame, Marker))
    assert before == len(payloads) - len(overtaken)
    assert [frame.payload for frame in arrived if isinstance(frame, Data)] == payloads
    assert broken == []
    sending.close()
    receiving.close()


@pytest.mark.parametrize("encrypted", [True, False])
def test_who_records_a_channel_finds_its_rows_only_if_it_is_not_encrypted(
    scene: Scene, ours: TlsSide, encrypted: bool
) -> None:
    tls = ours if encrypted else None
    host = scene.listen(tls)
    port = scene.stack.enter_context(socket.create_server((HOME, 0)))
    relays: list[_Relay] = []

    def stand_between() -> None:
        ends = port.accept()[0], socket.create_connection((host.host, host.port))
        for sock in ends:
            sock.setblocking(False)
        relays.append(_Relay(scene.loop, *ends))
        scene.stack.callback(relays[-1].close)

    scene.loop.watch(port, stand_between).reading(True)
    scene.connect(Address(HOME, port.getsockname()[1]), tls)
    scene.until(lambda: bool(scene.hosted and scene.connected))
    arrived: list[Frame] = []
    sending = SendingChannel(
        scene.loop, scene.connected[0], CHANNEL, US, lambda: None, print, ordered=False, options=HostOptions()
    )
    receiving = ReceivingChannel(
        scene.loop, scene.hosted[0], CHANNEL, US, lambda _, frame: arrived.append(frame), print, options=HostOptions()
    )
    sending.put(Data(b"something that is easy to find", 30))
    scene.until(lambda: bool(arrived))
    assert arrived == [Data(b"something that is easy to find", 30)]
    assert (b"easy to find" in relays[0].recorded) == (not encrypted)
    sending.close()
    receiving.close()


def test_an_encrypted_connection_can_be_led_through_a_detour(scene: Scene, ours: TlsSide) -> None:
    host, caller = scene.pair(ours)
    arrived: list[object] = []
    one: ControlConnection[object, object] = ControlConnection(
        scene.loop, plain(caller), arrived.append, arrived.append
    )
    other: ControlConnection[object, object] = ControlConnection(
        scene.loop, plain(host), arrived.append, arrived.append
    )
    proxies: list[FaultProxy] = []

    def through(sock: socket.socket) -> socket.socket:
        proxies.append(FaultProxy(scene.loop, sock, lambda _: None))
        return proxies[0].inner

    other.reroute(through)
    one.send("held up")
    proxies[0].hold(True)
    scene.loop.run(lambda: False, 0.05)
    assert arrived == []
    proxies[0].hold(False)
    other.send("back")
    scene.until(lambda: len(arrived) == 2)
    assert sorted(map(str, arrived)) == ["back", "held up"]
    one.close()
    other.close()
    proxies[0].close()
