"""The small server at which a job's metrics and page are read, in threads of its own.

Invariant: whatever a caller does or leaves undone, the job is unharmed: no answer is waited for, a caller that is
silent is hung up on, and of very many callers at once most are turned away. Nothing is changed by any call but an order
that the page's own script posts, where there are orders. Without a token it listens on the loopback alone, and answers
only calls to a name of the loopback: a foreign page whose own name was made to lead here gets nothing.
"""

from __future__ import annotations

import hmac
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from recovery.telemetry.problems import CannotTell
from statebackend.readable import readable_logger

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_LOG: Final = readable_logger("epochcut.web")
_SILENT: Final = 10.0
"""Seconds after which a caller that says nothing, or takes nothing, is hung up on."""
_AT_ONCE: Final = 16
"""Callers that are served at the same time."""
_FAREWELL: Final = 2.0
_LOOK: Final = 0.05
"""Seconds until it notices that it is closed."""
_SECRET: Final = 16
"""Characters that a token has at least."""
_COOKIE: Final = "epochcut"
_STRICT: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
                                "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Content:
    """The answer to a caller."""

    kind: str
    """Its MIME type."""
    body: bytes


Route = Callable[[], Content]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address at which a server listens, and the token that callers need; empty for none."""

    host: str
    port: int
    token: str = ""
    tls: ssl.SSLContext | None = None
    """The certificate that the server shows; without it what is said can be read on its way."""

    @classmethod
    def of(cls, option: str, address: str, token: str = "", giving: str = "web_token") -> Endpoint:
        """Read an address such as `127.0.0.1:9249`; `CannotTell` if it is none, or is open to others unprotected.

        `giving` is how the token is given.
        """
        parts = urlsplit(f"//{address}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or port is None or parts.path or parts.username is not None:
            raise CannotTell(f"{option} is {address!r}; give an address and a port, such as '127.0.0.1:9249'")
        if token and len(token) < _SECRET:
            raise CannotTell(f"{giving} has {len(token)} characters; give at least {_SECRET}")
        if not token and not _is_loopback(host):
            raise CannotTell(
                f"{option} is {address!r}, which other hosts can reach; give {giving}, which a scraper sends as its "
                "bearer token (Prometheus: authorization: credentials) and a browser once as ?token=, or listen on "
                "127.0.0.1"
            )
        return cls(host, port, token)

    def encrypted(self, certificate: Path, key: Path) -> Endpoint:
        """Return the same, encrypted; `CannotTell` if the files are no certificate and its key."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            tls.load_cert_chain(certificate, key, password=_no_password)
        except (OSError, ValueError) as error:  # ssl's own errors are OSErrors
            reason = getattr(error, "reason", None) or error
            raise CannotTell(f"{certificate} and {key} cannot be used as certificate and key: {reason}") from error
        return replace(self, tls=tls)


def _no_password() -> str:
    raise ValueError("the key has a password, and a server cannot ask for it")


class WebServer:
    """Answers by its routes, from `begin` to `close`. It listens from its making on."""

    def __init__(self, endpoint: Endpoint, path: str) -> None:
        """Listen. `CannotTell` if that cannot be. `path` is what callers want first."""
        self._path = path
        try:
            self._server = _Server(endpoint)
        except OSError as error:
            raise CannotTell(
                f"{endpoint.host}:{endpoint.port} cannot be listened at: {error.strerror or error}; port 0 takes any "
                "that is free"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), name="web", daemon=True)

    def begin(self, routes: Mapping[str, Route], orders: Mapping[str, Route] | None = None) -> None:
        """Answer calls to these paths, and carry out those orders, which are posted by the page itself."""
        self._server.set_app(_guarded(self._server.endpoint, routes, orders or {}))
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where it is, for callers on this host; without the token."""
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        scheme = "http" if self._server.endpoint.tls is None else "https"
        return f"{scheme}://{name}:{port}{self._path}"

    def close(self) -> None:
        """Stop listening; an answer under way may be cut off."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_FAREWELL)
        self._server.server_close()


