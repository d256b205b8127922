"""What is stored of a table: what was written is read, the newest word on a key counts, and damage has a name."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from statebackend import entries
from statebackend.entries import state_id
from statebackend.keys.columns import canonical_column
from statebackend.keys.types import KeyType
from statebackend.tables.format.blocks import (
    CLEAR,
    Block,
    BlockError,
    DamagedBlock,
    NewerBlock,
    Streams,
    arrow_keys,
    decode,
    decode_together,
    encode,
    hashed,
    is_whole,
    merge,
    sliced,
    where,
)

PLACE = "state 'clicks', key group 3, epoch 17"
TEXT = KeyType.of(str)
Rows = list[tuple[bytes | None, int | None]]
"""Keys and their counts, None for a deleted key."""

some_keys = st.sampled_from([None, b"", b"a", b"bb", b"cccccccc", b"dddddddd"])
gone = st.lists(some_keys.map(lambda key: (key, None)), max_size=3)
kept = st.lists(st.tuples(some_keys, st.integers(0, 9)), max_size=6, unique_by=lambda row: row[0])
some_rows = st.builds(lambda gone, kept: [*gone, *kept], gone, kept)


def block(rows: Rows, whole: bool = False) -> Block:
    keys = arrow_keys(canonical_column([key for key, _ in rows], TEXT))
    counts = np.array([count or 0 for _, count in rows], dtype=np.int64)
    deleted = np.array([count is None for _, count in rows], dtype=np.bool_)
    return Block(keys, {"n.count": counts}, deleted if deleted.any() else None, whole)


def rows_of(found: Block) -> Rows:
    gone = [False] * len(found.keys) if found.deleted is None else found.deleted.tolist()
    counts = found.columns["n.count"].tolist() if len(found.keys) else []
    return [(key, None if no else n) for key, n, no in zip(found.keys.to_pylist(), counts, gone, strict=True)]


@given(rows=some_rows, whole=st.booleans())
def test_a_block_is_read_as_it_was_written(rows: Rows, whole: bool) -> None:
    found = decode(encode(block(rows, whole)), PLACE)
    assert rows_of(found) == rows
    assert found.whole == whole


@given(numbers=st.lists(st.none() | st.integers(0, 9)), start=st.integers(0, 9), count=st.integers(0, 9))
def test_the_stream_of_some_rows_is_the_one_that_arrow_writes(
    numbers: list[int | None], start: int, count: int
) -> None:
    names = [None if number is None else bytes(number) for number in numbers]
    rows = pa.record_batch({"number": pa.array(numbers, pa.int64()), "name": pa.array(names, pa.large_binary())})
    streams, written = Streams(rows, {b"a": b"b"}), pa.BufferOutputStream()
    part = rows.slice(start, count).replace_schema_metadata({b"a": b"b"})
    with ipc.new_stream(written, part.schema) as stream:
        stream.write_batch(part)
    assert streams.of(start, start + count) == written.getvalue().to_pybytes()


@given(rows=some_rows, start=st.integers(0, 9))
def test_keys_keep_their_bytes_and_hashes_in_a_block_also_in_a_slice(rows: Rows, start: int) -> None:
    keys = [key for key, _ in rows]
    found = hashed(block(rows).keys.slice(start), TEXT)
    assert [found.key(at) for at in range(len(found))] == keys[start:]
    assert found.hashes.tolist() == canonical_column(keys[start:], TEXT).hashes.tolist()


@given(written=st.lists(st.tuples(some_rows, st.booleans()), max_size=5))
def test_a_merge_keeps_of_each_key_what_was_said_last(written: list[tuple[Rows, bool]]) -> None:
    expected: dict[bytes | None, int] = {}
    for rows, whole in written:
        if whole:
            expected = {}
        for key, count in rows:
            if count is None:
                expected.pop(key, None)
            else:
                expected[key] = count
    merged = next(merge([encode(block(rows, whole)) for rows, whole in written], PLACE), None)
    if merged is None:
        assert expected == {}
    else:
        found = decode(merged, PLACE)
        assert sorted(rows_of(found), key=repr) == sorted(expected.items(), key=repr)
        assert found.deleted is None


def test_a_merge_of_what_was_cleared_leaves_nothing() -> None:
    assert list(merge([encode(block([(b"a", 1)])), encode(CLEAR)], PLACE)) == []


def test_many_keys_are_merged_into_several_blocks_of_which_none_is_large() -> None:
    rows: list[tuple[bytes | None, int | None]] = [(b"%d" % number, number) for number in range(20_000)]
    merged = [decode(payload, PLACE) for payload in merge([encode(block(rows[:9_000])), encode(block(rows))], PLACE)]
    assert len(merged) == 3
    assert {key for part in merged for key in part.keys.to_pylist()} == {key for key, _ in rows}
    assert sum(len(part.keys) for part in merged) == len(rows)


def test_keys_of_equal_length_take_no_offsets() -> None:
    assert block([(b"aa", 1), (b"bb", 2)]).keys.type == pa.binary(2)


@given(data=st.data())
def test_a_damaged_block_is_read_or_refused_with_a_named_error(data: st.DataObject) -> None:
    payload = bytearray(encode(block([(b"a", 1), (b"bb", None), (None, 3)])))
    cut = data.draw(st.integers(0, len(payload)))
    flips = data.draw(st.lists(st.integers(0, len(payload) * 8 - 1), max_size=3))
    for bit in flips:
        payload[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(BlockError):
        decode(bytes(payload[:cut]), PLACE)


@given(written=st.lists(st.tuples(some_rows, st.booleans()), max_size=8))
def test_blocks_that_are_decoded_together_say_what_each_says(written: list[tuple[Rows, bool]]) -> None:
    payloads = [encode(block(rows, whole)) for rows, whole in written]
    found: list[Rows] = []
    for stretch in decode_together(payloads, lambda _: PLACE):
        start = 0
        for count in stretch.counts:
            found.append(rows_of(sliced(stretch.block, start, count)))
            start += count
        assert start == len(stretch.block.keys)
        assert not stretch.block.whole
    assert found == [rows for rows, _ in written]
    assert [is_whole(payload) for payload in payloads] == [whole for _, whole in written]


def test_blocks_that_have_the_same_columns_are_decoded_together_whether_whole_or_not() -> None:
    payloads = [encode(block([(b"a", n)], whole=n == 0)) for n in range(5)]
    assert [stretch.counts for stretch in decode_together(payloads, lambda _: PLACE)] == [[1] * 5]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_of_blocks_that_are_decoded_together_the_one_that_is_damaged_is_named(which: int) -> None:
    payloads = [encode(block([(b"a", n)])) for n in range(3)]
    payloads[which] = payloads[which][: len(payloads[which]) // 2]
    with pytest.raises(DamagedBlock, match=f"block {which}"):
        list(decode_together(payloads, lambda number: f"block {number}"))


@given(data=st.data())
def test_damaged_blocks_are_decoded_together_as_they_are_alone(data: st.DataObject) -> None:
    payloads = [encode(block([(b"a", n), (b"b", 2)])) for n in range(3)]
    damaged = bytearray(payloads[1])
    for bit in data.draw(st.lists(st.integers(0, len(damaged) * 8 - 1), min_size=1, max_size=2)):
        damaged[bit // 8] ^= 1 << bit % 8
    payloads[1] = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        alone = [rows_of(decode(payload, PLACE)) for payload in payloads]
    except BlockError:
        with pytest.raises(BlockError):
            list(decode_together(payloads, lambda _: PLACE))
        return
    except (KeyError, UnicodeDecodeError):  # columns of other names
        return
    stretches = list(decode_together(payloads, lambda _: PLACE))
    assert [row for stretch in stretches for row in rows_of(stretch.block)] == [row for rows in alone for row in rows]


def test_a_truncated_block_is_refused_with_where_it_is() -> None:
    payload = encode(block([(b"a", 1)]))
    with pytest.raises(DamagedBlock, match=r"damaged \(state 'clicks', key group 3, epoch 17\)"):
        decode(payload[: len(payload) // 2], PLACE)


def stream(metadata: dict[bytes, bytes], **columns: pa.Array) -> bytes:
    batch = pa.record_batch(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def test_a_block_of_a_newer_format_is_refused_and_not_called_damaged() -> None:
    with pytest.raises(NewerBlock, match=r"format 2, and this version reads up to 1 \(state 'clicks'"):
        decode(stream({b"epochcut.block": b"2"}, key=pa.array([b"a"])), PLACE)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not an Arrow stream",
        stream({}, key=pa.array([b"a"], pa.large_binary())),
        stream({b"epochcut.block": b"one"}, key=pa.array([b"a"], pa.large_binary())),
        stream({b"epochcut.block": b"1"}, other=pa.array([1])),
        stream({b"epochcut.block": b"1"}, key=pa.array(["a"])),
        stream({b"epochcut.block": b"1"}, key=pa.array([b"a"], pa.large_binary()), n=pa.array([None], pa.int64())),
        stream({b"epochcut.block": b"1"}, key=pa.array([b"a"], pa.large_binary()), deleted=pa.array([1])),
    ],
    ids=["nothing", "no stream", "no format", "no number", "no keys", "keys as text", "null", "deleted as number"],
)
def test_what_is_no_block_is_refused(payload: bytes) -> None:
    with pytest.raises(DamagedBlock, match="key group 3"):
        decode(payload, PLACE)


def test_blocks_with_different_columns_are_not_merged() -> None:
    other = Block(block([(b"a", 1)]).keys, {"m.count": np.array([1])})
    with pytest.raises(DamagedBlock, match="different columns"):
        list(merge([encode(other), encode(block([(b"a", 1)]))], PLACE))


def test_a_person_is_told_state_group_namespace_and_epoch() -> None:
    name = entries.block(3, state_id("clicks"), b"\x01\x02", 17)
    assert where("clicks", name) == "state 'clicks', key group 3, namespace 0102, epoch 17"
    assert where("clicks", entries.block(3, state_id("clicks"), b"", 17)) == PLACE
