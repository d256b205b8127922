"""The endpoint at which a job's metrics are scraped: a small server in threads of its own.

Invariant: whatever a caller does or leaves undone, the job is unharmed: no scrape is waited for, a caller that is
silent is hung up on, and of very many callers at once most are turned away. Without a token it listens on the loopback
alone, and answers only calls to a name of the loopback: a page whose own name was made to lead here gets nothing.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from recovery.driver.report.status import RunStatus
from recovery.events import AnyEvent
from recovery.telemetry.counts import Counts
from recovery.telemetry.exposition import CONTENT_TYPE, text_of
from recovery.telemetry.metrics import families
from recovery.telemetry.problems import CannotTell
from statebackend.readable import readable_logger

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_LOG: Final = readable_logger("epochcut.metrics")
_SILENT: Final = 10.0
"""Seconds after which a caller that says nothing, or takes nothing, is hung up on."""
_AT_ONCE: Final = 16
"""Callers that are served at the same time."""
_FAREWELL: Final = 2.0
_LOOK: Final = 0.05
"""Seconds until it notices that it is closed."""
_SECRET: Final = 16
"""Characters that a token has at least."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address at which metrics are served, and the token that callers need; empty for none."""

    host: str
    port: int
    token: str = ""

    @classmethod
    def of(cls, address: str, token: str = "") -> Endpoint:
        """Read an address such as `127.0.0.1:9249`; `CannotTell` if it is none, or is open to others unprotected."""
        parts = urlsplit(f"//{address}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or port is None or parts.path or parts.username is not None:
            raise CannotTell(f"metrics is {address!r}; give an address and a port, such as '127.0.0.1:9249'")
        if token and len(token) < _SECRET:
            raise CannotTell(f"metrics_token has {len(token)} characters; give at least {_SECRET}")
        if not token and not _is_loopback(host):
            raise CannotTell(
                f"metrics is {address!r}, which other hosts can reach; give metrics_token, which a scraper sends as "
                "its bearer token (Prometheus: authorization: credentials), or listen on 127.0.0.1"
            )
        return cls(host, port, token)


class MetricsServer:
    """Serves the metrics of one run, from `begin` to `close`. It listens from its making on."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Listen. `CannotTell` if that cannot be."""
        self._lock = threading.Lock()
        self._counts = Counts()
        try:
            self._server = _Server(endpoint)
        except OSError as error:
            raise CannotTell(
                f"metrics cannot be served at {endpoint.host}:{endpoint.port}: {error.strerror or error}; port 0 takes "
                "any that is free"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), name="metrics", daemon=True)

    def begin(self, status: Callable[[], RunStatus]) -> None:
        """Serve what this status says, and the events that come."""

        def text() -> bytes:
            with self._lock:
                return text_of(families(status(), self._counts, time.time()))

        self._server.set_app(_guarded(self._server.endpoint, text))
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where the metrics are."""
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/metrics"

    def heard(self, event: AnyEvent) -> None:
        """Count an event."""
        with self._lock:
            self._counts.heard(event)

    def close(self) -> None:
        """Stop listening; a scrape under way may be cut off."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_FAREWELL)
        self._server.server_close()


def _guarded(endpoint: Endpoint, metrics: Callable[[], bytes]) -> WSGIApplication:
    """Return the application that answers calls for metrics alone, of callers that may have them."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if not _may(endpoint, environ):
            return _say(start, "401 Unauthorized" if endpoint.token else "403 Forbidden", "not for you\n")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _say(start, "405 Method Not Allowed", "metrics can only be read\n")
        if environ.get("PATH_INFO") != "/metrics":
            return _say(start, "404 Not Found", "the metrics are at /metrics\n")
        try:
            body = metrics()
        except Exception:
            _LOG.exception("the metrics could not be put together")
            return _say(start, "500 Internal Server Error", "the metrics could not be put together; see the log\n")
        start("200 OK", [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _may(endpoint: Endpoint, environ: WSGIEnvironment) -> bool:
    """True if a caller has the token; where none is needed, if it knows whom it calls."""
    if endpoint.token:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
        return hmac.compare_digest(given, f"Bearer {endpoint.token}".encode())
    with suppress(ValueError):
        host = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname
        return host is not None and (host == endpoint.host or _is_loopback(host))
    return False


def _say(start: StartResponse, status: str, text: str) -> Iterable[bytes]:
    body = text.encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    if status.startswith("401"):
        headers.append(("WWW-Authenticate", "Bearer"))
    start(status, headers)
    return [body]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(WSGIRequestHandler):
    timeout = _SILENT

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log a call, where somebody wants to know."""
        _LOG.debug("%s: " + format, self.address_string(), *arguments)

    def address_string(self) -> str:
        """Return the caller's address as it is: its name would be asked for."""
        return str(self.client_address[0])

    def get_stderr(self) -> Any:
        """Return where errors of a call go."""
        return _Logged()


class _Logged:
    """A stream whose lines are logged."""

    def write(self, text: str) -> int:
        """Log what was written."""
        if text.strip():
            _LOG.log(logging.DEBUG, "%s", text.rstrip())
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Log several."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing, as nothing waits."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._at_once = threading.BoundedSemaphore(_AT_ONCE)
        if ":" in endpoint.host:
            self.address_family = socket.AF_INET6
        super().__init__((endpoint.host, endpoint.port), _Handler)

    def server_bind(self) -> None:
        """Listen, without asking how this host is named elsewhere."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a call in a thread, unless too many are being served."""
        if not self._at_once.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._at_once.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a call."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._at_once.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log why a call could not be served, as when its caller is gone."""
        _LOG.debug("a call from %s could not be served", client_address, exc_info=True)
