"""Sealed connections in the hands of somebody on the path: nothing comes out that was not said there, at its place.

Invariant: what is fed is made of what was said on one connection and on others, changed. Only what begins as
that connection began may come out; what goes on in another way is refused by name, or has not ended yet.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.seals import SEAL_SIZE, RecordReader, RecordWriter, Seals, UnusableRecord
from snapshot.cut.wire import HEADER_SIZE, Encoder, WireError, encode
from snapshot.cut.wire import Decoder as Frames
from statebackend.ids import Attempt, Epoch, Generation, Incarnation
from tests.fuzz.decoder import Decoder
from tests.fuzz.mutations import changed_bytes

WE: Final = Incarnation(Generation(3), Attempt(2))
MOST: Final = 1 << 12
OURS: Final = Seals(b"o" * 32, b"p" * 32)
_BACK: Final = Seals(OURS.hearing, OURS.speaking)
FOREIGN: Final = Seals(b"f" * 32, b"g" * 32)

# Some are alike, so that one may stand for another; some are empty, as beats are.
_SAID: Final = (b"", b"go on", b"stop", b"", b"go on", bytes(16), b"go to 7" * 20, b"", b"stop")
_FRAMES: Final[tuple[Frame, ...]] = (
    Data(b"rows", 4),
    Marker(Epoch(WE.generation, 5), MarkerMode.ALIGNED, False),
    Watermark(-5, False),
    Data(b"more rows", 9),
    Watermark(-5, False),
    Data(bytes(HEADER_SIZE + SEAL_SIZE), HEADER_SIZE + SEAL_SIZE),
    Marker(Epoch(WE.generation, 6), MarkerMode.UNALIGNED, False),
    Data(b"", 0),
    Watermark(9, True),
    End(),
)


def _records(seals: Seals | None) -> list[bytes]:
    writer = RecordWriter(seals)
    return [writer.record(body) for body in _SAID]


def _encoded(seals: Seals | None) -> list[bytes]:
    """The bytes of each frame, with its seal."""
    encoded = Encoder(WE, MOST, seals).encode(_FRAMES)
    return [b"".join(map(bytes, buffers)) for buffers, _ in encoded]


RECORDS: Final = _records(OURS)
FRAMES: Final = _encoded(OURS)
_FOREIGN_RECORDS: Final = [*_records(FOREIGN), *_records(_BACK), *_records(None)]
_FOREIGN_FRAMES: Final = [*_encoded(FOREIGN), *_encoded(_BACK), *_encoded(None)]


def hear_records(data: bytes, piece: int) -> list[bytes]:
    """Return the bodies that come out, if all bytes are what was said; an `UnusableRecord` where they differ."""
    reading, found = RecordReader(_BACK, MOST), list[bytes]()
    try:
        for start in range(0, len(data), piece):
            for body in reading.feed(data[start : start + piece]):
                found.append(body)
    finally:
        assert found == list(_SAID[: len(found)]), f"{found[-1]!r} came out, which nobody said there"
        taken = sum(map(len, RECORDS[: len(found)]))
        assert data[:taken] == b"".join(RECORDS)[:taken], "a record that was changed was taken for sound"
    assert reading.is_inside == (taken < len(data)), "the reader has lost bytes"
    assert not _is_whole_record(data[taken:]), "a whole record was neither given nor refused"
    return found


def hear_frames(data: bytes, piece: int) -> list[Frame]:
    """Return the frames that come out; a `WireError` where something steers that was not said there."""
    decoding, found = Frames("channel", WE, MOST, _BACK), list[Frame]()
    try:
        for start in range(0, len(data), piece):
            found += map(_as_bytes, decoding.feed(data[start : start + piece]))
    finally:
        steering = _steering(found)
        assert steering == _ALL_STEERING[: len(steering)], f"{steering[-1]} came out, which nobody said there"
        for at, frame in steering:
            end = at + _size(frame)
            assert data[at:end] == b"".join(FRAMES)[at:end], f"{frame} was changed and taken for sound"
    decoding.close()
    return found


def _as_bytes(frame: Frame) -> Frame:
    if not isinstance(frame, Data):
        return frame
    assert isinstance(frame.payload, bytes | bytearray)
    return Data(bytes(frame.payload), frame.size)


def _is_whole_record(data: bytes) -> bool:
    return len(data) >= 4 and len(data) - 4 - SEAL_SIZE >= struct.unpack_from(">I", data)[0]


def _size(frame: Frame) -> int:
    return HEADER_SIZE + (frame.size if isinstance(frame, Data) else SEAL_SIZE)


def _steering(frames: Sequence[Frame]) -> list[tuple[int, Frame]]:
    """The frames that are sealed, each with the bytes before it."""
    found, at = list[tuple[int, Frame]](), 0
    for frame in frames:
        if not isinstance(frame, Data):
            found.append((at, frame))
        at += _size(frame)
    return found


_ALL_STEERING: Final = _steering(_FRAMES)


def _tampered(said: Sequence[bytes], foreign: Sequence[bytes], seal_at: int, random: Random) -> list[bytes]:
    """Leave out, repeat, move and flip what was said, or put in what was said elsewhere or has another's seal."""
    parts = list(said)
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        at = random.randrange(len(parts)) if parts else 0
        match random.randrange(7):
            case 0:
                del parts[at : at + 1]
            case 1:
                parts[at:at] = [random.choice(said)]
            case 2:
                parts[at:at] = [random.choice(foreign)]
            case 3:
                parts[at : at + 1] = [random.choice(foreign)]
            case 4 if parts:
                to = random.randrange(len(parts))
                parts[at], parts[to] = parts[to], parts[at]
            case 5 if parts and len(parts[at]) >= seal_at + SEAL_SIZE:
                other = random.choice([part for part in (*said, *foreign) if len(part) >= seal_at + SEAL_SIZE])
                seal = other[seal_at : seal_at + SEAL_SIZE]
                parts[at] = parts[at][:seal_at] + seal + parts[at][seal_at + SEAL_SIZE :]
            case _ if parts:
                flipped = bytearray(parts[at])
                flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
                parts[at] = bytes(flipped)
            case _:
                pass  # nothing is left that could be changed
    return parts


