"""Appends to segments and reads from them, in the wire protocol of Pravega's segment stores.

Invariant: `append` returns when the store has all events; an append under a condition is done, or was found not to be
possible, or raises, and then nobody knows. One request at a time is under way on a connection, but for the blocks of an
append. A connection on which something went wrong is used no more.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from secrets import token_bytes
from typing import Final

from snapshot.connectors.pravega.address import Access, Host
from statebackend.errors import JobError

LARGEST_EVENT: Final = 8 << 20
"""Bytes of the largest event."""
_VERSIONS: Final = (16, 5)
"""The newest and the oldest version of the protocol that this knows."""
_BLOCK: Final = 512 << 10
"""Bytes of events that go into one block, unless a single event has more."""
_UNDER_WAY: Final = 8
"""Blocks that may be sent before the answer to the first of them."""
_READ: Final = 1 << 20
_HEADER: Final = struct.Struct(">ii")
_APPENDED: Final = struct.Struct(">16sq")
"""The beginning of the answer to blocks: their writer, and the number of its last event that the store has."""
_LONGEST: Final = 0x00FFFFFF
"""Bytes of the longest answer."""


class _Type(IntEnum):
    """The messages that are sent and understood; an event in a segment has the header of a message, too."""

    HELLO = -127
    EVENT = 0
    SETUP_APPEND = 1
    APPEND_SETUP = 2
    APPEND_BLOCK_END = 4
    CONDITIONAL_APPEND = 5
    DATA_APPENDED = 7
    CONDITIONAL_CHECK_FAILED = 8
    READ_SEGMENT = 9
    SEGMENT_READ = 10
    GET_STREAM_SEGMENT_INFO = 11
    STREAM_SEGMENT_INFO = 12
    WRONG_HOST = 50
    SEGMENT_IS_SEALED = 51
    NO_SUCH_SEGMENT = 53
    INVALID_EVENT_NUMBER = 55
    SEGMENT_IS_TRUNCATED = 56
    OPERATION_UNSUPPORTED = 57
    AUTH_TOKEN_CHECK_FAILED = 60
    ERROR_MESSAGE = 61
    KEEP_ALIVE = 100


class StoreFailed(JobError):
    """A segment store that did not do what it was asked for; the message says which, and what it said."""

    def __init__(self, reason: str, refused: bool = False) -> None:
        self.refused = refused
        """True if it may not be asked for this again: it wants another token."""
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of a segment: its first byte that is kept, and its end."""

    start: int
    end: int


