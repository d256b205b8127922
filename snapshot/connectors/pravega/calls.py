"""Calls of gRPC over one connection of HTTP/2: a request, its answer or the reason why there is none.

Invariant: one call at a time is under way; a connection on which something went wrong is used no more. No thread is
kept, so that a process may fork between two calls.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from snapshot.connectors.pravega.address import Access, Host
from statebackend.errors import JobError

if TYPE_CHECKING:
    from h2.connection import H2Connection
    from h2.events import Event

_CHUNK: Final = 1 << 16
_PREFIX: Final = struct.Struct(">?I")
"""Before each message: whether it is compressed, and its length."""


class Status(IntEnum):
    """The statuses of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(JobError):
    """A call that was answered with an error, or not at all (`UNAVAILABLE`); the message says which host said what."""

    def __init__(self, status: Status, reason: str) -> None:
        self.status = status
        super().__init__(reason)


@dataclass(slots=True)
class _Answer:
    """The part of an answer that has come."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False


class Calls:
    """Calls to the first controller that can be reached, which is kept until it cannot be reached any more."""

    def __init__(self, access: Access, seconds: float) -> None:
        self._access = access
        self._seconds = seconds
        self._host = access.controllers[0]
        self._socket: socket.socket | None = None
        self._connection: H2Connection | None = None

    def call(self, method: str, request: bytes) -> bytes:
        """Return the answer; `CallFailed` if there is none.

        A call that got no answer on a connection that was kept from before is made once more on a new one.
        """
        if self._socket is not None:
            try:
                return self._call(method, request)
            except CallFailed as error:
                if error.status is not Status.UNAVAILABLE:
                    raise
        problems = []
        for host in [self._host, *(other for other in self._access.controllers if other != self._host)]:
            try:
                self._connect(host)
            except OSError as error:
                problems.append(f"{host}: {error}")
                continue
            return self._call(method, request)
        raise CallFailed(Status.UNAVAILABLE, f"no controller can be reached ({'; '.join(problems)})")

    def close(self) -> None:
        """Let the connection go; the next call makes another one."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._connection = None

    def _connect(self, host: Host) -> None:
        from h2.config import H2Configuration
        from h2.connection import H2Connection

        self._socket = self._access.connect(host, self._seconds, "h2")
        self._host = host
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._connection.initiate_connection()

    def _call(self, method: str, request: bytes) -> bytes:
        try:
            answer = self._exchange(method, request)
        except BaseException:
            self.close()
            raise
        status = answer.headers.get("grpc-status", str(int(Status.UNKNOWN)))
        if status != "0" or len(answer.data) < _PREFIX.size:
            known = Status(int(status)) if status.isdecimal() and int(status) in set(Status) else Status.UNKNOWN
            said = unquote(answer.headers.get("grpc-message", "")) or known.name
            raise CallFailed(known, f"the controller at {self._host} answers {method} with {known.name}: {said}")
        return bytes(answer.data[_PREFIX.size :])

    def _exchange(self, method: str, request: bytes) -> _Answer:
        from h2.exceptions import ProtocolError

        assert self._connection is not None
        give_up = time.monotonic() + self._seconds
        try:
            stream = self._connection.get_next_available_stream_id()
            self._connection.send_headers(stream, self._headers(method))
            self._connection.send_data(stream, _PREFIX.pack(False, len(request)) + request, end_stream=True)
            answer = _Answer()
            while not answer.ended:
                for event in self._events(give_up):
                    self._take(event, stream, answer)
        except (OSError, ProtocolError) as error:
            reason = f"the controller at {self._host} does not answer {method}: {error!r}"
            raise CallFailed(Status.UNAVAILABLE, reason) from error
        return answer

    def _headers(self, method: str) -> list[tuple[str, str]]:
        return [
            (":method", "POST"),
            (":scheme", "https" if self._access.tls else "http"),
            (":path", method),
            (":authority", str(self._host)),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{int(self._seconds * 1000)}m"),
            *self._access.headers.items(),
        ]

    def _events(self, give_up: float) -> list[Event]:
        assert self._socket is not None
        assert self._connection is not None
        left = give_up - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer in {self._seconds:g} s")
        self._socket.settimeout(left)
        self._socket.sendall(self._connection.data_to_send())
        data = self._socket.recv(_CHUNK)
        if not data:
            raise ConnectionResetError("it closed the connection")
        return self._connection.receive_data(data)

    def _take(self, event: Event, stream: int, answer: _Answer) -> None:
        from h2 import events

        assert self._connection is not None
        match event:
            case events.ConnectionTerminated():
                raise ConnectionResetError("it closed the connection")
            case events.StreamReset(stream_id=of) if of == stream:
                raise ConnectionResetError("it gave the call up")
            case events.DataReceived(stream_id=of) if of == stream:
                answer.data += event.data
                self._connection.acknowledge_received_data(event.flow_controlled_length, stream)
            case events.ResponseReceived(stream_id=of) | events.TrailersReceived(stream_id=of) if of == stream:
                answer.headers |= {str(name): str(value) for name, value in event.headers}
            case events.StreamEnded(stream_id=of) if of == stream:
                answer.ended = True
            case _:
                pass
