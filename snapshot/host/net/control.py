"""Messages between the driver and the processes that run partitions, over a connection that has proved the secret.

Invariant: messages arrive in the order in which they were sent, each once and whole, or the connection is
closed and the reason told. Nothing is unpickled that did not come over such a connection, from its other end: where it
is not encrypted, each message carries a seal (`snapshot.cut.seals`), which is checked first.
"""

from __future__ import annotations

import pickle
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from snapshot.cut.seals import RecordReader, RecordWriter, UnusableRecord
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.net.handshake_io import Proved
from statebackend import means
from statebackend.errors import JobError

Sent = TypeVar("Sent")
Received = TypeVar("Received")

MAX_MESSAGE: Final = 256 << 20
"""No message has more bytes, unless both sides agree on something else."""
SILENCE: Final = 10_000
"""Milliseconds after which driver and process give up a connection between them that carries nothing, though beats may
come: of these alone nobody hears what is acknowledged. It ends as well if one leaves more than the kernel can hold
unread for so long, as a process may that is in one slow call when a large role comes for it."""

_READ = 256 << 10


class OverLongMessage(JobError):
    """A message is longer than its receiver would accept; nothing of it has been sent."""


class ControlConnection(Generic[Sent, Received]):
    """One end of the connection, which is this object's from now on.

    `on_message` gets each message. `on_closed` gets a reason, once, when the connection can no longer be used, and not
    if `close` was called. Both are called by the loop, never inside `send`. If what came on it cannot be used, the
    other end is told what `parting` makes of the reason, as far as the kernel takes it at once.
    """

    def __init__(
        self,
        loop: EventLoop,
        proved: Proved,
        on_message: Callable[[Received], object],
        on_closed: Callable[[str], object],
        max_message: int = MAX_MESSAGE,
        parting: Callable[[str], Sent] | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock = proved.sock
        self._on_message = on_message
        self._on_closed = on_closed
        self._parting = parting
        self._max_message = max_message
        self._writer = RecordWriter(proved.seals)
        self._reader = RecordReader(proved.seals, max_message)
        self._outgoing: deque[memoryview] = deque()
        self._queued = 0
        self._unusable = ""
        self._closed = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._watch = loop.watch(sock, self._read, self._write)
        self._watch.reading(True)

    @property
    def was_unusable(self) -> bool:
        """True if it was ended because of what came on it."""
        return bool(self._unusable)

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes were sent that the kernel has not taken; a process waits for 0 before it ends."""
        return self._queued + self._watch.unsent

    def send(self, message: Sent) -> None:
        """Queue a message, unless the connection is closed; raise `OverLongMessage` if it is too long."""
        if self._closed:
            return
        pickled = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        if len(pickled) > self._max_message:
            kind = type(message).__name__
            raise OverLongMessage(f"a {kind} of {len(pickled)} bytes; a message has at most {self._max_message}")
        idle = not self._outgoing
        framed = self._writer.record(pickled)
        self._outgoing.append(memoryview(framed))
        self._queued += len(framed)
        if idle:
            self._write()

    def reroute(self, through: Callable[[means.socket], means.socket]) -> None:
        """Switch to the socket that `through` returns for ours; do nothing if the connection is closed."""
        if not self._closed:
            self._sock = self._watch.reroute(through)

    def close(self) -> None:
        """Close the connection; what was not sent is dropped, and nothing more is told."""
        if not self._closed:
            self._closed = True
            self._watch.close()
            self._sock.close()
            self._outgoing.clear()
            self._queued = 0

    def _write(self) -> None:
        try:
            while self._outgoing:
                sent = self._sock.send(self._outgoing[0])
                self._queued -= sent
                if sent == len(self._outgoing[0]):
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = self._outgoing[0][sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(f"the connection broke: {error}")
            return
        self._watch.writing(bool(self._outgoing))

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"the connection broke: {error}")
            return
        if not data:
            self._fail("the peer closed the connection" + (" inside a message" if self._reader.is_inside else ""))
            return
        try:
            for pickled in self._reader.feed(data):
                self._hand_on(pickled)
                if self._closed:
                    return
        except UnusableRecord as error:
            self._cannot_use(f"{type(error).__name__}: {error}")

    def _hand_on(self, pickled: bytes) -> None:
        try:
            message = cast("Received", pickle.loads(pickled))
        except Exception as error:
            self._cannot_use(f"a message cannot be read: {type(error).__name__}: {error}")
            return
        self._on_message(message)

    def _cannot_use(self, reason: str) -> None:
        self._unusable = reason  # which counts, though the other end may be gone when it is to be told
        if self._parting is not None:
            self.send(self._parting(reason))
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self._closed:
            self.close()
            why = self._unusable or reason
            self._loop.call_soon(lambda: self._on_closed(why))
