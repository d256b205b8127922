"""A port at which connections arrive, and where only who proves the run's secret gets in.

Invariant: a connection is handed on once, and only after its handshake; every other one is closed and reported.
Strangers cannot keep others out: every connection is accepted at once when its first word is there, and until then
Linux keeps it for a second, which costs this process nothing. Only so many unproven ones are kept of one address, and
in all; for one more the oldest of the largest crowd makes room (see `_Crowds`). While there is room, a caller has
`patience` to prove itself, however far away it is.

Everyone who was turned away is told of: so many in a second by name, and the others in a number, so that a stranger who
tries again and again fills no log.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from snapshot.host.net.connection_kinds import ConnectionKind
from snapshot.host.net.event_loop import EventLoop, Timer
from snapshot.host.net.handshake import NONCE_SIZE, HandshakeRefused, HostHandshake, TurnedAway
from snapshot.host.net.handshake_io import HandshakeIO, Proved
from snapshot.host.net.tls import TlsSide
from snapshot.host.protocol.messages import Address
from statebackend import means
from statebackend.errors import JobError

_BACKLOG: Final = 4096
"""The most connections that have spoken and are not accepted yet, or have been silent for less than `_FIRST_WORD`. With
more of them, connections are accepted before they speak, except where Linux may not send SYN cookies."""
_FIRST_WORD: Final = 1
"""Seconds for which Linux waits for a caller's first word before a connection is accepted: each caller speaks first."""
_AFTER_AN_ERROR: Final = 0.1


class PortTaken(JobError):
    """None of the ports that may be listened at is free."""


