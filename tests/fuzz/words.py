"""Decoders of what people type, and of traces."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import pyarrow as pa

from recovery import json_values
from recovery.inject.moments import NotAMoment, parse_moment
from recovery.inject.targets import NotATarget, parse_target
from snapshot.epochs.trace import NoTrace, TraceDiffers, replay
from statebackend.durations import NotADuration, milliseconds
from statebackend.ids import Epoch
from statebackend.readable import one_line, readable
from tests.fuzz.decoder import Decoder, texts
from tests.test_trace import recorded

_TYPED: Final = (
    pa.int8(), pa.float32(), pa.string(), pa.binary(), pa.bool_(), pa.timestamp("ms", "UTC"), pa.decimal128(5, 2),
    pa.list_(pa.int32()), pa.struct([("a", pa.int8()), ("b", pa.string())]), pa.struct([("f0", pa.date32())]),
)  # fmt: skip


def _words(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    for heard in (parse_moment, parse_target, milliseconds):
        with suppress(NotAMoment, NotATarget, NotADuration):
            heard(text)
    for arrow in _TYPED:
        with suppress(json_values.WrongText):
            json_values.parsed(text, arrow, "it")
    with suppress(ValueError):
        Epoch.parse(text)
    assert readable(one_line(text)) == one_line(text)


def _trace() -> list[bytes]:
    return ["".join(recorded([(step % 10, step % 7) for step in range(40)])).encode()]


def _replayed(data: bytes) -> None:
    replay(data.decode(errors="replace").splitlines(keepends=True))


WORDS: Final[dict[str, Decoder]] = {
    "traces": Decoder(_replayed, _trace, (NoTrace, TraceDiffers)),
    "words of people": Decoder(
        _words,
        texts(
            "epoch:12:complete+1.5s",
            "worker:3",
            "link:1-driver",
            "1h30m",
            "17-2",
            '{"a": 1, "b": "x"}',
            "[1, 2]",
            "2026-01-01T00:00:00Z",
            "-12.50",
            '"text"',
            "0xff",
        ),
        (),
    ),
}