def records_changed(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change what was said on a connection, and where."""
    changed = b"".join(_tampered(RECORDS, _FOREIGN_RECORDS, 4, random))
    return changed if random.random() < 0.6 else changed_bytes(random, changed, others)


def frames_changed(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change the frames of a channel; the checksums of headers that were flipped are made right, mostly."""
    parts = _tampered(FRAMES, _FOREIGN_FRAMES, HEADER_SIZE, random)
    if random.random() < 0.2 and parts:  # rows that take a frame's place, byte for byte
        at = random.randrange(len(parts))
        size = max(0, len(parts[at]) - HEADER_SIZE)
        parts[at] = b"".join(map(bytes, encode(Data(bytes(size), size), WE)))
    if random.random() < 0.9:
        parts = [_checked(part) for part in parts]
    changed = b"".join(parts)
    return changed if random.random() < 0.8 else changed_bytes(random, changed, others)


def _checked(frame: bytes) -> bytes:
    end = HEADER_SIZE - 4
    return frame[:end] + zlib.crc32(frame[:end]).to_bytes(4, "big") + frame[HEADER_SIZE:]


def _in_any_pieces(hear: Callable[[bytes, int], object], errors: tuple[type[Exception], ...], data: bytes) -> None:
    """The same comes of it in one piece and in many."""
    outcomes = [_outcome(partial(hear, data, piece), errors) for piece in (MOST, 7)]
    assert outcomes[0] == outcomes[1], f"whole: {outcomes[0]}, in pieces: {outcomes[1]}"
    hear(data, 7)


def _outcome(hear: Callable[[], object], errors: tuple[type[Exception], ...]) -> str:
    try:
        return repr(hear())
    except errors as error:
        return repr(error)


SEALED: Final[dict[str, Decoder]] = {
    "sealed records": Decoder(
        lambda data: _in_any_pieces(hear_records, (UnusableRecord,), data),
        lambda: [b"".join(RECORDS), b"".join(_FOREIGN_RECORDS)],
        (UnusableRecord,),
        records_changed,
    ),
    "sealed frames": Decoder(
        lambda data: _in_any_pieces(hear_frames, (WireError,), data),
        lambda: [b"".join(FRAMES), b"".join(_FOREIGN_FRAMES)],
        (WireError,),
        frames_changed,
    ),
}
