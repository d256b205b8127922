"""Rows travel as they are, slices as their part; and no bytes whatever do more than be refused."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import Data
from snapshot.host.net.rows_wire import MalformedBatch, RowsWire
from snapshot.operators.rows import Rows

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        ("maybe", pa.int32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("long_text", pa.large_string()),
        ("view", pa.string_view()),
        ("truth", pa.bool_()),
        ("numbers", pa.list_(pa.int16())),
        ("pair", pa.struct([("left", pa.float64()), ("right", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("decimal", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("nothing", pa.null()),
    ]
)
NUMBERS = pa.schema([("a", pa.int64()), ("b", pa.float64())])
LABELS = pa.schema(
    [("label", pa.dictionary(pa.int32(), pa.string())), ("n", pa.list_(pa.dictionary(pa.int8(), pa.string())))]
)


def everything(count: int) -> pa.RecordBatch:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {
            "number": row,
            "maybe": row if row % 3 else None,
            "text": f"text {row}" * (row % 4) if row % 5 else None,
            "raw": bytes(range(row % 7)),
            "long_text": "ü" * (row % 3),
            "view": "a text that is long enough to be out of line" if row % 2 else "short",
            "truth": row % 2 == 0,
            "numbers": list(range(row % 4)),
            "pair": {"left": row / 2, "right": str(row)} if row % 4 else None,
            "map": [(str(key), key) for key in range(row % 3)],
            "decimal": Decimal(row),
            "at": moment + datetime.timedelta(seconds=row),
            "nothing": None,
        }
        for row in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def timed(batch: pa.RecordBatch) -> Rows:
    return Rows(batch, np.arange(batch.num_rows, dtype=np.int64) * 1000 - 7)


def arrived(data: Data) -> Data:
    """The frame as it comes from the network."""
    assert isinstance(data.payload, memoryview)
    return Data(bytes(data.payload), data.size)


def same(one: Rows, other: Rows) -> bool:
    if one.times is None or other.times is None:
        return one.batch.equals(other.batch) and one.times is other.times
    return one.batch.equals(other.batch) and bool(np.array_equal(one.times, other.times))


@given(st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_rows_come_back_as_they_were_also_parts_of_them(count: int, offset: int, with_times: bool) -> None:
    rows = timed(everything(40)) if with_times else Rows(everything(40))
    part = rows.slice(offset, min(count, 40 - offset))
    wire = RowsWire(SCHEMA, with_times)
    decoded = wire.decode(arrived(wire.encode(part)))
    assert same(decoded, part)
    assert decoded.batch.schema.equals(SCHEMA)


def test_a_slice_sends_its_part_alone() -> None:
    wire = RowsWire(NUMBERS, timed=True)
    rows = timed(pa.record_batch([np.arange(100_000), np.arange(100_000) / 2], schema=NUMBERS))
    assert wire.encode(rows.slice(50_000, 10)).size < 1_000
    assert wire.encode(rows).size == pytest.approx(2_400_000, rel=0.01)


def test_rows_are_decoded_where_they_are_without_a_copy() -> None:
    wire = RowsWire(NUMBERS, timed=True)
    data = arrived(wire.encode(timed(pa.record_batch([np.arange(1000), np.arange(1000) / 2], schema=NUMBERS))))
    before = pa.total_allocated_bytes()
    decoded = wire.decode(data)
    assert pa.total_allocated_bytes() - before < 1_000
    payload = pa.py_buffer(data.payload)
    assert decoded.times is not None
    for address in (decoded.batch.column(0).buffers()[1].address, decoded.times.ctypes.data):
        assert payload.address <= address < payload.address + payload.size


@pytest.mark.parametrize("with_times", [True, False])
def test_dictionary_encoded_columns_bring_their_dictionaries(with_times: bool) -> None:
    wire = RowsWire(LABELS, with_times)
    batch = pa.RecordBatch.from_pylist([{"label": label, "n": [label, "x"]} for label in ("a", "b", None, "a")], LABELS)
    for rows in (timed(batch), timed(batch).slice(1, 2)):
        sent = rows if with_times else Rows(rows.batch)
        decoded = wire.decode(arrived(wire.encode(sent)))
        assert decoded.batch.to_pylist() == rows.batch.to_pylist()
        assert decoded.batch.schema.equals(LABELS)


def test_rows_of_another_edge_are_a_mistake_of_ours() -> None:
    batch = pa.record_batch([np.arange(3), np.arange(3) / 2], schema=NUMBERS)
    with pytest.raises(ValueError, match="not of this edge"):
        RowsWire(SCHEMA, timed=False).encode(Rows(batch))
    with pytest.raises(ValueError, match="rows without times"):
        RowsWire(NUMBERS, timed=True).encode(Rows(batch))
    with pytest.raises(ValueError, match="rows with times"):
        RowsWire(NUMBERS, timed=False).encode(timed(batch))


NUMBERS_WIRE = RowsWire(NUMBERS, timed=False)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "0 bytes are no batch"),
        (b"GET / HTTP/1.1\r\n\r\n", "no batch"),
        (bytes(100), "no batch"),
        (memoryview(NUMBERS.serialize()).tobytes(), "got schema"),
        (memoryview(pa.record_batch([pa.array([1])], names=["a"]).serialize()).tobytes(), "no batch"),
        (memoryview(everything(3).serialize()).tobytes()[:-8], "no batch"),
        (memoryview(pa.record_batch([[1], [1.0]], schema=NUMBERS).serialize()).tobytes() + bytes(8), "8 bytes follow"),
        ([1, 2, 3], "type list"),
    ],
)
def test_foreign_bytes_are_refused_and_named(payload: object, complaint: str) -> None:
    size = len(payload) if isinstance(payload, bytes) else 3
    with pytest.raises(MalformedBatch, match=complaint):
        NUMBERS_WIRE.decode(Data(payload, size))


def test_times_with_nulls_are_refused() -> None:
    schema = pa.schema([*NUMBERS, ("event time", pa.int64())])
    batch = pa.record_batch([[1, 2], [1.0, 2.0], [1, None]], schema=schema)
    payload = memoryview(batch.serialize()).tobytes()
    with pytest.raises(MalformedBatch, match="rows without an event time"):
        RowsWire(NUMBERS, timed=True).decode(Data(payload, len(payload)))


def test_offsets_that_point_outside_are_refused_before_anybody_follows_them() -> None:
    text = pa.schema([("text", pa.string())])
    wire = RowsWire(text, timed=False)
    payload = bytearray(memoryview(pa.record_batch([["a", "b", "c"]], schema=text).serialize()))
    place = payload.index(np.array([0, 1, 2, 3], dtype=np.int32).tobytes())
    payload[place + 4 : place + 8] = (2**31 - 1).to_bytes(4, "little")
    with pytest.raises(MalformedBatch):
        wire.decode(Data(bytes(payload), len(payload)))


@pytest.mark.parametrize("schema", [SCHEMA, NUMBERS, LABELS], ids=["everything", "numbers", "labels"])
def test_damaged_batches_are_refused_or_are_other_values_and_the_process_lives(
    schema: pa.Schema, search_factor: int
) -> None:
    if schema is SCHEMA:
        batch = everything(20)
    elif schema is NUMBERS:
        batch = pa.record_batch([np.arange(20), np.arange(20) / 2], schema=NUMBERS)
    else:
        batch = pa.RecordBatch.from_pylist([{"label": "a", "n": ["b", "c"]}] * 20, LABELS)
    wire = RowsWire(schema, timed=True)
    whole = arrived(wire.encode(timed(batch))).payload
    assert isinstance(whole, bytes)
    chance = random.Random(4)
    refused = 0
    for _ in range(1_500 * search_factor):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(damaged))
            damaged[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        if chance.random() < 0.1:
            del damaged[chance.randrange(len(damaged)) :]
        try:
            decoded = wire.decode(Data(damaged, len(damaged)))
        except MalformedBatch:
            refused += 1
        else:
            assert decoded.batch.schema.equals(schema)
            assert decoded.times is not None
            assert len(decoded.times) == len(decoded)
            again = wire.decode(arrived(wire.encode(decoded)))
            again.batch.equals(decoded.batch)  # whatever it says, as a NaN is equal to nothing: every value was read
            assert again.times is not None
            assert np.array_equal(again.times, decoded.times)
    assert refused > 100
