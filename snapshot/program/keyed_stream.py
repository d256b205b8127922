"""A stream divided by key: what can be done where every key has state of its own.

Invariant: rows of one key are together in one partition, in the order in which each sender sent them; an
operator's state is found again by its uid, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from snapshot.operators.operator import Per
from snapshot.operators.row_class import Row, RowLike
from snapshot.program.connected_streams import ConnectedStreams, ControlledStream, ControlStream, operated
from snapshot.program.nodes import NO_SIDES, Aggregating, Incoming, Node, Processing, Reducing, Way, Windowing
from snapshot.program.problems import no_such_step
from statebackend.columns import SchemaLike
from statebackend.durations import Duration, milliseconds
from statebackend.tables.values.aggregations import Aggregation, Count, Max, Mean, Min, Sum

if TYPE_CHECKING:
    from snapshot.operators.function_operator import KeyedProcess
    from snapshot.operators.process_batch import BatchProcess
    from snapshot.operators.windows.calls import WindowFunction
    from snapshot.operators.windows.kinds import Window
    from snapshot.program.stream import Stream


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeyedStream:
    """A stream divided by key, made by `Stream.key_by`. Every operator needs a `uid`, which stays for ever."""

    node: Node
    keys: tuple[str, ...]

    def process(
        self,
        function: KeyedProcess | type[KeyedProcess],
        *,
        uid: str,
        schema: SchemaLike | None = None,
        sides: Mapping[str, SchemaLike] = NO_SIDES,
    ) -> Stream:
        """Process rows one by one, with state and timers for each key.

        Without a `schema`, the attribute `output` of the class says which rows come out. `sides` are its side outputs.
        """
        return self._operated(uid, Processing(Way.EVENTS, function, schema, sides))

    def process_batch(
        self,
        function: BatchProcess | type[BatchProcess],
        *,
        uid: str,
        schema: SchemaLike | None = None,
        sides: Mapping[str, SchemaLike] = NO_SIDES,
    ) -> Stream:
        """Process whole Arrow batches of rows of many keys, with their state. `schema` and `sides` as in `process`."""
        return self._operated(uid, Processing(Way.BATCHES, function, schema, sides))

    def reduce(self, function: Callable[[Row, Row], RowLike], *, uid: str) -> Stream:
        """Give for each row what the function makes of its key's rows so far: of the one before, and this one."""
        return self._operated(uid, Reducing(function))

    def aggregate(self, *, uid: str, per: Per = "record", **outputs: Aggregation) -> Stream:
        """Keep running aggregates of each key: `.aggregate(uid="sums", clicks=Count(), spent=Sum("cents"))`.

        `Count`, `Sum`, `Mean`, `Min`, `Max`, `First` and `Last` are in `snapshot`, as is `Aggregation` for one of your
        own. `Sum` and `Mean` take integers and floats; sum money in cents. The types follow from the columns.

        Per record, a row with the new values for each row; per batch, one for each key that a batch has rows of; with
        per="end" one for each key when all input has ended: final results of finished input, as of files that do not
        grow, of a run with `available_now`, or of one that is drained. Rows that come in a later run add to them, and
        their keys are said again. Out come the key's columns and one for each aggregate.
        """
        return self._operated(uid, Aggregating(outputs, per))

    def count(self, *, uid: str, per: Per = "record") -> Stream:
        """Count the rows of each key so far, in a column `count`."""
        return self._operated(uid, Aggregating({"count": Count()}, per))

    def sum(self, column: str, *, uid: str, per: Per = "record") -> Stream:
        """Compute the sum of a column so far, for each key, in a column of the same name."""
        return self._operated(uid, Aggregating({column: Sum(column)}, per))

    def min(self, column: str, *, uid: str, per: Per = "record") -> Stream:
        """Find the least value of a column so far, for each key, in a column of the same name."""
        return self._operated(uid, Aggregating({column: Min(column)}, per))

    def max(self, column: str, *, uid: str, per: Per = "record") -> Stream:
        """Find the greatest value of a column so far, for each key, in a column of the same name."""
        return self._operated(uid, Aggregating({column: Max(column)}, per))

    def mean(self, column: str, *, uid: str, per: Per = "record") -> Stream:
        """Compute the mean of a column so far, for each key, in a column of the same name."""
        return self._operated(uid, Aggregating({column: Mean(column)}, per))

    def window(self, window: Window, *, lateness: Duration = 0, late: bool = False) -> WindowedStream:
        """Divide the rows of each key by time.

        A window stays open for rows that are late by up to `lateness`, and gives its result again for them. Later rows
        are dropped and counted, or with `late` come out at the side "late", with the columns of this stream.
        """
        return WindowedStream(self.node, self.keys, Windowing(window, milliseconds(lateness, "lateness"), late))

    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...

    @overload
    def connect(self, other: ControlStream) -> ControlledStream: ...

    def connect(self, other: KeyedStream | ControlStream) -> ConnectedStreams | ControlledStream:
        """Bring both streams into one operator: `other` has keys of the same type, or goes to all partitions."""
        mine = Incoming(self.node, self.keys)
        if isinstance(other, ControlStream):
            return ControlledStream(mine, Incoming(other.node, (), broadcast=True))
        return ConnectedStreams(mine, Incoming(other.node, other.keys))

    if not TYPE_CHECKING:  # a type checker says of its own what is not there

        def __getattr__(self, name: str) -> Any:
            """Raise the `AttributeError` for a missing step; for one of other streams it says where that belongs."""
            from snapshot.program.stream import Stream

            raise no_such_step(
                "KeyedStream",
                name,
                KeyedStream,
                [Stream],
                "works on rows, not on keys: use it before key_by(...), or on what count, process or the like give",
            )

    def _operated(self, uid: str, work: Processing | Reducing | Aggregating) -> Stream:
        return operated(uid, (Incoming(self.node, self.keys),), work)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowedStream:
    """A stream divided by key and time, made by `KeyedStream.window`. Aggregates add `window_start` and `window_end`.

    Every operator needs a `uid`, which stays for ever.
    """

    node: Node
    keys: tuple[str, ...]
    windowing: Windowing

    def aggregate(self, *, uid: str, **outputs: Aggregation) -> Stream:
        """Aggregate each window: `.aggregate(uid="sums", clicks=Count(), spent=Sum("cents"), until=Max("at"))`."""
        return self._aggregated(uid, outputs)

    def count(self, *, uid: str) -> Stream:
        """Count the rows in each window, in a column `count`."""
        return self._aggregated(uid, {"count": Count()})

    def sum(self, column: str, *, uid: str) -> Stream:
        """Compute the sum of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Sum(column)})

    def min(self, column: str, *, uid: str) -> Stream:
        """Find the least value of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Min(column)})

    def max(self, column: str, *, uid: str) -> Stream:
        """Find the greatest value of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Max(column)})

    def mean(self, column: str, *, uid: str) -> Stream:
        """Compute the mean of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Mean(column)})

    def reduce(self, function: Callable[[Row, Row], RowLike], *, uid: str) -> Stream:
        """Make one row of the same schema of all rows of a window, two by two, with the function."""
        return self._operated(uid, Reducing(function, self.windowing))

    def process(
        self,
        function: WindowFunction | type[WindowFunction],
        *,
        uid: str,
        schema: SchemaLike | None = None,
        sides: Mapping[str, SchemaLike] = NO_SIDES,
    ) -> Stream:
        """Apply the function to all rows of a window at once. `schema` and `sides` as in `KeyedStream.process`."""
        return self._operated(uid, Processing(Way.WINDOWS, function, schema, sides, self.windowing))

    if not TYPE_CHECKING:  # a type checker says of its own what is not there

        def __getattr__(self, name: str) -> Any:
            """Raise the `AttributeError` for a missing step; for one of other streams it says where that belongs."""
            from snapshot.program.stream import Stream

            raise no_such_step(
                "WindowedStream",
                name,
                WindowedStream,
                [Stream],
                "works on what comes out of windows: say count, sum, aggregate, reduce or process before it",
            )

    def _aggregated(self, uid: str, outputs: Mapping[str, Aggregation]) -> Stream:
        return self._operated(uid, Aggregating(outputs, windowing=self.windowing))

    def _operated(self, uid: str, work: Processing | Reducing | Aggregating) -> Stream:
        return operated(uid, (Incoming(self.node, self.keys),), work)
