"""The streams that users write, with their steps.

Invariant: a stream is a value; a step gives another and leaves this one as it is, so that any number of steps
can follow one stream. Nothing is checked here but durations: a program's mistakes are reported all at once, by `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snapshot.operators.row_class import Row, RowLike
from snapshot.program.connected_streams import ControlStream
from snapshot.program.keyed_stream import KeyedStream
from snapshot.program.nodes import (
    Change,
    Changed,
    Node,
    Read,
    Rebalanced,
    Selected,
    SideOf,
    Timed,
    United,
    Written,
)
from snapshot.program.plan import EventTime
from snapshot.program.problems import no_such_step
from snapshot.program.program import Program
from snapshot.program.sink import Sink
from snapshot.program.source import Source
from statebackend.columns import SchemaLike
from statebackend.durations import Duration

if TYPE_CHECKING:
    from snapshot.operators.transforms import Batches


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stream:
    """Rows of one schema, in any number of partitions. A program begins with `Stream.read(source, uid=...)`.

    Functions receive rows as named tuples and return named tuples, tuples, lists or mappings; those of `..._batches`
    receive Arrow record batches. They have no state, and may run again for the same rows after a crash.
    """

    node: Node

    @classmethod
    def read(cls, source: Source, *, uid: str, event_time: EventTime | None = None) -> Stream:
        """Read a source. The job finds its positions again by the `uid`, so that must never change."""
        return cls(Read(uid, source, event_time))

    def map(self, function: Callable[[Row], RowLike], *, schema: SchemaLike | None = None) -> Stream:
        """Apply the function to each row; the rows it returns have the same schema, or the declared one."""
        return Stream(Changed(self.node, Change.MAP, function, schema))

    def flat_map(self, function: Callable[[Row], Iterable[RowLike]], *, schema: SchemaLike | None = None) -> Stream:
        """Apply the function to each row; it returns an iterable of rows, which follow one after the other."""
        return Stream(Changed(self.node, Change.FLAT_MAP, function, schema))

    def filter(self, function: Callable[[Row], object]) -> Stream:
        """Keep the rows for which the function returns something true."""
        return Stream(Changed(self.node, Change.FILTER, function))

    def map_batches(self, function: Callable[[pa.RecordBatch], Batches], *, schema: SchemaLike | None = None) -> Stream:
        """Apply the function to each batch; if rows have event times, it returns as many rows as it received."""
        return Stream(Changed(self.node, Change.MAP_BATCHES, function, schema))

    def flat_map_batches(
        self, function: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Any]], *, schema: SchemaLike | None = None
    ) -> Stream:
        """Apply the function to each batch; it returns a batch, and an array with the row that each row came from."""
        return Stream(Changed(self.node, Change.FLAT_MAP_BATCHES, function, schema))

    def filter_batches(self, function: Callable[[pa.RecordBatch], Any]) -> Stream:
        """Keep the rows for which the function, called with a batch, returns true in its array of booleans."""
        return Stream(Changed(self.node, Change.FILTER_BATCHES, function))

    def select(self, *columns: str) -> Stream:
        """Keep these columns alone, in this order."""
        return Stream(Selected(self.node, columns))

    def with_event_time(self, column: str, *, out_of_order: Duration = 0, idle_after: Duration | None = None) -> Stream:
        """Take the rows' event time, from here on, from a column of timestamps or of milliseconds since 1970.

        Rows may come `out_of_order` by so much; what is later still is late. A split without rows for `idle_after` does
        not hold event time back. Once on every way from a source, and before the first exchange.

        Several branches of one source may each have event times, which come to one watermark: after all of them it is
        that of the slowest branch, so one to which no rows of a split come needs `idle_after`.
        """
        return Stream(Timed(self.node, EventTime(column, out_of_order, idle_after)))

    def union(self, *others: Stream) -> Stream:
        """Merge the rows of all these streams, which are of one schema, in no order."""
        return Stream(United((self.node, *(other.node for other in others))))

    def rebalance(self, *, uid: str) -> Stream:
        """Deal the rows out evenly over all partitions."""
        return Stream(Rebalanced(uid, self.node))

    def key_by(self, *columns: str) -> KeyedStream:
        """Divide the stream by these columns: operators after it have state for each key."""
        return KeyedStream(self.node, columns)

    def broadcast(self) -> ControlStream:
        """Give the whole stream to every partition, to connect a keyed stream with."""
        return ControlStream(self.node)

    def side(self, name: str) -> Stream:
        """Take a side output of the operator with state that this stream comes out of, such as "late" of windows."""
        return Stream(SideOf(self.node, name))

    if not TYPE_CHECKING:  # a type checker says of its own what is not there

        def __getattr__(self, name: str) -> Any:
            """Raise the `AttributeError` for a missing step; for one of keyed streams it says what to do before it."""
            raise no_such_step("Stream", name, Stream, [KeyedStream], "works for each key: say key_by(...) before it")

    def write(self, sink: Sink, *, uid: str) -> Program:
        """Return a program that writes these rows.

        The job finds output that waits to be committed again by the `uid`, so that must never change.
        """
        return Program((Written(uid, self.node, sink),))