class TooManyStrangers(HandshakeRefused):
    """It had proved nothing yet, and others want its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerLimits:
    """The limits on peers that have not proved the secret."""

    connections: int = 256
    """So many of them are open at once."""
    per_address: int = 128
    """So many of them come from one address."""
    patience: float = 5.0
    """So long a handshake may take, in seconds."""


@dataclass(eq=False)
class _Stranger:
    address: str
    port: int
    handshake: HostHandshake
    greeted: bool = False
    handshake_io: HandshakeIO | None = None

    @property
    def peer(self) -> str:
        return f"{self.address}:{self.port}"


class _Crowds:
    """The strangers that there are, in crowds: those of one address who have greeted, and those who have said nothing.

    So a flood from one address, or of one kind, takes places from its own kind.
    """

    def __init__(self, limits: StrangerLimits) -> None:
        self._limits = limits
        self._crowds: dict[tuple[str, bool], dict[_Stranger, None]] = {}  # each in the order in which they came

    def __len__(self) -> int:
        return sum(map(len, self._crowds.values()))

    def __iter__(self) -> Iterator[_Stranger]:
        return (stranger for crowd in self._crowds.values() for stranger in crowd)

    def add(self, stranger: _Stranger) -> None:
        self._crowds.setdefault((stranger.address, stranger.greeted), {})[stranger] = None

    def greeted(self, stranger: _Stranger) -> None:
        if not stranger.greeted:
            self.remove(stranger)
            stranger.greeted = True
            self.add(stranger)

    def remove(self, stranger: _Stranger) -> None:
        crowd = self._crowds.get((stranger.address, stranger.greeted), {})
        crowd.pop(stranger, None)
        if not crowd:
            self._crowds.pop((stranger.address, stranger.greeted), None)

    def one_too_many(self, address: str) -> _Stranger | None:
        """Return the stranger that makes room for one more from this address; None if there is room."""
        own = [self._crowds.get((address, greeted), {}) for greeted in (False, True)]
        if sum(map(len, own)) >= self._limits.per_address:
            return _oldest_of_the_largest(own)
        return self.largest() if len(self) >= self._limits.connections else None

    def largest(self) -> _Stranger | None:
        """Return the oldest stranger of the largest crowd; None if there is none."""
        return _oldest_of_the_largest(self._crowds.values())


def _oldest_of_the_largest(crowds: Iterable[dict[_Stranger, None]]) -> _Stranger | None:
    largest: dict[_Stranger, None] = {}
    for crowd in crowds:
        if len(crowd) > len(largest):
            largest = crowd
    return next(iter(largest), None)


class Listener:
    """Listens at the first free port of `ports`; 0 is any port that is free. `PortTaken` if there is none.

    `judge` is asked what is wrong with a connection whose peer has proved the secret, and answers "" for nothing; then
    `on_connection(proved, kind, peer)` takes over the connection, whose socket is non-blocking, with all that its
    peer has sent since still in it. `on_refused(peer, reason)` hears of every other one. With `tls` all are encrypted.
    """

    def __init__(
        self,
        loop: EventLoop,
        host: str,
        secret: bytes,
        *,
        judge: Callable[[ConnectionKind], str],
        on_connection: Callable[[Proved, ConnectionKind, str], object],
        on_refused: Callable[[str, str], object],
        ports: Sequence[int] = (0,),
        limits: StrangerLimits | None = None,
        tls: TlsSide | None = None,
    ) -> None:
        self._loop = loop
        self._secret = secret
        self._tls = tls
        self._judge = judge
        self._on_connection = on_connection
        self._on_refused = on_refused
        self._limits = limits or StrangerLimits()
        self._strangers = _Crowds(self._limits)
        self._again: Timer | None = None
        self._sock = _listening(host, ports)
        self.address = Address(host, int(self._sock.getsockname()[1]))
        self._watch = loop.watch(self._sock, self._accept)
        self._watch.reading(True)

    @property
    def strangers(self) -> int:
        """Return how many connections are open whose peer has proved nothing yet."""
        return len(self._strangers)

    def close(self) -> None:
        """Listen no more, and drop all handshakes under way, without a report."""
        self._watch.close()
        self._sock.close()
        if self._again is not None:
            self._again.cancel()
        for stranger in list(self._strangers):
            self._strangers.remove(stranger)
            sock = stranger.handshake_io.take() if stranger.handshake_io is not None else None
            if sock is not None:
                sock.close()

    def _accept(self) -> None:
        try:
            sock, name = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        except OSError as error:  # of files there are too many, perhaps: the queue keeps the connection
            self._on_refused("", f"a connection cannot be accepted: {error}")
            if not self._send_away(self._strangers.largest()):
                self._pause()
            return
        sock.setblocking(False)
        self._welcome(sock if self._tls is None else self._tls.accept(sock), str(name[0]), int(name[1]))

    def _welcome(self, sock: means.socket, address: str, port: int) -> None:
        self._send_away(self._strangers.one_too_many(address))
        handshake = HostHandshake(self._secret, means.token_bytes(NONCE_SIZE))
        stranger = _Stranger(address, port, handshake)
        stranger.handshake_io = HandshakeIO(
            self._loop,
            sock,
            handshake,
            self._limits.patience,
            lambda: self._step(stranger),
            lambda why: self._gone(stranger, why),
        )
        self._strangers.add(stranger)

    def _step(self, stranger: _Stranger) -> None:
        if stranger.handshake.was_greeted:
            self._strangers.greeted(stranger)
        kind, handshake_io = stranger.handshake.kind, stranger.handshake_io
        if kind is None or handshake_io is None:
            return
        reason = self._judge(kind)
        if reason:
            handshake_io.send(stranger.handshake.refuse(reason))
            handshake_io.refuse(TurnedAway(f"{kind}: {reason}"))
            return
        handshake_io.send(stranger.handshake.accept())
        sock = handshake_io.take()
        if sock is not None:
            self._strangers.remove(stranger)
            self._on_connection(Proved(sock, stranger.handshake.seals), kind, stranger.peer)

    def _gone(self, stranger: _Stranger, why: HandshakeRefused) -> None:
        self._strangers.remove(stranger)
        self._on_refused(stranger.peer, f"{type(why).__name__}: {why}")

    def _send_away(self, stranger: _Stranger | None) -> bool:
        """Refuse a stranger that makes room for another one; True if there was one."""
        if stranger is None or stranger.handshake_io is None:
            return False
        stranger.handshake_io.refuse(TooManyStrangers("it proved nothing, and there are too many like it"))
        return True

    def _pause(self) -> None:
        self._watch.reading(False)
        self._again = self._loop.call_at(means.monotonic() + _AFTER_AN_ERROR, lambda: self._watch.reading(True))


def _listening(host: str, ports: Sequence[int]) -> means.socket:
    for port in ports:
        sock = means.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            if hasattr(socket, "TCP_DEFER_ACCEPT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _FIRST_WORD)
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            sock.setblocking(False)
            return sock
    taken = str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
    raise PortTaken(f"port {taken} at {host} is taken by another process; give others, or 0 for any (option ports)")


_ONE_BY_ONE: Final = 20
_SECONDS: Final = 1.0


class Refusals:
    """Takes the refusals of one port. `tell(peer, reason)` hears of them; the peer is "" if it is told of several."""

    def __init__(self, loop: EventLoop, tell: Callable[[str, str], object]) -> None:
        self._loop = loop
        self._tell = tell
        self._lately = 0

    def add(self, peer: str, reason: str) -> None:
        """Count a refusal, and tell it unless there were too many lately."""
        if not self._lately:
            self._loop.call_at(self._loop.now() + _SECONDS, self._tell_of_the_others)
        self._lately += 1
        if self._lately <= _ONE_BY_ONE:
            self._tell(peer, reason)

    def _tell_of_the_others(self) -> None:
        others, self._lately = self._lately - _ONE_BY_ONE, 0
        if others > 0:
            self._tell("", f"{others} more were turned away within a second")
