"""A sink of a member that is not primary: it holds what it is given, and writes it when it takes over."""

from __future__ import annotations

import pyarrow as pa

from snapshot.host.partition.held_sink import Committables, HeldSink
from snapshot.host.partition.sink_run import Output
from snapshot.host.protocol.messages import SinkFigures
from snapshot.operators.rows import Rows
from statebackend.ids import Epoch, Generation


class Said:
    """What is said to the sink that writes."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def write(self, epoch: Epoch | None, committables: Committables) -> Output:
        self.all.append(("from", None if epoch is None else epoch.number, len(committables)))
        return self

    def begin(self) -> None:
        self.all.append("begin")

    def rows(self, rows: Rows) -> None:
        self.all += rows.batch.column(0).to_pylist()

    def cut(self, epoch: Epoch) -> None:
        self.all.append(("cut", epoch.number))

    def completed(self, epoch: Epoch) -> None:
        self.all.append(("completed", epoch.number))

    def no_more_rows(self) -> None:
        self.all.append("no more rows")

    @property
    def figures(self) -> SinkFigures:
        return SinkFigures()

    def close(self) -> None:
        self.all.append("close")


def rows(*letters: str) -> Rows:
    return Rows(pa.record_batch([pa.array(letters)], ["letter"]))


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def test_nothing_is_opened_before_the_member_takes_over() -> None:
    said = Said()
    sink = HeldSink(None, said.write)
    sink.begin()
    sink.rows(rows("a"))
    sink.cut(epoch(1))
    sink.completed(epoch(1))
    sink.no_more_rows()
    sink.close()
    assert said.all == []
    assert sink.held_bytes == 0


def test_what_no_complete_epoch_has_is_written_and_all_that_comes_later() -> None:
    said = Said()
    sink = HeldSink(epoch(3), said.write)
    sink.rows(rows("a"))
    sink.cut(epoch(4))
    sink.rows(rows("b", "c"))
    sink.cut(epoch(5))
    sink.rows(rows("d"))
    sink.take_over(epoch(4), ())
    sink.rows(rows("e"))
    sink.cut(epoch(6))
    sink.completed(epoch(6))
    sink.no_more_rows()
    assert said.all == [
        ("from", 4, 0), "begin", "b", "c", "d", "e", ("cut", 6), ("completed", 6), "no more rows",
    ]  # fmt: skip


def test_a_member_that_has_not_cut_the_newest_complete_epoch_takes_over_at_its_cut() -> None:
    said = Said()
    sink = HeldSink(None, said.write)
    sink.rows(rows("a"))
    sink.take_over(epoch(1), ())
    sink.rows(rows("b"))
    assert said.all == []
    sink.cut(epoch(1))
    sink.rows(rows("c"))
    assert said.all == [("from", 1, 0), "begin", "c"], "the epoch has the others"


def test_a_member_that_takes_over_after_the_end_says_that_it_was_the_end() -> None:
    said = Said()
    sink = HeldSink(None, said.write)
    sink.rows(rows("a"))
    sink.no_more_rows()
    sink.take_over(None, ())
    assert said.all == [("from", None, 0), "begin", "a", "no more rows"]
