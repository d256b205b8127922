"""Connect to a listening process: reach it, prove the secret and be accepted, all within one time limit.

Invariant: exactly one of `on_connected` and `on_failed` is called, once, unless it is cancelled before; never
inside the call that began it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Final

from snapshot.host.net.connection_kinds import ConnectionKind
from snapshot.host.net.event_loop import EventLoop, Timer, Watch
from snapshot.host.net.handshake import NONCE_SIZE, CallerHandshake, HandshakeRefused
from snapshot.host.net.handshake_io import HandshakeIO, HungUp, Proved
from snapshot.host.net.tls import TlsSide
from snapshot.host.protocol.messages import Address
from statebackend import means

_PAUSE: Final = 0.05
_ONE_TRY: Final = 2.0
"""Seconds for a host to answer at all."""
_PROOFS: Final = 8
"""So often a host may hang up after our proof: one that has another secret does, and one to which we were too slow when
many others wanted our place."""
_NOT_THERE_YET = frozenset(
    (errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
)
_NOTHING_FREE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""This process, or the machine, has no file descriptor or memory left at the moment."""


class Connector:
    """Begins at once. A peer that cannot be reached, or hangs up before a word, is tried again until the time is over;
    so it is while there is no file descriptor for the connection.

    One that hangs up after our proof is tried again a few times; one that refuses us, or cannot prove the secret, is
    not.

    The socket that `on_connected` takes over is non-blocking, sends what is written without delay, and whatever the
    host has sent since is still in it. `on_failed` gets a text that names the address. With `tls` all is encrypted.
    The name of a host is looked up in the loop's thread: give a numeric address where that may take long.
    """

    def __init__(
        self,
        loop: EventLoop,
        address: Address,
        secret: bytes,
        kind: ConnectionKind,
        on_connected: Callable[[Proved], object],
        on_failed: Callable[[str], object],
        *,
        seconds: float,
        tls: TlsSide | None = None,
    ) -> None:
        self._loop = loop
        self._address = address
        self._secret = secret
        self._tls = tls
        self._kind = kind
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._handshake = CallerHandshake(secret, means.token_bytes(NONCE_SIZE), kind)
        self._last = "it does not answer"
        self._proofs = 0  # after which it hung up
        self._sock: means.socket | None = None
        self._watch: Watch | None = None
        self._handshake_io: HandshakeIO | None = None
        self._deadline = means.monotonic() + seconds
        self._limit = loop.call_at(self._deadline, lambda: self._fail(f"{self._last}, and the time is over"))
        self._next: Timer = loop.call_at(0, self._reach)

    def cancel(self) -> None:
        """Give the connection up and tell nothing; do nothing if it is over already."""
        self._limit.cancel()
        self._drop()

    def _drop(self) -> None:
        self._next.cancel()
        if self._handshake_io is not None:
            self._handshake_io.drop()
        if self._watch is not None:
            self._watch.close()
        if self._sock is not None:
            self._sock.close()
        self._handshake_io, self._watch, self._sock = None, None, None

    def _reach(self) -> None:
        host, port = self._address.host, self._address.port
        try:
            self._sock = means.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._sock.connect_ex((host, port))
        except OSError as error:  # there is no descriptor, or the name is unknown
            self._missed(error.errno or 0, str(error))
            return
        if code in (0, errno.EINPROGRESS):
            self._watch = self._loop.watch(self._sock, lambda: None, self._reached)
            self._watch.writing(True)
            # The kernel itself asks again after 1, 3 and 7 seconds, and so on: too late where a network has healed.
            self._next = self._loop.call_at(means.monotonic() + _ONE_TRY, lambda: self._again("it does not answer"))
        else:
            self._missed(code, os.strerror(code))

    def _reached(self) -> None:
        if self._sock is None or self._watch is None:
            return
        self._next.cancel()
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._missed(code, os.strerror(code))
            return
        self._watch.close()
        if self._tls is not None:
            self._sock = self._tls.call(self._sock)
        left = max(0.0, self._deadline - means.monotonic())
        self._handshake = CallerHandshake(self._secret, means.token_bytes(NONCE_SIZE), self._kind)
        self._handshake_io = HandshakeIO(self._loop, self._sock, self._handshake, left, self._step, self._refused)
        self._handshake_io.send(self._handshake.greeting)

    def _step(self) -> None:
        sock = self._handshake_io.take() if self._handshake_io is not None and self._handshake.accepted else None
        if sock is not None:
            self._limit.cancel()
            self._sock = None  # it is not ours any more, so a cancel leaves it open
            self._on_connected(Proved(sock, self._handshake.seals))

    def _refused(self, why: HandshakeRefused) -> None:
        if not isinstance(why, HungUp):
            self._fail(f"{type(why).__name__}: {why}")
            return
        self._proofs += self._handshake.was_greeted
        if self._proofs == _PROOFS:
            self._fail(f"{why}, {_PROOFS} times after we had proved our secret: it has another one")
        else:
            self._again(f"{why}, after we had proved our secret" if self._handshake.was_greeted else str(why))

    def _missed(self, code: int, why: str) -> None:
        if code in _NOT_THERE_YET or code in _NOTHING_FREE:
            self._again(why)
        else:
            self._fail(why)

    def _again(self, why: str) -> None:
        self._last = why
        self._drop()
        self._next = self._loop.call_at(means.monotonic() + _PAUSE, self._reach)

    def _fail(self, why: str) -> None:
        self.cancel()
        self._on_failed(f"{self._kind}: no connection to {self._address}: {why}")