class SegmentConnection:
    """A connection to a segment store, which is shown `token`. Every method may raise `StoreFailed`."""

    def __init__(self, access: Access, host: Host, token: str, seconds: float) -> None:
        self._host = host
        self._token = token
        self._seconds = seconds
        self._requests = 0
        try:
            self._socket: socket.socket = access.connect(host, seconds)
        except OSError as error:
            raise StoreFailed(f"the segment store at {host} cannot be reached: {error}") from error
        self._stream = self._socket.makefile("rb")
        try:
            self._send(_Type.HELLO, struct.pack(">ii", *_VERSIONS))
            kind, answer = self._receive()
            if kind is not _Type.HELLO or struct.unpack(">ii", answer)[1] > _VERSIONS[0]:
                raise StoreFailed(f"the segment store at {host} does not speak version {_VERSIONS[0]} of the protocol")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the connection go."""
        self._stream.close()
        self._socket.close()

    def append(self, segment: str, events: Sequence[bytes]) -> None:
        """Append the events, in order, and return when the store has them all."""
        writer = self._set_up(segment)
        blocks = deque(_blocks(events))
        under_way = deque[int]()  # the numbers of the last events in the blocks that are sent, and not answered
        last = 0
        while blocks or under_way:
            if blocks and len(under_way) < _UNDER_WAY:
                block = blocks.popleft()
                last += len(block)
                self._append_block(writer, block, last)
                under_way.append(last)
                continue
            kind, answer = self._receive()
            if kind is not _Type.DATA_APPENDED:
                raise self._failed(segment, kind, answer)
            _, appended = _APPENDED.unpack_from(answer)
            while under_way and under_way[0] <= appended:  # one answer may be for several blocks
                under_way.popleft()

    def append_at(self, segment: str, event: bytes, offset: int) -> bool:
        """Append one event if the segment ends at this offset; return whether it did."""
        writer = self._set_up(segment)
        self._requests += 1
        numbers = struct.pack(">qq", 1, offset)
        self._send(_Type.CONDITIONAL_APPEND, writer + numbers + framed(event) + struct.pack(">q", self._requests))
        kind, answer = self._receive()
        if kind not in (_Type.DATA_APPENDED, _Type.CONDITIONAL_CHECK_FAILED):
            raise self._failed(segment, kind, answer)
        return kind is _Type.DATA_APPENDED

    def extent(self, segment: str) -> Extent:
        """Return where a segment begins and ends now."""
        answer = self._ask(
            segment, _Type.GET_STREAM_SEGMENT_INFO, self._number() + _text(segment) + _text(self._token),
            _Type.STREAM_SEGMENT_INFO,
        )  # fmt: skip
        _, place = _read_text(answer, 8)
        *_, end, start = struct.unpack_from(">???qqq", answer, place)
        return Extent(start, end)

    def read(self, segment: str, extent: Extent) -> Sequence[bytes]:
        """Return the events in this part of a segment."""
        data = bytearray()
        while (offset := extent.start + len(data)) < extent.end:
            wanted = struct.pack(">qi", offset, min(_READ, extent.end - offset))
            request = _text(segment) + wanted + _text(self._token) + self._number()
            answer = self._ask(segment, _Type.READ_SEGMENT, request, _Type.SEGMENT_READ)
            _, place = _read_text(answer, 0)
            at, _, ended, length = struct.unpack_from(">q??i", answer, place)
            if at != offset or (ended and not length):
                raise StoreFailed(f"the segment store at {self._host} has no byte {offset} of {segment}")
            begin = place + struct.calcsize(">q??i")
            data += answer[begin : begin + length]
        return events_in(bytes(data[: extent.end - extent.start]))

    def _set_up(self, segment: str) -> bytes:
        """Set up an append by a writer that was never used, and return its id."""
        writer = token_bytes(16)
        request = self._number() + writer + _text(segment) + _text(self._token)
        self._ask(segment, _Type.SETUP_APPEND, request, _Type.APPEND_SETUP)
        return writer

    def _append_block(self, writer: bytes, events: Sequence[bytes], last: int) -> None:
        data = b"".join(map(framed, events))
        self._requests += 1
        sizes = struct.pack(">ii", len(data), len(data))
        numbers = struct.pack(">iqq", len(events), last, self._requests)
        self._send(_Type.APPEND_BLOCK_END, writer + sizes + data + numbers)

    def _ask(self, segment: str, kind: _Type, request: bytes, expected: _Type) -> bytes:
        self._send(kind, request)
        got, answer = self._receive()
        if got is not expected:
            raise self._failed(segment, got, answer)
        return answer

    def _number(self) -> bytes:
        self._requests += 1
        return struct.pack(">q", self._requests)

    def _send(self, kind: _Type, payload: bytes) -> None:
        try:
            self._socket.settimeout(self._seconds)
            self._socket.sendall(_HEADER.pack(kind, len(payload)) + payload)
        except OSError as error:
            raise StoreFailed(f"the segment store at {self._host} takes no more: {error}") from error

    def _receive(self) -> tuple[_Type, bytes]:
        give_up = time.monotonic() + self._seconds
        try:
            while time.monotonic() < give_up:
                self._socket.settimeout(max(give_up - time.monotonic(), 0.001))
                kind, length = _HEADER.unpack(self._exactly(_HEADER.size))
                if not 0 <= length <= _LONGEST or kind not in set(_Type):
                    raise StoreFailed(f"the segment store at {self._host} answers with message {kind}, not known here")
                payload = self._exactly(length)
                if kind != _Type.KEEP_ALIVE:
                    return _Type(kind), payload
        except OSError as error:
            raise StoreFailed(f"the segment store at {self._host} does not answer: {error}") from error
        raise StoreFailed(f"the segment store at {self._host} has not answered in {self._seconds:g} s")

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionResetError("it closed the connection")
        return data

    def _failed(self, segment: str, kind: _Type, answer: bytes) -> StoreFailed:
        said = kind.name
        if kind is _Type.ERROR_MESSAGE:
            _, place = _read_text(answer, 8)
            said = _read_text(answer, place)[0]
        return StoreFailed(
            f"the segment store at {self._host} refuses {segment}: {said}", kind is _Type.AUTH_TOKEN_CHECK_FAILED
        )


def framed(event: bytes) -> bytes:
    """Return an event as it stands in a segment."""
    return _HEADER.pack(_Type.EVENT, len(event)) + event


def events_in(data: bytes) -> Sequence[bytes]:
    """Return the events in a part of a segment; `StoreFailed` if it does not begin and end between two events."""
    found, place = [], 0
    while place < len(data):
        if len(data) - place < _HEADER.size:
            raise StoreFailed("a segment does not end after an event")
        kind, length = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        if kind != _Type.EVENT or not 0 <= length <= len(data) - place:
            raise StoreFailed("a segment has something else than events")
        found.append(data[place : place + length])
        place += length
    return found


def _blocks(events: Sequence[bytes]) -> Sequence[Sequence[bytes]]:
    blocks: list[list[bytes]] = []
    size = _BLOCK
    for event in events:
        if size + len(event) > _BLOCK:
            blocks.append([])
            size = 0
        blocks[-1].append(event)
        size += _HEADER.size + len(event)
    return blocks


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _read_text(data: bytes, place: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">H", data, place)
    end = place + 2 + length
    return data[place + 2 : end].decode(errors="replace"), end
