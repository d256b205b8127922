"""Sockets and selectors, as Python has them, on the simulated network.

Invariant: every socket is non-blocking; what one does that it should not, such as a read after `close`, raises
what a real one would raise.
"""

from __future__ import annotations

import errno
import selectors
import socket as real
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import Any

from recovery.testing.world.kernel import Task, World
from recovery.testing.world.network import End, Network

_NUMBERS = count(1 << 20)


class SimSocket:
    """A TCP socket of the process that makes it."""

    def __init__(self, network: Network, family: int = real.AF_INET, *_: object) -> None:
        network.world.check()
        self._network = network
        self._process = network.world.process
        self._number = next(_NUMBERS)
        self.family = family
        self.end: End | None = None
        self._place: tuple[str, int] | None = None
        self._listening = False
        self._queue: deque[End] = deque()
        self._error = 0
        self._connecting = False
        self._closed = False
        self.watcher: SimSelector | None = None

    @staticmethod
    def of(network: Network, end: End) -> SimSocket:
        """Return a socket for an end that is connected."""
        sock = SimSocket(network)
        sock._take(end)
        return sock

    def _take(self, end: End) -> None:
        self.end = end
        end.hot = self._news

    def _news(self) -> None:
        if self.watcher is not None:
            self.watcher.look_at(self)

    # --- making connections -------------------------------------------------------------------------------------------

    def setblocking(self, flag: bool) -> None:
        """Do nothing: no simulated socket blocks."""

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: no simulated socket blocks."""

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Take the option that breaks silent connections; the others make no difference here."""
        if level == real.IPPROTO_TCP and option == getattr(real, "TCP_USER_TIMEOUT", -1) and self.end is not None:
            self._network.break_if_silent(self.end, value / 1000)

    def getsockopt(self, level: int, option: int) -> int:
        """Return the error of a connection that was begun, once."""
        error, self._error = self._error, 0
        return error if (level, option) == (real.SOL_SOCKET, real.SO_ERROR) else 0

    def bind(self, place: tuple[str, int]) -> None:
        """Take a place to listen at."""
        self._place = place

    def listen(self, _backlog: int = 0) -> None:
        """Listen at the place; raise `OSError` if another socket does."""
        assert self._place is not None
        self._place = self._network.listen(self._process, *self._place, self._called)
        self._listening = True

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        """Return the next connection, and the address of its caller."""
        self._open()
        if not self._queue:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        end = self._queue.popleft()
        assert end.other is not None
        return SimSocket.of(self._network, end), end.other.address

    def _called(self, end: End) -> None:
        if self._closed:
            end.close()
            return
        self._queue.append(end)
        self._news()

    def connect_ex(self, place: tuple[str, int]) -> int:
        """Begin to connect; the socket becomes writable when that has succeeded or failed."""
        self._open()
        self._connecting = True
        self._network.connect(self._process, (place[0], place[1]), self._answered)
        return errno.EINPROGRESS

    def _answered(self, outcome: End | int) -> None:
        self._connecting = False
        if isinstance(outcome, int):
            self._error = outcome
        elif self._closed:
            outcome.close()
            return
        else:
            self._take(outcome)
        self._news()

    def getsockname(self) -> tuple[str, int]:
        """Return its own address."""
        if self.end is not None:
            return self.end.address
        assert self._place is not None
        return self._place

    def getpeername(self) -> tuple[str, int]:
        """Return the address of the other end."""
        if self.end is None or self.end.other is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self.end.other.address

    def fileno(self) -> int:
        """Return a number that no file has; -1 once it is closed."""
        return -1 if self._closed else self._number

    # --- bytes --------------------------------------------------------------------------------------------------------

    def send(self, data: Any) -> int:
        """Send as much as there is room for."""
        return self._connected().send(bytes(data))

    def sendmsg(self, buffers: Iterable[Any]) -> int:
        """Send as much of the buffers, in their order, as there is room for."""
        return self._connected().send(b"".join(buffers))

    def recv(self, most: int) -> bytes:
        """Return what has arrived."""
        return self._connected().receive(most)

    def recv_into(self, buffer: Any) -> int:
        """Read what has arrived into the buffer, and return how much it was."""
        data = self._connected().receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def shutdown(self, how: int) -> None:
        """Send nothing more, if that is what it says."""
        if how != real.SHUT_RD:
            self._connected().finish()

    def close(self) -> None:
        """Close it; may be called twice."""
        self._network.world.check()
        if self._closed:
            return
        self._closed = True
        if self._listening and self._place is not None:
            self._network.stop_listening(self._place)
            for waiting in self._queue:
                waiting.close()
        if self.end is not None:
            self.end.close()

    def _open(self) -> None:
        self._network.world.check()
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _connected(self) -> End:
        self._open()
        if self.end is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self.end

    def ready(self, events: int) -> int:
        """Return which of these events there are."""
        end = self.end
        if end is None:
            if self._listening:
                return events & selectors.EVENT_READ if self._queue else 0
            return events if self._error else 0
        return (events & selectors.EVENT_READ if end.readable else 0) | (
            events & selectors.EVENT_WRITE if end.writable else 0
        )


def socketpair(network: Network) -> tuple[SimSocket, SimSocket]:
    """Return two sockets of one process that are connected."""
    process = network.world.process
    one, other = network.pair(process, ("", 0), process, ("", 0))
    return SimSocket.of(network, one), SimSocket.of(network, other)


class SimSelector:
    """Waits for sockets. A wait that is over at once lets other threads run, so that no loop keeps the world busy."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: dict[SimSocket, selectors.SelectorKey] = {}
        self._hot: dict[SimSocket, None] = {}
        """The sockets that may be ready, in the order of their news."""
        self._waiting: Task | None = None

    def register(self, sock: Any, events: int, data: object = None) -> selectors.SelectorKey:
        """Wait for these events, too."""
        key = self._keys[sock] = selectors.SelectorKey(sock, sock.fileno(), events, data)
        sock.watcher = self
        self.look_at(sock)
        return key

    def modify(self, sock: Any, events: int, data: object = None) -> selectors.SelectorKey:
        """Wait for other events."""
        return self.register(sock, events, data)

    def unregister(self, sock: Any) -> selectors.SelectorKey:
        """Wait for it no more."""
        sock.watcher = None
        self._hot.pop(sock, None)
        return self._keys.pop(sock)

    def look_at(self, sock: SimSocket) -> None:
        """Look at this socket, which has news."""
        self._hot[sock] = None
        if self._waiting is not None:
            self._world.unpark(self._waiting)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the sockets that are ready; wait for the first one, at most for so long."""
        world = self._world
        ready = self._ready()
        if ready or (timeout is not None and timeout <= 0):
            world.pass_on()
            return self._ready()
        until = None if timeout is None else world.now + timeout
        while not ready:
            left = None if until is None else until - world.now
            if left is not None and left <= 0:
                break
            self._waiting = world.current
            world.park(left)
            self._waiting = None
            ready = self._ready()
        return ready

    def close(self) -> None:
        """Wait for nothing any more."""
        self._world.check()
        self._keys.clear()
        self._hot.clear()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = []
        if self._hot:
            cold: list[SimSocket] = []
            for sock in self._hot:
                key = self._keys[sock]
                events = sock.ready(key.events)
                if events:
                    ready.append((key, events))
                else:
                    cold.append(sock)
            for sock in cold:
                del self._hot[sock]
        return ready
