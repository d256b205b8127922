"""Decoders of what comes over connections, from Kafka and from files of a source."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
import pyarrow as pa

from snapshot.connectors.files import line_formats
from snapshot.connectors.kafka import formats as kafka_formats
from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.wire import HEADER_SIZE, WireError, encode
from snapshot.cut.wire import Decoder as Frames
from snapshot.host.net import connection_kinds, handshake, rows_wire
from snapshot.host.partition import last_words, stalls
from snapshot.host.protocol.messages import Stalled
from snapshot.ids import ChannelId, Copy
from snapshot.operators.rows import Rows
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from tests.fuzz.decoder import Decoder, json_changed, stream, texts
from tests.fuzz.mutations import changed_bytes

WE: Final = Incarnation(Generation(3), Attempt(2))
PLAIN: Final = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.struct([("x", pa.float32())])))])
DICTIONARIES: Final = pa.schema([("d", pa.dictionary(pa.int8(), pa.string())), ("m", pa.map_(pa.string(), pa.int32()))])


def rows(schema: pa.Schema) -> pa.RecordBatch:
    made = {"n": 7, "s": "text", "l": [{"x": 1.5}], "d": "a", "m": [("k", 1)]}
    return pa.RecordBatch.from_pylist([{f.name: made[f.name] for f in schema}, dict.fromkeys(schema.names)] * 3, schema)


def _fed(data: bytes) -> None:
    decoder = Frames("channel", WE, max_frame=1 << 16)
    for frame in decoder.feed(data):
        assert len(repr(frame)) < 1 << 20
    decoder.close()


def _channel() -> list[bytes]:
    frames: list[Frame] = [
        Data(b"some rows", 9, 3), Marker(Epoch(WE.generation, 5), MarkerMode.ALIGNED, True), Watermark(-5, True),
        Boundary(7), End(8),
    ]  # fmt: skip
    encoded = [b"".join(map(bytes, encode(frame, WE))) for frame in frames]
    return [b"".join(encoded), *encoded]


def _host() -> handshake.HostHandshake:
    return handshake.HostHandshake(b"s" * 32, b"h" * handshake.NONCE_SIZE)


def _caller() -> handshake.CallerHandshake:
    return handshake.CallerHandshake(b"s" * 32, b"c" * handshake.NONCE_SIZE, connection_kinds.ControlOf("w"))


def _said(side: handshake.HostHandshake | handshake.CallerHandshake, data: bytes) -> bytes:
    """Give a side of a handshake what arrives, as long as it wants more; what it answers."""
    answers = b""
    while data and side.wanted:
        piece, data = data[: side.wanted], data[side.wanted :]
        answers += side.receive(piece)
    return answers


def _to_host() -> list[bytes]:
    caller = _caller()
    return [caller.greeting + _said(caller, _said(_host(), caller.greeting))]


def _to_caller() -> list[bytes]:
    host = _host()
    greeting = _said(host, _caller().greeting)
    _said(host, _to_host()[0][len(greeting) :])
    return [greeting + host.accept()]


CHANNEL: Final = ChannelId(Uid("a"), Uid("b"), Partition(0), Partition(1), 0)


@dataclass(frozen=True)
class _Record:
    """A record of Kafka, as far as its value is decoded."""

    content: bytes

    def value(self) -> bytes:
        return self.content

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0


def _kafka(format: kafka_formats.KafkaFormat) -> Callable[[bytes], object]:
    decoding = kafka_formats.RecordDecoder(format, PLAIN, "fail")
    return lambda data: decoding.decoded([_Record(data)])  # type: ignore[list-item]


def frames_changed(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change frames; the checksums of their headers are made right, as far as these are found."""
    changed, at = bytearray(changed_bytes(random, data, others)), 0
    while at + HEADER_SIZE <= len(changed) and random.random() < 0.95:
        end = at + HEADER_SIZE - 4
        changed[end : end + 4] = zlib.crc32(changed[at:end]).to_bytes(4, "big")
        length = int.from_bytes(changed[end - 8 : end], "big")
        at = end + 4 + (length if changed[at + 1] == changed[1] and length < len(changed) else 0)
    return bytes(changed)


def _batch(schema: pa.Schema, *, timed: bool) -> list[bytes]:
    data = rows_wire.RowsWire(schema, timed).encode(Rows(rows(schema), np.arange(6) if timed else None))
    assert isinstance(data.payload, memoryview)
    return [bytes(data.payload)]


_LINES: Final = b'{"n": 1, "s": "x", "l": [{"x": 1.5}]}\n{"n": null, "s": null, "l": null}\n'

NETWORK: Final[dict[str, Decoder]] = {
    "frames": Decoder(_fed, _channel, (WireError,), frames_changed),
    "batches": Decoder(
        lambda data: rows_wire.RowsWire(PLAIN, True).decode(Data(data, len(data))),
        lambda: _batch(PLAIN, timed=True),
        (rows_wire.MalformedBatch,),
    ),
    "batches with dictionaries": Decoder(
        lambda data: rows_wire.RowsWire(DICTIONARIES, False).decode(Data(data, len(data))),
        lambda: _batch(DICTIONARIES, timed=False),
        (rows_wire.MalformedBatch,),
    ),
    "greetings to the driver": Decoder(lambda data: _said(_host(), data), _to_host, (handshake.HandshakeRefused,)),
    "greetings to a caller": Decoder(lambda data: _said(_caller(), data), _to_caller, (handshake.HandshakeRefused,)),
    "kinds": Decoder(
        connection_kinds.parse_kind,
        lambda: [
            connection_kinds.kind_bytes(one)
            for one in (
                connection_kinds.ControlOf("w"),
                connection_kinds.CommandOf("c"),
                connection_kinds.ChannelOf(Copy(CHANNEL), WE),
            )
        ],
        (connection_kinds.UnusableKind,),
        json_changed,
    ),
    "words between beats": Decoder(
        stalls.parse_stalled,
        lambda: [
            stalls.stalled_bytes(Stalled(WE, Partition(1), Uid("a"), 1.5, "why", Epoch(WE.generation, 7), "stack"))
        ],
        (stalls.MalformedWord,),
        json_changed,
    ),
    "last words": Decoder(
        lambda data: last_words._parsed(data.decode(errors="replace")),
        texts('{"uid": "a", "what": "on_event", "nth": 3}'),
        (),
        json_changed,
    ),
    "records of JSON": Decoder(
        _kafka("json"), lambda: [_LINES.splitlines()[0]], (kafka_formats.BadRecord,), json_changed
    ),
    "records of Arrow": Decoder(_kafka("arrow"), lambda: [stream(rows(PLAIN))], (kafka_formats.BadRecord,)),
    "lines of JSON": Decoder(
        line_formats.LineParser("jsonl", PLAIN, ()).parse, lambda: [_LINES], (pa.ArrowInvalid, ValueError)
    ),
    "lines of CSV": Decoder(
        line_formats.LineParser("csv", pa.schema([("n", pa.int64()), ("s", pa.string())]), ("n", "s")).parse,
        texts('1,x\n2,"y"\n,\n'),
        (pa.ArrowInvalid, ValueError),
    ),
}
