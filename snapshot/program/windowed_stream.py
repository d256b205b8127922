"""A stream divided by key and time: what can be done with the rows of one key in one window.

What always holds: a window's result comes when its time is over, with an event time just before its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapshot.operators.row_class import Row, RowLike
from snapshot.program.connected_streams import operated
from snapshot.program.nodes import NO_SIDES, Aggregating, Incoming, Node, Processing, Reducing, Way, Windowing
from snapshot.program.problems import no_such_step
from statebackend.columns import SchemaLike
from statebackend.tables.values.aggregations import Aggregation, Count, Max, Mean, Min, Sum

if TYPE_CHECKING:
    from snapshot.operators.windows.calls import WindowFunction
    from snapshot.program.stream import Stream


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowedStream:
    """What `KeyedStream.window` makes. Aggregates come with the key's columns, `window_start` and `window_end`.

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
