"""A stream divided by key and time: what can be done with the rows of one key in one window.

What always holds: a window's result comes when its time is over, with an event time just before its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapshot.program.nodes import NO_SIDES, Aggregating, Incoming, Node, Processing, Reducing, Way, Windowing
from snapshot.program.operated import operated
from snapshot.program.problems import no_such_step
from snapshot.program.row_class import Row, RowLike
from statebackend.columns import SchemaLike
from statebackend.tables.aggregations import Aggregation, Count, Max, Mean, Min, Sum

if TYPE_CHECKING:
    from snapshot.operators.windows import WindowFunction
    from snapshot.program.stream import Stream


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WindowedStream:
    """What `KeyedStream.window` makes. Aggregates come with the key's columns, `window_start` and `window_end`.

    Every operator needs a `uid`, which stays for ever.
    """

    node: Node
    keys: tuple[str, ...]
    windowing: Windowing

    def aggregate(self, *, uid: str | None = None, **outputs: Aggregation) -> Stream:
        """Aggregates of each window: `.aggregate(uid="sums", clicks=Count(), spent=Sum("cents"), until=Max("at"))`."""
        return self._aggregated(uid, outputs)

    def count(self, *, uid: str | None = None) -> Stream:
        """How many rows are in each window, in a column `count`."""
        return self._aggregated(uid, {"count": Count()})

    def sum(self, column: str, *, uid: str | None = None) -> Stream:
        """The sum of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Sum(column)})

    def min(self, column: str, *, uid: str | None = None) -> Stream:
        """The least value of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Min(column)})

    def max(self, column: str, *, uid: str | None = None) -> Stream:
        """The greatest value of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Max(column)})

    def mean(self, column: str, *, uid: str | None = None) -> Stream:
        """The mean of a column in each window, in a column of the same name."""
        return self._aggregated(uid, {column: Mean(column)})

    def reduce(self, function: Callable[[Row, Row], RowLike], *, uid: str | None = None) -> Stream:
        """What the function makes of all rows of a window, two by two: a row of the same schema."""
        return self._operated(uid, Reducing(function, self.windowing))

    def process(
        self,
        function: WindowFunction | type[WindowFunction],
        *,
        uid: str | None = None,
        schema: SchemaLike | None = None,
        sides: Mapping[str, SchemaLike] = NO_SIDES,
    ) -> Stream:
        """What the function makes of all rows of a window at once. `schema` and `sides` as in `KeyedStream.process`."""
        return self._operated(uid, Processing(Way.WINDOWS, function, schema, sides, self.windowing))

    if not TYPE_CHECKING:  # a type checker says of its own what is not there

        def __getattr__(self, name: str) -> Any:
            """Say where a step belongs that other streams have."""
            from snapshot.program.stream import Stream

            raise no_such_step(
                "WindowedStream",
                name,
                WindowedStream,
                [Stream],
                "works on what comes out of windows: say count, sum, aggregate, reduce or process before it",
            )

    def _aggregated(self, uid: str | None, outputs: Mapping[str, Aggregation]) -> Stream:
        return self._operated(uid, Aggregating(outputs, windowing=self.windowing))

    def _operated(self, uid: str | None, work: Processing | Reducing | Aggregating) -> Stream:
        return operated(uid, (Incoming(self.node, self.keys),), work)
