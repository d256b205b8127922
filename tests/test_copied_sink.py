"""A sink to which each member of a partition writes: all of them give a row the same position."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from recovery.driver.report.deliveries import Deliveries
from snapshot.connectors.memory.driver_sink import ToDriver
from snapshot.host.partition.copied_sink import CopiedSink
from snapshot.host.protocol.messages import Delivery, SinkFigures
from snapshot.operators.rows import Rows
from snapshot.program.sink import TakesCopies
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid

OUT = Uid("out")
HERE = Incarnation(Generation(1), Attempt(1))
SCHEMA = pa.schema({"row": pa.int64()})


class Member:
    """One member's sink, which delivers at once."""

    def __init__(self) -> None:
        self.said: list[Delivery] = []
        self.sink = CopiedSink(None)
        self.sink.write_to(self)

    def begin(self) -> None:
        pass

    def rows(self, rows: Rows) -> None:
        data = pa.BufferOutputStream()
        with pa.ipc.new_stream(data, SCHEMA) as stream:
            stream.write_batch(rows.batch)
        self.said.append(Delivery(HERE, Partition(0), OUT, None, data.getvalue().to_pybytes(), self.sink.at))

    def cut(self, epoch: Epoch) -> None:
        pass

    def completed(self, epoch: Epoch) -> None:
        pass

    def no_more_rows(self) -> None:
        pass

    @property
    def figures(self) -> SinkFigures:
        return SinkFigures()

    def close(self) -> None:
        pass


def test_rows_for_the_driver_are_taken_in_copies_unless_they_wait_for_their_epoch() -> None:
    for at_commit in (False, True):
        sink = ToDriver(at_commit=at_commit)
        assert isinstance(sink, TakesCopies)
        assert sink.takes_copies is not at_commit


@given(
    st.lists(st.integers(0, 4), max_size=12),
    st.lists(st.lists(st.integers(1, 3), max_size=30), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.integers(0, 30), min_size=2, max_size=2),
)
def test_the_driver_has_each_row_once_and_in_order_whichever_member_brings_it_first_and_dies(
    segments: list[int], cuts: list[list[int]], order: list[int], dies: list[int]
) -> None:
    members = [Member() for _ in cuts]
    for member, pieces in zip(members, cuts, strict=True):
        first, sizes = 0, iter(pieces)
        for number, length in enumerate(segments):
            left = length
            while left:
                piece = min(left, next(sizes, left))
                batch = pa.record_batch({"row": range(first, first + piece)}, schema=SCHEMA)
                member.sink.rows(Rows(batch))
                first, left = first + piece, left - piece
            member.sink.cut(Epoch(Generation(1), number + 1))
    deliveries = Deliveries()
    queues = [member.said[: dies[which] if which < len(dies) else None] for which, member in enumerate(members)]
    for which in [*order, *(which for which, queue in enumerate(queues) for _ in queue)]:
        if queues[which]:
            deliveries.add(queues[which].pop(0))
    deliveries.end()
    rows = [row["row"] for batch in deliveries.batches(OUT) for row in batch.to_pylist()]
    assert rows == list(range(sum(segments)))
