"""Seals on what steers a job, for connections that are not encrypted; no I/O.

Invariant: a seal is a MAC (keyed BLAKE2b) that only the two ends of one connection can make, under a key of its
own for each direction. It holds at one place alone: for so many sealed things before it, and so many bytes. So a relay
can neither invent nor change what is sealed, nor repeat it, leave it out, or move it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from statebackend.errors import JobError

SEAL_SIZE: Final = 16
_PLACE: Final = struct.Struct(">QQ")
_LENGTH: Final = struct.Struct(">I")


class UnusableRecord(JobError):
    """A connection cannot be read on. The text is for the log, and says what the peer sent."""


class OverLongRecord(UnusableRecord):
    """The peer announces more than a record may have."""


class ForgedRecord(UnusableRecord):
    """A record does not carry the seal of this connection at this place: an attacker on the path changed what was
    sent.
    """


@dataclass(frozen=True, slots=True)
class Seals:
    """The keys of one connection, as one of its ends has them."""

    speaking: bytes = field(repr=False)
    hearing: bytes = field(repr=False)


def seal(key: bytes, said: bytes | bytearray, number: int, position: int = 0) -> bytes:
    """Return the seal of `said` at one place: with `number` sealed things and `position` bytes before it."""
    made = blake2b(_PLACE.pack(number, position), digest_size=SEAL_SIZE, key=key)
    made.update(said)
    return made.digest()


def is_sealed(key: bytes, said: bytes | bytearray, shown: bytes | bytearray, number: int, position: int = 0) -> bool:
    """True if `shown` is the seal of what was said, at this place; compared in constant time."""
    return compare_digest(shown, seal(key, said, number, position))


class RecordWriter:
    """Puts bodies of any length into records: length 4, seal 16 if there are keys, body."""

    def __init__(self, seals: Seals | None) -> None:
        self._key = None if seals is None else seals.speaking
        self._written = 0

    def record(self, body: bytes) -> bytes:
        """Return the next record. All of them have to be sent, in this order."""
        length = _LENGTH.pack(len(body))
        if self._key is None:
            return length + body
        sealed = seal(self._key, body, self._written)
        self._written += 1
        return length + sealed + body


class RecordReader:
    """Takes records apart, in whatever pieces they arrive. Nothing of a body is given before its seal was checked."""

    def __init__(self, seals: Seals | None, most: int) -> None:
        self._key = None if seals is None else seals.hearing
        self._most = most
        self._head = _LENGTH.size + (0 if seals is None else SEAL_SIZE)
        self._read = 0
        self._arrived = bytearray()

    @property
    def is_inside(self) -> bool:
        """True if a record has begun and not ended."""
        return bool(self._arrived)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that these bytes complete, one by one; an `UnusableRecord` if one cannot be accepted.

        A caller that does not take all of them must not feed it again.
        """
        self._arrived += data
        start = 0
        try:
            while len(self._arrived) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._arrived, start)
                if length > self._most:
                    raise OverLongRecord(
                        f"the peer announced a message of {length} bytes; at most {self._most} are read"
                    )
                end = start + self._head + length
                if len(self._arrived) < end:
                    return
                body = bytes(self._arrived[start + self._head : end])
                self._check(body, self._arrived[start + _LENGTH.size : start + self._head])
                start = end
                yield body
        finally:
            del self._arrived[:start]

    def _check(self, body: bytes, shown: bytearray) -> None:
        if self._key is None:
            return
        if not is_sealed(self._key, body, shown, self._read):
            raise ForgedRecord(
                f"message {self._read} of {len(body)} bytes does not carry the connection's seal: it was "
                "changed on the network; turn on tls"
            )
        self._read += 1
