"""Frames as bytes: whatever pieces they arrive in they come out as they went in, and nothing else ever comes out."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Iterable, Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.seals import Seals
from snapshot.cut.wire import (
    HEADER_SIZE,
    CutShort,
    DamagedFrame,
    Decoder,
    DecoderBroken,
    Encoder,
    ForgedFrame,
    FromZombie,
    MalformedFrame,
    OverLong,
    UnknownKind,
    UnknownVersion,
    WeAreTheZombie,
    WireError,
    encode,
)
from statebackend.ids import Attempt, Epoch, Generation, Incarnation
from tests.connections import FAR, NEAR

US = Incarnation(Generation(3), Attempt(2))
CHANNEL = "clicks/0->count/1"

payloads = st.binary(max_size=60)
epochs = st.builds(Epoch, st.just(US.generation), st.integers(0, 2**63 - 1))
frames: st.SearchStrategy[Frame] = (
    st.builds(
        lambda payload, rows: Data(payload, len(payload), rows if payload else 0), payloads, st.integers(0, 2**32 - 1)
    )
    | st.builds(Marker, epochs, st.sampled_from(MarkerMode))
    | st.builds(Marker, epochs, st.just(MarkerMode.ALIGNED), st.just(True))
    | st.builds(Watermark, st.integers(-(2**63), 2**63 - 1), st.booleans())
    | st.builds(Boundary, st.integers(0, 2**63 - 1))
    | st.builds(End, st.integers(0, 2**63 - 1))
)


def sent(items: Iterable[Frame], incarnation: Incarnation = US) -> bytes:
    return b"".join(part for item in items for part in encode(item, incarnation))


def received(pieces: Iterable[bytes]) -> list[Frame]:
    decoder = Decoder(CHANNEL, US, max_frame=100)
    result = [frame for piece in pieces for frame in decoder.feed(piece)]
    decoder.close()
    return result


def header(
    version: int = 2,
    kind: int = 4,
    mode: int = 0,
    flag: int = 0,
    value: int = 0,
    rows: int = 0,
    sender: Incarnation = US,
) -> bytes:
    unchecked = struct.pack(">BBBBIIqI", version, kind, mode, flag, sender.generation, sender.attempt, value, rows)
    return unchecked + struct.pack(">I", zlib.crc32(unchecked))


@st.composite
def cut_up(draw: st.DrawFn, data: bytes) -> Sequence[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(st.lists(frames, max_size=8), st.data())
def test_frames_come_out_as_they_went_in_whatever_the_pieces(items: list[Frame], data: st.DataObject) -> None:
    assert received(data.draw(cut_up(sent(items)))) == items


@given(st.lists(frames, max_size=4))
def test_frames_come_out_as_they_went_in_byte_by_byte(items: list[Frame]) -> None:
    stream = sent(items)
    assert received(stream[at : at + 1] for at in range(len(stream))) == items


@given(st.lists(frames, min_size=1, max_size=3))
def test_a_stream_that_ends_inside_a_frame_is_refused_and_the_frames_before_it_are_not(items: list[Frame]) -> None:
    stream = sent(items)
    for kept in range(len(stream)):
        decoder = Decoder(CHANNEL, US)
        before = decoder.feed(stream[:kept])
        assert before == items[: len(before)]
        whole = len(sent(before))
        if whole == kept:
            decoder.close()
        else:
            with pytest.raises(CutShort, match=rf"channel clicks/0->count/1, frame at byte {whole}: "):
                decoder.close()


@given(frames, st.integers(0, 8 * HEADER_SIZE - 1))
def test_a_flipped_bit_in_a_header_is_always_found(frame: Frame, bit: int) -> None:
    stream = bytearray(sent([frame]))
    stream[bit // 8] ^= 1 << bit % 8
    with pytest.raises((DamagedFrame, UnknownVersion)):
        received([bytes(stream)])


@given(st.binary(min_size=1), st.data())
def test_random_bytes_give_a_named_error(stream: bytes, data: st.DataObject) -> None:
    with pytest.raises(WireError):
        received(data.draw(cut_up(stream)))


@given(
    st.builds(
        header,
        version=st.just(2),
        kind=st.integers(0, 6) | st.integers(0, 255),
        mode=st.integers(0, 4) | st.integers(0, 255),
        flag=st.integers(0, 2) | st.integers(0, 255),
        value=st.integers(-2, 200) | st.integers(-(2**63), 2**63 - 1),
        rows=st.integers(0, 2) | st.integers(0, 2**32 - 1),
    )
)
def test_a_header_with_a_good_checksum_is_read_as_what_encode_says_or_refused_by_name(stream: bytes) -> None:
    decoder = Decoder(CHANNEL, US, max_frame=100)
    try:
        decoded = decoder.feed(stream)
    except (MalformedFrame, UnknownKind, OverLong):
        with pytest.raises(DecoderBroken):
            decoder.close()
    else:
        if decoded:
            assert sent(decoded) == stream
        else:
            with pytest.raises(CutShort):
                decoder.close()


def test_a_payload_is_handed_on_without_a_copy() -> None:
    payload = bytearray(b"rows")
    assert encode(Data(payload, 4), US)[1] is payload


def test_the_receive_buffer_may_be_used_again() -> None:
    buffer = bytearray(sent([Data(b"rows", 4)]))
    decoder = Decoder(CHANNEL, US)
    decoded = [*decoder.feed(memoryview(buffer)[:30]), *decoder.feed(memoryview(buffer)[30:])]
    buffer[:] = bytes(len(buffer))
    assert decoded == [Data(b"rows", 4)]


def test_a_claimed_length_allocates_nothing() -> None:
    decoder = Decoder(CHANNEL, US, max_frame=2**40)
    tracemalloc.start()
    try:
        assert decoder.feed(header(kind=1, value=2**40)) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("stream", "error", "complaint"),
    [
        (header(version=1), UnknownVersion, "version 1; this program speaks version 2"),
        (header(kind=9), UnknownKind, "kind 9"),
        (header(kind=1, value=101), OverLong, "data of 101 bytes; a frame has at most 100"),
        (header(kind=1, value=-1), MalformedFrame, "value -1"),
        (header(kind=2, mode=4, value=1), MalformedFrame, "mode 4"),
        (header(kind=2, mode=2, flag=1, value=1), MalformedFrame, "mode 2, flag 1"),
        (header(kind=2, mode=1, value=-1), MalformedFrame, "value -1"),
        (header(kind=3, flag=2), MalformedFrame, "flag 2"),
        (header(kind=4, value=-1), MalformedFrame, "value -1"),
        (header(kind=5, value=-1), MalformedFrame, "value -1"),
        (header(kind=5, value=1, rows=2), MalformedFrame, "2 rows"),
        (header(sender=Incarnation(Generation(3), Attempt(1))), FromZombie, r"sent by 3\.1.*we are 3\.2"),
        (header(sender=Incarnation(Generation(2), Attempt(9))), FromZombie, r"sent by 2\.9"),
        (header(sender=Incarnation(Generation(3), Attempt(3))), WeAreTheZombie, r"sent by 3\.3"),
        (header(sender=Incarnation(Generation(4), Attempt(0))), WeAreTheZombie, r"sent by 4\.0"),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n", UnknownVersion, "version 71"),
        (header()[:-1] + b"\0", DamagedFrame, "checksum"),
    ],
)
def test_each_fault_has_its_own_error_that_says_what_and_where(
    stream: bytes, error: type[WireError], complaint: str
) -> None:
    decoder = Decoder(CHANNEL, US, max_frame=100)
    with pytest.raises(error, match=rf"channel clicks/0->count/1, frame at byte 28: .*{complaint}"):
        decoder.feed(sent([End()]) + stream)


def test_a_decoder_that_has_refused_something_refuses_everything() -> None:
    decoder = Decoder(CHANNEL, US)
    with pytest.raises(UnknownKind):
        decoder.feed(header(kind=9))
    with pytest.raises(DecoderBroken, match="frame at byte 0: kind 9"):
        decoder.feed(sent([End()]))
    with pytest.raises(DecoderBroken):
        decoder.feed(b"")
    with pytest.raises(DecoderBroken):
        decoder.close()


@pytest.mark.parametrize(
    ("frame", "error", "complaint"),
    [
        (Data([1, 2], 2), MalformedFrame, "type list"),
        (Data(b"abc", 2), MalformedFrame, "says it has 2 bytes, and has 3"),
        (Data(bytes(101), 101), OverLong, "at most 100"),
        (Marker(Epoch(Generation(2), 1), MarkerMode.ALIGNED), MalformedFrame, "epoch 1-2"),
        (Watermark(2**63), MalformedFrame, "does not fit"),
        (Data(b"abc", 3, 2**32), MalformedFrame, "does not fit"),
    ],
)
def test_what_cannot_be_said_is_not_sent(frame: Frame, error: type[WireError], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        encode(frame, US, max_frame=100)


def test_a_savepoint_that_is_not_aligned_has_no_marker() -> None:
    with pytest.raises(ValueError, match="always aligned"):
        Marker(Epoch(Generation(1), 1), MarkerMode.UNALIGNED, savepoint=True)


# --- seals


def sealed(items: Sequence[Frame], seals: Seals = NEAR) -> list[bytes]:
    """Each frame as it is sent at its place on a channel that is not encrypted."""
    return [b"".join(buffers) for buffers, _ in Encoder(US, seals=seals).encode(items)]


def steered(pieces: Iterable[bytes]) -> list[tuple[int, Frame]]:
    """The frames but data that come out until something is refused, and the bytes of data before each."""
    decoder, found, size = Decoder(CHANNEL, US, max_frame=100, seals=FAR), list[tuple[int, Frame]](), 0
    try:
        for piece in pieces:
            for at in range(len(piece)):
                for frame in decoder.feed(piece[at : at + 1]):
                    if isinstance(frame, Data):
                        size += HEADER_SIZE + frame.size
                    else:
                        found.append((size, frame))
    except WireError:
        pass
    return found


@given(st.lists(frames, max_size=8), st.data())
def test_sealed_frames_come_out_as_they_went_in_whatever_the_pieces(items: list[Frame], data: st.DataObject) -> None:
    decoder = Decoder(CHANNEL, US, max_frame=100, seals=FAR)
    pieces = data.draw(cut_up(b"".join(sealed(items))))
    assert [frame for piece in pieces for frame in decoder.feed(piece)] == items
    decoder.close()


@given(st.lists(frames, min_size=1, max_size=8), st.data())
def test_no_marker_watermark_or_end_is_invented_repeated_left_out_or_moved_between_data(
    items: list[Frame], data: st.DataObject
) -> None:
    said = sealed(items)
    others = [*sealed(items, FAR), *(sent([item]) for item in items)]
    found = steered(data.draw(st.permutations(said) | st.lists(st.sampled_from([*said, *others]), max_size=10)))
    assert found == steered(said)[: len(found)]


@given(st.lists(frames, min_size=1, max_size=8), st.data())
def test_changed_bytes_let_no_marker_watermark_or_end_through_that_was_not_sent_there(
    items: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(sealed(items))
    start = data.draw(st.integers(0, len(stream)))
    end = data.draw(st.integers(start, len(stream)))
    found = steered([stream[:start] + data.draw(st.binary(max_size=80)) + stream[end:]])
    assert found == steered([stream])[: len(found)]


@pytest.mark.parametrize("order", list(permutations(range(4)))[1:])
def test_a_marker_that_is_moved_between_data_is_not_handed_on(order: Sequence[int]) -> None:
    said = sealed([Data(b"one", 3), Marker(Epoch(US.generation, 1), MarkerMode.ALIGNED), Data(b"second", 6), End()])
    found = steered([said[at] for at in order])
    assert found == (steered(said)[:1] if order[:2] == (0, 1) else [])


def test_data_of_the_length_of_a_marker_in_its_place_is_noticed_at_the_next_seal() -> None:
    first, marker, last = sealed([Data(b"one", 3), Marker(Epoch(US.generation, 1), MarkerMode.ALIGNED), End()])
    swapped = b"".join(encode(Data(bytes(len(marker) - HEADER_SIZE), len(marker) - HEADER_SIZE), US))
    assert len(swapped) == len(marker)
    with pytest.raises(ForgedFrame, match=r"frame at byte 75: it does not carry the channel's seal.*turn on tls"):
        Decoder(CHANNEL, US, seals=FAR).feed(first + swapped + last)


def test_a_frame_that_is_encoded_again_in_another_order_is_sealed_for_its_new_place() -> None:
    rows, marker = Data(b"rows", 4), Marker(Epoch(US.generation, 1), MarkerMode.UNALIGNED)
    encoder = Encoder(US, seals=NEAR)
    next(encoder.encode([rows, End()]))
    encoded = list(encoder.encode([marker, rows, End()]))
    encoder.left(marker, encoded[0][1])
    later = list(encoder.encode([rows, End()]))
    stream = b"".join(part for buffers, _ in (encoded[0], *later) for part in buffers)
    assert Decoder(CHANNEL, US, seals=FAR).feed(stream) == [marker, rows, End()]
