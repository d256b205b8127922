"""Rows find the partition that owns their key, in order, whatever the batches."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.cut.frames import Data, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.outbox import Outbox
from snapshot.host.flow.allowances import UNLIMITED, Allowance
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition.router import Router
from snapshot.ids import ChannelId
from snapshot.operators.rows import Rows
from snapshot.program.plan import Edge, Exchange
from statebackend.ids import Epoch, Generation, Partition, Uid
from statebackend.keygroups import key_group_of, owner_of
from statebackend.keys.types import KeyType

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
MAX_PARALLELISM = 128
BATCH_BYTES = 4096


class Recorded:
    """A channel that keeps what is put on it."""

    def __init__(self, channel: ChannelId, ordered: bool) -> None:
        self.id = channel
        self.outbox = Outbox(ordered=ordered)
        self.allowed = UNLIMITED

    @property
    def bytes(self) -> int:
        return self.outbox.bytes

    def put(self, frame: Frame) -> tuple[Data, ...]:
        return self.outbox.put(frame)

    def frames(self) -> list[Frame]:
        return [self.outbox.take() for _ in range(len(self.outbox))]


def router(exchange: Exchange, parallelism: int, batch_rows: int = 4) -> tuple[Router, list[Recorded]]:
    keys = ("user",) if exchange is Exchange.KEYED else ()
    edge = Edge(Uid("a"), Uid("b"), 0, 0, exchange, SCHEMA, False, keys)
    own = Partition(0)
    channels = [Recorded(edge.channel(own, to), edge.ordered) for to in edge.receivers(own, parallelism)]
    return Router(edge, channels, MAX_PARALLELISM, batch_rows, BATCH_BYTES), channels


def rows_of(users: list[str]) -> Rows:
    return Rows(pa.record_batch([pa.array(users, pa.string()), pa.array(range(len(users)))], schema=SCHEMA))


def contents(channel: Recorded) -> list[tuple[str, int]]:
    wire = RowsWire(SCHEMA, timed=False)
    found: list[tuple[str, int]] = []
    for frame in channel.frames():
        assert isinstance(frame, Data)
        rows = frame.payload if isinstance(frame.payload, Rows) else wire.decode(frame)
        found += zip(rows.batch.column(0).to_pylist(), rows.batch.column(1).to_pylist(), strict=True)
    return found


@given(
    users=st.lists(st.text(max_size=3), max_size=60),
    parallelism=st.integers(1, 5),
    splits=st.lists(st.integers(0, 60), max_size=4),
    batch_rows=st.integers(1, 20),
)
def test_each_row_comes_once_and_in_order_to_the_partition_that_owns_its_key(
    users: list[str], parallelism: int, splits: list[int], batch_rows: int
) -> None:
    routed, channels = router(Exchange.KEYED, parallelism, batch_rows)
    rows = rows_of(users)
    edges = sorted({0, len(users), *(split for split in splits if split < len(users))})
    for start, end in pairwise(edges):
        routed.rows(rows.slice(start, end - start))
    routed.flush()
    key_type = KeyType.of(pa.string())
    owners = [
        owner_of(key_group_of(key_type.hash(user), MAX_PARALLELISM), parallelism, MAX_PARALLELISM) for user in users
    ]
    for channel in channels:
        expected = [(user, n) for n, user in enumerate(users) if owners[n] == channel.id.receiver]
        assert contents(channel) == expected


def test_bytes_that_went_out_are_those_of_all_channels() -> None:
    routed, channels = router(Exchange.BROADCAST, 3)
    routed.rows(rows_of(["x", "y"]))
    assert routed.bytes_out == 0
    routed.put(Watermark(7))
    sizes = [frame.size for channel in channels for frame in channel.frames() if isinstance(frame, Data)]
    assert routed.bytes_out == sum(sizes) > 0


def test_rows_of_a_broadcast_come_to_all() -> None:
    routed, channels = router(Exchange.BROADCAST, 3)
    routed.rows(rows_of(["x", "y"]))
    routed.flush()
    assert [contents(channel) for channel in channels] == [[("x", 0), ("y", 1)]] * 3


def test_batches_are_dealt_out_in_turns() -> None:
    routed, channels = router(Exchange.REBALANCE, 2)
    for user in "abcd":
        routed.rows(rows_of([user]))
    routed.flush()
    assert [[user for user, _ in contents(channel)] for channel in channels] == [["a", "c"], ["b", "d"]]


def test_batches_of_several_epochs_are_dealt_out_in_turns_unless_they_begin_anew() -> None:
    routed, channels = router(Exchange.REBALANCE, 2)
    for number, user in enumerate("abc", 1):
        routed.rows(rows_of([user]))
        routed.put(Marker(Epoch(Generation(1), number), MarkerMode.ALIGNED))
    routed.begin_anew()
    routed.rows(rows_of(["d"]))
    routed.flush()
    kinds = [[type(frame) for frame in channel.frames()] for channel in channels]
    assert kinds == [[Data, Marker, Marker, Data, Marker, Data], [Marker, Data, Marker, Marker]]


def test_a_watermark_goes_behind_all_rows_that_came_before_it() -> None:
    routed, channels = router(Exchange.FORWARD, 3)
    routed.rows(rows_of(["x"]))
    assert routed.has_waiting
    routed.put(Watermark(7))
    assert [type(frame) for frame in channels[0].frames()] == [Data, Watermark]
    assert not routed.has_waiting


def test_an_unaligned_marker_overtakes_rows_that_were_still_gathered_and_says_which() -> None:
    routed, channels = router(Exchange.KEYED, 1)
    routed.rows(rows_of(["x"]))
    overtaken = routed.put(Marker(Epoch(Generation(1), 1), MarkerMode.UNALIGNED))
    assert [type(frame) for frame in channels[0].frames()] == [Marker, Data]
    assert [len(frames) for frames in overtaken.values()] == [1]
    ((channel, (frame,)),) = overtaken.items()
    assert routed.has(channel)
    assert isinstance(frame.payload, Rows)
    assert routed.wire.decode(routed.wire.encode(frame.payload)).batch.to_pylist() == [{"user": "x", "n": 0}]


def test_a_full_batch_leaves_at_once_and_the_rest_waits() -> None:
    routed, channels = router(Exchange.FORWARD, 1, batch_rows=4)
    routed.rows(rows_of(list("abcdefghij")))
    assert [len(f.payload) for f in channels[0].frames() if isinstance(f, Data) and isinstance(f.payload, Rows)] == [
        4,
        4,
        2,
    ]
    routed.rows(rows_of(["k"]))
    assert len(channels[0].outbox) == 0
    assert routed.has_waiting


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_it_is_full_when_one_channel_has_as_much_as_the_limit(limit: int) -> None:
    routed, _ = router(Exchange.KEYED, 2, batch_rows=1)
    routed.rows(rows_of([str(n) for n in range(20)]))
    assert routed.is_full(limit) == (limit == 0)


def test_it_is_full_when_one_channel_has_been_given_all_rows_that_it_is_allowed() -> None:
    routed, (first, second) = router(Exchange.KEYED, 2, batch_rows=1000)
    first.allowed, second.allowed = Allowance(100, 40), UNLIMITED
    room = []
    while not routed.is_full(1 << 30):
        room.append(routed.room)
        routed.rows(rows_of([str(n) for n in range(20)]))
    routed.flush()  # rows that wait for others count as well
    given = len(contents(first))
    assert 90 < given <= 110, "a quarter of the window is not worth reading for"
    assert room[0] == 200
    assert all(after < before for before, after in pairwise(room))
    assert routed.room == 0
    first.allowed = Allowance(given + 40, 40)
    assert not routed.is_full(1 << 30)
    assert routed.room == 80


def test_of_large_rows_it_takes_no_more_at_once_than_a_batch_may_have() -> None:
    routed, _ = router(Exchange.KEYED, 2, batch_rows=1000)
    assert routed.room > 1000
    routed.rows(rows_of(["x" * 1000] * 4))
    routed.flush()
    assert routed.room == 2 * (BATCH_BYTES // 1016)
    routed.rows(rows_of(["x" * 9000]))
    routed.flush()
    assert routed.room == 2, "a larger one is believed at once"
    for _ in range(12):
        routed.rows(rows_of(["x"]))
        routed.flush()
    assert routed.room > 100


def test_large_rows_do_not_wait_for_a_full_batch() -> None:
    routed, channels = router(Exchange.FORWARD, 1, batch_rows=1000)
    routed.rows(rows_of(["x" * 1000]))
    routed.flush()
    channels[0].frames()
    for _ in range(4):
        routed.rows(rows_of(["x" * 1000]))
    assert channels[0].frames() == []
    routed.rows(rows_of(["x" * 1000]))
    assert len(channels[0].frames()) == 2, "neither has more than a batch may have"


def test_rows_that_are_large_leave_in_smaller_batches() -> None:
    routed, channels = router(Exchange.FORWARD, 1, batch_rows=100)
    routed.rows(rows_of(["x" * 1000] * 20))
    routed.flush()
    sizes = [frame.size for frame in channels[0].frames() if isinstance(frame, Data)]
    assert len(sizes) > 1
    assert max(sizes) <= BATCH_BYTES
