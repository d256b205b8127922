"""Requests with rows to one server, one after the other, and what its answers mean.

Invariant: a request that is sent again is the same request under the same key; what the server did not say is
never taken for yes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from statebackend.errors import JobError

KEY_HEADER: Final = "Idempotency-Key"
_AGAIN: Final = frozenset({408, 409, 425, 429})
"""The 4xx codes that say nothing against the rows: too slow, the same key is being worked on, too early, too many."""
_READ: Final = 1 << 16
"""Bytes of an answer that are read; a longer one ends its connection."""
_QUOTED: Final = 300
"""Characters of an answer that are told."""
_LONGEST_WAIT: Final = 300.0
"""Seconds for which a server may ask not to be asked."""


class NotSent(JobError):
    """It is not known that the server has taken the rows; they have to be sent again."""


class NotTaken(JobError):
    """The server says that it does not take the rows."""


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """The place to which rows are sent, and seconds for an answer. `known` are statuses below 500 by which the
    server says that it has the rows already.
    """

    url: str
    method: str
    headers: Mapping[str, str]
    timeout: float
    known: Collection[int]

    @property
    def shown(self) -> str:
        """Return the URL without its query, which may be secret."""
        return self.url.partition("?")[0]

    @property
    def connection(self) -> HTTPConnection:
        """Return a new connection that is not open yet."""
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.timeout)

    @property
    def target(self) -> str:
        """Return the path and query that a request asks for."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class HttpSender:
    """Sends requests over a connection that is kept. One thread at a time uses it."""

    def __init__(self, place: HttpPlace) -> None:
        self._place = place
        self._connection: HTTPConnection | None = None
        self._not_before = 0.0

    def send(self, key: str, body: bytes, kind: str) -> None:
        """Send rows, and return when the server says that it has them.

        Raises `NotSent` if the server does not say so, `NotTaken` if it refuses them. A connection on which nothing
        comes back, after it had carried other requests, may have been closed by the server for its age: then the
        request is sent on another one.
        """
        if (wait := self._not_before - monotonic()) > 0:
            raise NotSent(f"{self._place.shown} asked not to be asked for another {wait:.0f} s")
        kept = self._connection is not None
        try:
            self._exchange(key, body, kind)
        except (OSError, HTTPException) as error:
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise NotSent(f"{self._place.shown} did not answer: {_said(error)}") from error
        else:
            return
        try:
            self._exchange(key, body, kind)
        except (OSError, HTTPException) as error:
            self.close()
            raise NotSent(f"{self._place.shown} did not answer: {_said(error)}") from error

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def _exchange(self, key: str, body: bytes, kind: str) -> None:
        connection = self._connection = self._connection or self._place.connection
        headers = {**self._place.headers, "Content-Type": kind, KEY_HEADER: key}
        connection.request(self._place.method, self._place.target, body, headers)
        response = connection.getresponse()
        said = response.read(_READ).decode("utf-8", "replace")
        if not response.isclosed():
            self.close()
        status = response.status
        if 200 <= status < 300 or status in self._place.known:
            return
        answer = f"{self._place.shown} said {status} {response.reason}: {said[:_QUOTED]}".rstrip(": ")
        if status >= 500 or status in _AGAIN:
            self._wait(response.getheader("Retry-After"))
            raise NotSent(answer)
        if 300 <= status < 400:
            raise NotTaken(f"{answer}, Location {response.getheader('Location')!r}; rows are not sent after it")
        raise NotTaken(answer)

    def _wait(self, seconds: str | None) -> None:
        if seconds is not None and seconds.strip().isdecimal():
            self._not_before = monotonic() + min(float(seconds), _LONGEST_WAIT)


def reach(place: HttpPlace, within: float) -> str | None:
    """Return why no connection can be made, None if one can; sends no request."""
    connection = place.connection
    connection.timeout = min(within, place.timeout)
    try:
        connection.connect()
    except OSError as error:
        return f"{place.shown} cannot be reached: {_said(error)}"
    connection.close()
    return None


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
