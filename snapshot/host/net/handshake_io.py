"""A handshake over a socket, with a time limit: the same for both sides.

Invariant: exactly one of the two outcomes is told, unless the handshake is dropped before; when it is,
nothing of the loop refers to the socket any more. No byte behind the handshake is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snapshot.cut.seals import Seals
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake import CallerHandshake, HandshakeRefused, HostHandshake
from snapshot.host.net.tls import TlsSocket
from statebackend import means


@dataclass(frozen=True, slots=True)
class Proved:
    """A connection whose other end has proved that it knows the run's secret, and what seals what is said on it."""

    sock: means.socket
    seals: Seals | None
    """None if it is encrypted."""


class HungUp(HandshakeRefused):
    """The peer closed the connection, or the network did."""


class TooSlow(HandshakeRefused):
    """The handshake took too long."""


class HandshakeIO:
    """Lets a handshake receive what comes on a connected, non-blocking socket, and sends what it answers.

    `on_step` is called whenever the handshake has received something, `on_refused` when it is over without success;
    the socket is closed then.
    """

    def __init__(
        self,
        loop: EventLoop,
        sock: means.socket,
        handshake: HostHandshake | CallerHandshake,
        seconds: float,
        on_step: Callable[[], object],
        on_refused: Callable[[HandshakeRefused], object],
    ) -> None:
        self._sock = sock
        self._handshake = handshake
        self._on_step = on_step
        self._on_refused = on_refused
        self._over = False
        self._watch = loop.watch(sock, self._read)
        self._watch.reading(True)
        self._limit = loop.call_at(
            means.monotonic() + seconds, lambda: self.refuse(TooSlow(f"it took longer than {seconds:g} seconds"))
        )

    def send(self, data: bytes) -> None:
        """Send this part of the handshake, which is so short that the kernel always takes it at once."""
        try:
            if data and self._sock.send(data) != len(data):
                self.refuse(TooSlow("it does not read what it is sent"))
        except BlockingIOError:
            self.refuse(TooSlow("it does not read what it is sent"))
        except OSError as error:
            self.refuse(HungUp(f"the connection broke: {error}"))

    def refuse(self, why: HandshakeRefused) -> None:
        """End the handshake without success."""
        if self.drop():
            self._sock.close()
            self._on_refused(why)

    def take(self) -> means.socket | None:
        """Return the socket for its next user; None if the handshake is over already."""
        return self._sock if self.drop() else None

    def drop(self) -> bool:
        """Leave the socket alone and tell nothing more; return whether the handshake was not over yet."""
        was_over, self._over = self._over, True
        self._limit.cancel()
        self._watch.close()
        return not was_over

    def _read(self) -> None:
        try:
            data = self._sock.recv(self._handshake.wanted)
        except BlockingIOError:
            return
        except HandshakeRefused as error:  # TLS does not come about
            self.refuse(error)
            return
        except OSError as error:
            self.refuse(HungUp(f"the connection broke: {error}"))
            return
        if not data:
            self.refuse(HungUp("it closed the connection"))
            return
        if isinstance(self._sock, TlsSocket):
            self._handshake.bind(self._sock.session)
        try:
            answer = self._handshake.receive(data)
        except HandshakeRefused as error:
            self.send(self._handshake.parting)
            self.refuse(error)
            return
        self.send(answer)
        if not self._over:
            self._on_step()
