"""The bytes of frames on a channel: a fixed header, then the payload; no I/O.

Invariant: a frame that comes out of a `Decoder` is one that the peer's `encode` was given, in order, or an
error says what was wrong, on which channel and at which byte. Nothing is guessed and nothing skipped: after an error
the decoder refuses everything, because where the next frame begins cannot be known.

    version  kind  mode  flag  generation  attempt  value  rows  checksum      big-endian
    1 byte   1     1     1     4           4        8      4     4

`value` is the length of data's payload, a marker's epoch number, a watermark's timestamp or the round that a boundary
or an end closes; `rows` is the number of rows in data; `mode` is a marker's; `flag` says that a marker is a savepoint's
or a watermark idle. What a kind does not use is zero. The checksum (CRC-32) is over the header, so that no stray byte
is taken for a length, a marker or a watermark. What data says is for its reader to check.

On a channel that is not encrypted, every frame but data is followed by a seal of 16 bytes (`snapshot.cut.seals`): over
its header, the bytes of the channel before it, and the number of sealed frames before it. So an attacker on the path
can neither make, change, repeat nor leave out any other frame, nor move one between data. Data is not
sealed: its rows can be read, and changed for others of as many bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, TypeAlias

from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.seals import SEAL_SIZE, Seals, is_sealed, seal
from statebackend.errors import JobError
from statebackend.ids import Attempt, Epoch, Generation, Incarnation

VERSION: Final = 2
DEFAULT_MAX_FRAME: Final = 64 * 1024 * 1024
"""The most payload bytes of one data frame, unless both sides agree on something else."""

Buffer: TypeAlias = bytes | bytearray | memoryview

_UNCHECKED = struct.Struct(">BBBBIIqI")
_CHECKSUM = struct.Struct(">I")
HEADER_SIZE: Final = _UNCHECKED.size + _CHECKSUM.size


class _Kind(IntEnum):
    DATA = 1
    MARKER = 2
    WATERMARK = 3
    END = 4
    BOUNDARY = 5


_KINDS = frozenset(_Kind)
_MODES = {1: MarkerMode.ALIGNED, 2: MarkerMode.UNALIGNED, 3: MarkerMode.AT_LEAST_ONCE}
_MODE_CODES = {mode: code for code, mode in _MODES.items()}


class WireError(JobError):
    """A channel that cannot be read on. Its attempt is over: drop the connection and roll back."""


class CutShort(WireError):
    """The connection ended inside a frame."""


class OverLong(WireError):
    """A frame is longer than was agreed on."""


class UnknownVersion(WireError):
    """The peer speaks another version of this format."""


class UnknownKind(WireError):
    """A frame is of no kind that this version has."""


class DamagedFrame(WireError):
    """A checksum does not match."""


class ForgedFrame(WireError):
    """A frame does not carry the seal of this channel at this place: an attacker on the path changed what was sent."""


class MalformedFrame(WireError):
    """A frame is whole, and makes no sense."""


class FromZombie(WireError):
    """The sender is of an older generation or attempt than we: it woke up late, and nothing it says counts."""


class WeAreTheZombie(WireError):
    """The sender is of a newer generation or attempt than we: we have been replaced, and must stop."""


class DecoderBroken(WireError):
    """The decoder has refused something before, and refuses everything since."""


def encode(frame: Frame, incarnation: Incarnation, max_frame: int = DEFAULT_MAX_FRAME) -> tuple[Buffer, ...]:
    """Return the buffers to send, in this order; the payload of data is the last of them, as it is and not copied.

    `OverLong` if the receiver would refuse it. `MalformedFrame` if a frame cannot be said in this format: data whose
    payload is not `size` bytes, a marker of another generation than the one that speaks, a number too large.
    """
    match frame:
        case Data(payload, size, rows):
            if not isinstance(payload, bytes | bytearray | memoryview):
                raise MalformedFrame(f"data with a payload of type {type(payload).__name__} cannot be sent; bytes can")
            length = memoryview(payload).nbytes
            if length != size:
                raise MalformedFrame(f"data that says it has {size} bytes, and has {length}, cannot be sent")
            if length > max_frame:
                raise OverLong(f"data of {length} bytes cannot be sent; a frame has at most {max_frame}")
            return _header(_Kind.DATA, incarnation, length, rows=rows), payload
        case Marker(epoch, mode, savepoint, admits):
            if epoch.generation != incarnation.generation:
                raise MalformedFrame(f"generation {incarnation.generation} cannot send a marker of epoch {epoch}")
            return (_header(_Kind.MARKER, incarnation, epoch.number, _MODE_CODES[mode], savepoint + 2 * admits),)
        case Watermark(timestamp, idle):
            return (_header(_Kind.WATERMARK, incarnation, timestamp, 0, idle),)
        case Boundary(number):
            return (_header(_Kind.BOUNDARY, incarnation, number),)
        case End(number):
            return (_header(_Kind.END, incarnation, number),)


class Encoder:
    """Encodes the frames of one channel, each for the place at which it will be."""

    def __init__(
        self, incarnation: Incarnation, max_frame: int = DEFAULT_MAX_FRAME, seals: Seals | None = None
    ) -> None:
        self._incarnation = incarnation
        self._max_frame = max_frame
        self._key = None if seals is None else seals.speaking
        self._offset = 0
        self._sealed = 0

    def encode(self, frames: Iterable[Frame]) -> Iterator[tuple[tuple[Buffer, ...], int]]:
        """Yield the buffers of each frame, as `encode` makes them, and their length, for frames after what has `left`.

        Frames that have not left may be encoded again, in another order.
        """
        offset, sealed = self._offset, self._sealed
        for frame in frames:
            buffers = encode(frame, self._incarnation, self._max_frame)
            if isinstance(frame, Data):
                length = HEADER_SIZE + frame.size
            elif self._key is None:
                length = HEADER_SIZE
            else:
                buffers = (*buffers, seal(self._key, bytes(buffers[0]), sealed, offset))
                length = HEADER_SIZE + SEAL_SIZE
                sealed += 1
            offset += length
            yield buffers, length

    def left(self, frame: Frame, length: int) -> None:
        """Note that a frame of this length is on its way, so that nothing overtakes it any more."""
        self._offset += length
        self._sealed += not isinstance(frame, Data)


class Decoder:
    """Puts the frames of one channel together from the bytes that arrive, in whatever pieces.

    It holds no more memory than has arrived of one frame, whatever the frame says of its length. With `seals`, all
    frames but data have to carry theirs.
    """

    def __init__(
        self,
        channel: str,
        incarnation: Incarnation,
        max_frame: int = DEFAULT_MAX_FRAME,
        seals: Seals | None = None,
    ) -> None:
        self._channel = channel
        self._incarnation = incarnation
        self._max_frame = max_frame
        self._key = None if seals is None else seals.hearing
        self._offset = 0  # where the frame that is being put together begins
        self._sealed = 0  # frames before it
        self._to_check: tuple[bytes | bytearray, int, int, int, int] | None = None
        """The header whose seal comes next, and what is in it."""
        self._in_payload = False
        self._rows = 0  # of the payload that comes next
        self._needed = HEADER_SIZE
        self._pending = bytearray()
        self._broken = ""

    def feed(self, data: Buffer) -> list[Frame]:
        """Return the frames that these bytes complete; the bytes are copied, so their buffer may be used again.

        When this raises a `WireError`, frames that came whole before the fault in the same call are not handed out.
        """
        self._check_whole()
        frames: list[Frame] = []
        rest = memoryview(data).cast("B")
        while rest:
            missing = self._needed - len(self._pending)
            piece, rest = rest[:missing], rest[missing:]
            if len(piece) < missing:
                self._pending += piece
                break
            whole: bytes | bytearray
            if self._pending:
                whole, self._pending = self._pending, bytearray()
                whole += piece  # where the rest lies already: a long payload is not copied again
            else:
                whole = bytes(piece)
            if self._in_payload:
                frame: Frame | None = self._payload(whole)
            elif self._to_check is None:
                frame = self._header(whole)
            else:
                frame = self._checked(whole, *self._to_check)
            if frame is not None:
                frames.append(frame)
        return frames

    def close(self) -> None:
        """Note that the connection has ended; raise `CutShort` if that was inside a frame."""
        self._check_whole()
        if self._in_payload or self._to_check or self._pending:
            part = "payload" if self._in_payload else "seal" if self._to_check else "header"
            raise self._refusal(
                CutShort, f"the connection ended after {len(self._pending)} of {self._needed} {part} bytes"
            )

    def _payload(self, payload: bytes | bytearray) -> Frame:
        self._offset += HEADER_SIZE + len(payload)
        self._in_payload, self._needed = False, HEADER_SIZE
        return Data(payload, len(payload), self._rows)

    def _header(self, header: bytes | bytearray) -> Frame | None:
        """Return the frame of a header; None if a payload or a seal has to follow first."""
        version, kind, mode, flag, generation, attempt, value, rows = _UNCHECKED.unpack_from(header)
        if version != VERSION:
            raise self._refusal(UnknownVersion, f"version {version}; this program speaks version {VERSION}")
        if _CHECKSUM.unpack_from(header, _UNCHECKED.size)[0] != zlib.crc32(header[: _UNCHECKED.size]):
            raise self._refusal(DamagedFrame, "the checksum of the header does not match")
        if generation != self._incarnation.generation or attempt != self._incarnation.attempt:
            raise self._foreign(Incarnation(Generation(generation), Attempt(attempt)))
        if kind == _Kind.DATA and not mode and not flag and value > 0:
            if value > self._max_frame:
                raise self._refusal(OverLong, f"data of {value} bytes; a frame has at most {self._max_frame}")
            self._in_payload, self._needed, self._rows = True, value, rows
            return None
        if rows:
            raise self._refusal(MalformedFrame, f"kind {kind} with value {value} and {rows} rows")
        if self._key is not None and kind != _Kind.DATA:
            self._to_check, self._needed = (header, kind, mode, flag, value), SEAL_SIZE
            return None
        frame = self._control(kind, mode, flag, value)
        self._offset += HEADER_SIZE
        return frame

    def _checked(
        self, shown: bytes | bytearray, header: bytes | bytearray, kind: int, mode: int, flag: int, value: int
    ) -> Frame:
        """Return the frame of a header if `shown` is its seal; raise `ForgedFrame` otherwise."""
        if self._key is not None and not is_sealed(self._key, header, shown, self._sealed, self._offset):
            raise self._refusal(
                ForgedFrame,
                "it does not carry the channel's seal: it was changed on the network; turn on tls",
            )
        frame = self._control(kind, mode, flag, value)
        self._to_check, self._needed = None, HEADER_SIZE
        self._sealed += 1
        self._offset += HEADER_SIZE + SEAL_SIZE
        return frame

    def _control(self, kind: int, mode: int, flag: int, value: int) -> Frame:
        """Return the frame of a header that has no payload."""
        match kind, mode, flag:
            case _Kind.DATA, 0, 0 if value == 0:
                return Data(b"", 0)
            case (_Kind.MARKER, 1, 0 | 1 | 2 | 3) | (_Kind.MARKER, 2 | 3, 0) if value >= 0:
                return Marker(Epoch(self._incarnation.generation, value), _MODES[mode], bool(flag & 1), bool(flag & 2))
            case _Kind.WATERMARK, 0, 0 | 1:
                return Watermark(value, bool(flag))
            case _Kind.BOUNDARY, 0, 0 if value >= 0:
                return Boundary(value)
            case _Kind.END, 0, 0 if value >= 0:
                return End(value)
            case _ if kind in _KINDS:
                raise self._refusal(MalformedFrame, f"kind {kind} with mode {mode}, flag {flag} and value {value}")
            case _:
                raise self._refusal(UnknownKind, f"kind {kind}")

    def _foreign(self, sender: Incarnation) -> WireError:
        if sender < self._incarnation:
            return self._refusal(FromZombie, f"sent by {sender}, which was replaced; we are {self._incarnation}")
        return self._refusal(WeAreTheZombie, f"sent by {sender}; we are {self._incarnation} and have been replaced")

    def _check_whole(self) -> None:
        if self._broken:
            raise DecoderBroken(f"nothing more is read after this: {self._broken}")

    def _refusal(self, error: type[WireError], reason: str) -> WireError:
        self._broken = f"channel {self._channel}, frame at byte {self._offset}: {reason}"
        return error(self._broken)


def _header(kind: _Kind, incarnation: Incarnation, value: int, mode: int = 0, flag: int = 0, rows: int = 0) -> bytes:
    try:
        header = _UNCHECKED.pack(VERSION, kind, mode, flag, incarnation.generation, incarnation.attempt, value, rows)
    except struct.error as error:
        raise MalformedFrame(f"{value}, sent by {incarnation}, does not fit into a frame") from error
    return header + _CHECKSUM.pack(zlib.crc32(header))