def _guarded(endpoint: Endpoint, routes: Mapping[str, Route], orders: Mapping[str, Route]) -> WSGIApplication:
    """Return the application that answers those callers that may have an answer, and no others."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO"))
        if endpoint.token and path == "/" and _has_token_in_query(endpoint, environ):
            cookie = f"{_cookie_name(environ)}={_digest(endpoint)}; HttpOnly; SameSite=Strict; Path=/"
            cookie += "" if endpoint.tls is None else "; Secure"
            start("303 See Other", [("Location", "/"), ("Set-Cookie", cookie), ("Content-Length", "0"), *_STRICT])
            return []
        if not _may(endpoint, environ):
            return _say(start, "401 Unauthorized" if endpoint.token else "403 Forbidden", "not for you\n")
        ordered = environ.get("REQUEST_METHOD") == "POST" and path in orders
        if not ordered and environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _say(start, "405 Method Not Allowed", "nothing can be changed here\n")
        if ordered and not _is_of_the_page(environ):
            return _say(start, "403 Forbidden", "only the page itself can ask for this\n")
        if not ordered and path not in routes:
            return _say(start, "404 Not Found", f"there is: {', '.join(routes)}\n")
        try:
            content = (orders if ordered else routes)[path]()
        except Exception:
            _LOG.exception("%s could not be put together", path)
            return _say(start, "500 Internal Server Error", "it could not be put together; see the driver's log\n")
        length = str(len(content.body))
        start("200 OK", [("Content-Type", content.kind), ("Content-Length", length), *_STRICT])
        return [content.body]

    return answer


def _has_token_in_query(endpoint: Endpoint, environ: WSGIEnvironment) -> bool:
    given = parse_qs(str(environ.get("QUERY_STRING", "")), errors="replace").get("token", [""])[0]
    return _is_token(endpoint, given)


def _is_token(endpoint: Endpoint, given: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), endpoint.token.encode())


def _may(endpoint: Endpoint, environ: WSGIEnvironment) -> bool:
    """True if a caller has the token; where none is needed, if it knows whom it calls."""
    if endpoint.token:
        kind, _, given = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if kind == "Bearer":
            return _is_token(endpoint, given)
        return hmac.compare_digest(_cookie(environ).encode("utf-8", "replace"), _digest(endpoint).encode())
    with suppress(ValueError):
        host = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname
        return host is not None and (host == endpoint.host or _is_loopback(host))
    return False


def _is_of_the_page(environ: WSGIEnvironment) -> bool:
    """True if the page's own script is the caller: no other site can make a browser send this header."""
    return environ.get("HTTP_X_EPOCHCUT") == "page"


def _cookie_name(environ: WSGIEnvironment) -> str:
    """Return a name for this port: browsers give the cookies of a host to all its ports."""
    return f"{_COOKIE}-{environ.get('SERVER_PORT', '')}"


def _digest(endpoint: Endpoint) -> str:
    """Return what a browser keeps in the place of the token, which other services of the host may see."""
    return hmac.new(endpoint.token.encode(), b"epochcut page", "sha256").hexdigest()


def _cookie(environ: WSGIEnvironment) -> str:
    try:
        found = SimpleCookie(str(environ.get("HTTP_COOKIE", ""))).get(_cookie_name(environ))
    except CookieError:
        return ""
    return "" if found is None else found.value


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
        """Log a call, where somebody wants to know, without what may be a token."""
        del format
        path, status = self.path.partition("?")[0], arguments[1] if len(arguments) > 1 else ""
        _LOG.debug("%s: %s %s %s", self.address_string(), self.command, path, status)

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

    def get_request(self) -> tuple[Any, Any]:
        """Take a call; the handshake of an encrypted one is left to the thread that serves it."""
        request, address = super().get_request()
        if self.endpoint.tls is not None:
            request = self.endpoint.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

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
