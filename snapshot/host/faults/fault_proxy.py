"""A connection that is led through a proxy, where what it carries is held up, comes later, or ends inside a frame.

Invariant: bytes come out in the order in which they went in, none is changed or added, and none is lost but
behind a break. A connection that has not been given a proxy is not touched.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from snapshot.host.net.event_loop import EventLoop, Timer

_READ: Final = 256 << 10
_MOST: Final = 8 << 20
"""So much is taken from one side before the other has taken it: a link that is slow holds its senders up."""


class Reroutable(Protocol):
    """One end of a connection, which can be led through a proxy while it is in use."""

    def reroute(self, through: Callable[[socket.socket], socket.socket]) -> None:
        """Switch to the socket that `through` returns for ours."""


class FaultProxy:
    """Between `outer`, the connection to the peer, and `inner`, which the owner of `outer` uses in its place.

    It has both and closes both: when one side has ended, all that came from it is handed on first. Ends are ends of the
    whole connection, as for everything that partitions and the driver say to each other.
    """

    def __init__(self, loop: EventLoop, outer: socket.socket, on_over: Callable[[FaultProxy], object]) -> None:
        self.inner, near = socket.socketpair()
        near.setblocking(False)
        self.inner.setblocking(False)
        self._on_over = on_over
        self._sockets = (outer, near)
        self._held = False
        self._open = True
        self._arriving = _Way(loop, outer, near, self._serve)
        self._leaving = _Way(loop, near, outer, self._serve)
        self._watches = (
            loop.watch(outer, self._arriving.take, self._leaving.hand_on),
            loop.watch(near, self._leaving.take, self._arriving.hand_on),
        )
        self._serve()

    def hold(self, held: bool) -> None:
        """Carry nothing in either direction while `held`; the end of a side is not noticed then either."""
        self._held = held
        self._serve()

    def delay(self, seconds: float) -> None:
        """Delay by `seconds` all bytes that arrive from now on."""
        self._arriving.seconds = self._leaving.seconds = seconds

    def break_inside(self) -> None:
        """Hand on all but the last byte of what comes next, and close the connection."""
        self._arriving.breaks = self._leaving.breaks = True

    def close(self) -> None:
        """Drop all bytes that are on their way; may be called twice."""
        if self._open:
            self._open = False
            self._arriving.cancel()
            self._leaving.cancel()
            for watch, sock in zip(self._watches, self._sockets, strict=True):
                watch.close()
                sock.close()

    def _serve(self) -> None:
        """Look at both ways again: what to wait for, and whether there is still anything to wait for."""
        if not self._open:
            return
        self._arriving.held = self._leaving.held = self._held
        over = self._arriving.is_over or self._leaving.is_over
        if over and not self._held and not any(watch.unsent for watch in self._watches):
            self.close()
            self._on_over(self)
            return
        ways, (outer, near) = (self._arriving, self._leaving), self._watches
        for way, source, target in zip(ways, (outer, near), (near, outer), strict=True):
            source.reading(not self._held and not over and way.has_room)
            target.writing(not self._held and (way.is_due or bool(target.unsent)))


class _Way:
    """One direction. `changed` is called when something else is to be waited for."""

    def __init__(
        self, loop: EventLoop, source: socket.socket, target: socket.socket, changed: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._source = source
        self._target = target
        self._changed = changed
        self._waiting: deque[tuple[float, memoryview]] = deque()
        self._bytes = 0
        self._ended = False
        self._broken = False
        self._timer: Timer | None = None
        self.seconds = 0.0
        self.breaks = False
        self.held = False

    @property
    def has_room(self) -> bool:
        """True if more should be read."""
        return not self._ended and self._bytes < _MOST

    @property
    def is_due(self) -> bool:
        """True if bytes are due to be written."""
        return bool(self._waiting) and self._waiting[0][0] <= self._loop.now()

    @property
    def is_over(self) -> bool:
        """True if no more bytes will be carried."""
        return self._broken or (self._ended and not self._waiting)

    def take(self) -> None:
        """Read what there is."""
        try:
            data = self._source.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._ended = self.breaks or not data
        if self.breaks:
            data = data[:-1]
        if data:
            self._waiting.append((self._loop.now() + self.seconds, memoryview(data)))
            self._bytes += len(data)
        self.hand_on()

    def hand_on(self) -> None:
        """Write what is due."""
        try:
            while not self.held and self.is_due:
                when, data = self._waiting[0]
                sent = self._target.send(data)
                self._bytes -= sent
                if sent == len(data):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = (when, data[sent:])
        except BlockingIOError:
            pass
        except OSError:
            self._broken = True
        self.cancel()
        if self._waiting and not self.is_due:
            self._timer = self._loop.call_at(self._waiting[0][0], self.hand_on)
        self._changed()

    def cancel(self) -> None:
        """Cancel the timer of the next bytes that are due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
