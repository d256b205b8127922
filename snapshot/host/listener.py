"""A port at which connections arrive, and where only who proves the run's secret gets in.

What always holds: a connection is handed on once, and only after its handshake; every other one is closed and reported.
Strangers cannot keep others out: there are never more than a few unproven connections, one that says nothing makes
room for the next, and who waits in the kernel's queue meanwhile is served when there is room.
"""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from snapshot.host.conversation import Conversation, Proved
from snapshot.host.event_loop import EventLoop, Timer
from snapshot.host.handshake import NONCE_SIZE, HandshakeRefused, HostHandshake, TurnedAway
from snapshot.host.messages import Address
from snapshot.host.purposes import Purpose
from snapshot.host.tls import TlsSide

_BACKLOG: Final = 1024
_AFTER_AN_ERROR: Final = 0.1


class PortTaken(Exception):
    """None of the ports that may be listened at is free."""


class TooManyStrangers(HandshakeRefused):
    """It had proved nothing for a while, and others want its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerLimits:
    """What a peer may do that has not proved the secret. Times are in seconds."""

    connections: int = 64
    """So many of them are open at once."""
    patience: float = 5.0
    """So long a handshake may take."""
    grace: float = 0.25
    """So long even if others wait for its place."""


@dataclass(eq=False)
class _Stranger:
    peer: str
    since: float
    handshake: HostHandshake
    conversation: Conversation | None = None


class Listener:
    """Listens at the first free port of `ports`; 0 is any port that is free. `PortTaken` if there is none.

    `judge` is asked what is wrong with a connection whose peer has proved the secret, and answers "" for nothing; then
    `on_connection(proved, purpose, peer)` takes over the connection, whose socket is non-blocking, with all that its
    peer has sent since still in it. `on_refused(peer, reason)` hears of every other one. With `tls` all are encrypted.
    """

    def __init__(
        self,
        loop: EventLoop,
        host: str,
        secret: bytes,
        *,
        judge: Callable[[Purpose], str],
        on_connection: Callable[[Proved, Purpose, str], object],
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
        self._strangers: dict[_Stranger, None] = {}  # in the order in which they came
        self._again: Timer | None = None
        self._sock = _listening(host, ports)
        self.address = Address(host, int(self._sock.getsockname()[1]))
        self._watch = loop.watch(self._sock, self._accept)
        self._watch.reading(True)

    @property
    def strangers(self) -> int:
        """How many connections are open whose peer has proved nothing yet."""
        return len(self._strangers)

    def close(self) -> None:
        """Listen no more, and drop whoever is in the middle of a handshake, without a report."""
        self._watch.close()
        self._sock.close()
        if self._again is not None:
            self._again.cancel()
        for stranger in self._strangers:
            sock = stranger.conversation.take() if stranger.conversation is not None else None
            if sock is not None:
                sock.close()
        self._strangers.clear()

    def _accept(self) -> None:
        if len(self._strangers) >= self._limits.connections:
            self._wait_until(next(iter(self._strangers)).since + self._limits.grace, self._make_room)
            return
        try:
            sock, name = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        except OSError as error:  # of files there are too many, perhaps: the queue keeps the connection
            self._on_refused("", f"a connection cannot be accepted: {error}")
            self._wait_until(time.monotonic() + _AFTER_AN_ERROR, lambda: None)
            return
        sock.setblocking(False)
        self._welcome(sock if self._tls is None else self._tls.accept(sock), f"{name[0]}:{name[1]}")

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        handshake = HostHandshake(self._secret, secrets.token_bytes(NONCE_SIZE))
        stranger = _Stranger(peer, time.monotonic(), handshake)
        stranger.conversation = Conversation(
            self._loop,
            sock,
            handshake,
            self._limits.patience,
            lambda: self._step(stranger),
            lambda why: self._gone(stranger, why),
        )
        self._strangers[stranger] = None

    def _step(self, stranger: _Stranger) -> None:
        purpose, conversation = stranger.handshake.purpose, stranger.conversation
        if purpose is None or conversation is None:
            return
        reason = self._judge(purpose)
        if reason:
            conversation.send(stranger.handshake.refuse(reason))
            conversation.refuse(TurnedAway(f"{purpose}: {reason}"))
            return
        conversation.send(stranger.handshake.accept())
        sock = conversation.take()
        if sock is not None:
            self._leave(stranger)
            self._on_connection(Proved(sock, stranger.handshake.seals), purpose, stranger.peer)

    def _gone(self, stranger: _Stranger, why: HandshakeRefused) -> None:
        self._leave(stranger)
        self._on_refused(stranger.peer, f"{type(why).__name__}: {why}")

    def _leave(self, stranger: _Stranger) -> None:
        self._strangers.pop(stranger, None)
        self._listen_again()

    def _make_room(self) -> None:
        """Nobody has left, or we would be listening: the oldest makes room."""
        oldest = next(iter(self._strangers), None)
        if oldest is not None and oldest.conversation is not None:
            oldest.conversation.refuse(TooManyStrangers("it proved nothing, and there are too many like it"))

    def _wait_until(self, when: float, then: Callable[[], object]) -> None:
        def over() -> None:
            then()
            self._listen_again()

        self._watch.reading(False)
        self._again = self._loop.call_at(when, over)

    def _listen_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
            self._watch.reading(True)


def _listening(host: str, ports: Sequence[int]) -> socket.socket:
    for port in ports:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            sock.setblocking(False)
            return sock
    taken = str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
    raise PortTaken(f"port {taken} at {host} is taken by another process; choose others, or 0 for any that is free")
