"""A server that takes rows by HTTP, each key once, and does what a test wants with the requests that come next.

Invariant: what it has taken it keeps while it is stopped; it comes back at the same port.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, Literal

Deed = Literal["lose", "hang", "close", "babble"] | int | tuple[int, Mapping[str, str]]
"""What is done with a request: a status, perhaps with headers; "lose" takes the rows and gives no answer, "hang" gives
none as long as the server runs, "close" takes them, says so, and closes the connection without a word; "babble" is no
HTTP.
"""


@dataclass(frozen=True, slots=True)
class Came:
    """A request as it came."""

    key: str
    body: str
    headers: Mapping[str, str]


@dataclass(slots=True, eq=False)
class RowServer:
    """The server; `taken` has the body of each key, `came` all requests."""

    taken: dict[str, str] = field(default_factory=dict)
    came: list[Came] = field(default_factory=list)
    next: deque[Deed] = field(default_factory=deque)
    port: int = 0
    _server: _Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rows"

    def rows(self) -> list[Any]:
        """All rows that were taken, in the order of their keys' first requests."""
        return [json.loads(line) for body in list(self.taken.values()) for line in body.splitlines()]

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Close the port and all connections, in the middle of whatever is under way."""
        assert self._server is not None
        self._server.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._server = None


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], rows: RowServer) -> None:
        self.rows = rows
        self.stopped = threading.Event()
        self.one_at_a_time = threading.Lock()
        self._connections: list[socket] = []
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The connection was closed."""

    def server_close(self) -> None:
        super().server_close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        key, rows = self.headers["Idempotency-Key"], self.server.rows
        with self.server.one_at_a_time:
            if self.server.stopped.is_set():
                return
            rows.came.append(Came(key, body, dict(self.headers.items())))
            deed = rows.next.popleft() if rows.next else 200
            if deed in ("lose", "close") or deed == 200:
                assert rows.taken.setdefault(key, body) == body, f"the key {key} has come with other rows"
        match deed:
            case "lose":
                self.close_connection = True
            case "hang":
                self.server.stopped.wait()
                self.close_connection = True
            case "babble":
                self.wfile.write(b"what is it that you want?\r\n\r\n")
                self.close_connection = True
            case "close":
                self._answer(200, {})
                self.close_connection = True
            case int(status):
                self._answer(status, {})
            case (int(status), headers):
                self._answer(status, headers)
            case _:
                raise AssertionError(deed)

    def _answer(self, status: int, headers: Mapping[str, str]) -> None:
        said = b"" if status < 300 else b"no such thing"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(said))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@contextmanager
def row_server() -> Iterator[RowServer]:
    """A server that runs."""
    server = RowServer()
    server.start()
    try:
        yield server
    finally:
        if server._server is not None:
            server.stop()
