"""A wire between a client and a PostgreSQL server that can be cut, also just before an answer gets through."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards connections to a port of this machine, each in a thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._lost = b""
        self.lost = 0
        """How many answers did not get through."""
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_the_answer_to(self, request: bytes) -> None:
        """The next request with these bytes reaches the server, and what the server says to it nobody."""
        self._lost = request

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing gets through, and all connections break."""
        self._is_cut = True
        self._break()
        try:
            yield
        finally:
            self._is_cut = False

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._break()

    def _break(self) -> None:
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self._is_cut:
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                both = {client, server}
                self._open |= both
                try:
                    self._pump(client, server)
                finally:
                    self._open -= both

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        losing = False
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select():
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    if key.fileobj is client and self._lost and self._lost in data:
                        losing, self._lost = True, b""
                    elif key.fileobj is server and losing:
                        self.lost += 1
                        return
                    key.data.sendall(data)


@contextmanager
def running_proxy(target: int) -> Iterator[Proxy]:
    """Forward for as long as the context lasts."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
