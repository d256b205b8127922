"""An S3 server in a few lines, one process and in memory, whose answers a test can spoil one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NONCE = "x-amz-meta-epochcut-creation"


@dataclass(frozen=True, slots=True)
class Request:
    """What the client asked."""

    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def is_create(self) -> bool:
        """Whether it is a put on condition that the object is absent."""
        return self.method == "PUT" and self.headers["If-None-Match"] == "*"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client is told; `None` in its place breaks the connection without a word."""

    status: int
    code: str = ""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class FaultyS3:
    """Objects, the requests seen so far, and `spoil`, through which a test answers in the place of `serve`."""

    endpoint: str = ""
    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    spoil: Callable[[Request], Reply | None] | None = None

    def answer(self, request: Request) -> Reply | None:
        """Note the request and answer it, spoilt or not."""
        self.seen.append(request)
        return (self.spoil or self.serve)(request)

    def serve(self, request: Request) -> Reply:
        """Answer as S3 does."""
        if request.is_create and request.path in self.objects:
            return Reply(412, "PreconditionFailed")
        return self.serve_without_conditions(request)

    def serve_without_conditions(self, request: Request) -> Reply:
        """Answer as servers do that have never heard of conditional puts."""
        if request.method == "PUT":
            self.objects[request.path] = (request.body, request.headers[NONCE] or "")
            return Reply(200)
        if request.method == "DELETE":
            self.objects.pop(request.path, None)
            return Reply(204)
        if request.path not in self.objects:
            return Reply(404, "NoSuchKey")
        body, nonce = self.objects[request.path]
        return Reply(200, body=body, headers=((NONCE, nonce),))

    @property
    def creates(self) -> int:
        """How many conditional puts were seen."""
        return sum(request.is_create for request in self.seen)


@contextmanager
def running_faulty_s3() -> Iterator[FaultyS3]:
    """Serve on a free port of the loopback interface for as long as the context lasts."""
    s3 = FaultyS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            reply = s3.answer(Request(self.command, self.path, self.headers, body))
            if reply is None:
                self.close_connection = True
                return
            content = f"<Error><Code>{reply.code}</Code></Error>".encode() if reply.code else reply.body
            self.send_response(reply.status)
            for name, value in (*reply.headers, ("Content-Length", str(len(content)))):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_DELETE = _handle  # noqa: N815 (these are the names that are looked for)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the test looks at what was seen."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        s3.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield s3
        finally:
            server.shutdown()
