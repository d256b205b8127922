"""Two streams for one operator: both keyed, or one of them for all partitions.

Invariant: both are read by the same operator in the same partition, and its state of a key is one.

Every partition gets all rows of a control stream, in an order of its own: what is kept of them must not depend on one.
An operator that gives several outputs is one node, however many of them are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapshot.program.nodes import NO_SIDES, Incoming, Node, Operated, Processing, Way, Work
from statebackend.columns import SchemaLike

if TYPE_CHECKING:
    from snapshot.program.stream import Stream


def operated(uid: str, inputs: tuple[Incoming, ...], work: Work) -> Stream:
    """Return the main output of a new operator."""
    from snapshot.program.stream import Stream  # streams can be keyed, and keyed ones are streams again

    return Stream(Operated(uid, inputs, work))


if TYPE_CHECKING:
    from snapshot.operators.broadcast import KeyedBroadcastProcess
    from snapshot.operators.function_operator import KeyedCoProcess
    from snapshot.program.stream import Stream


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConnectedStreams:
    """Two keyed streams; their keys are of one type, whatever the columns are called."""

    first: Incoming
    second: Incoming

    def process(
        self,
        function: KeyedCoProcess | type[KeyedCoProcess],
        *,
        uid: str,
        schema: SchemaLike | None = None,
        sides: Mapping[str, SchemaLike] = NO_SIDES,
    ) -> Stream:
        """Process the rows of both streams, one by one, with the same state for each key.

        `schema` and `sides` are as in `KeyedStream.process`.
        """
        work = Processing(Way.CONNECTED, function, schema, sides)
        return operated(uid, (self.first, self.second), work)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ControlledStream:
    """A keyed stream, and one that every partition gets the whole of."""

    keyed: Incoming
    control: Incoming

    def process(
        self,
        function: KeyedBroadcastProcess | type[KeyedBroadcastProcess],
        *,
        uid: str,
        schema: SchemaLike | None = None,
        sides: Mapping[str, SchemaLike] = NO_SIDES,
    ) -> Stream:
        """Process the rows of the keyed stream, with state for each key and with what the control stream has set.

        All keys read what it has set. `schema` and `sides` are as in `KeyedStream.process`.
        """
        work = Processing(Way.CONTROLLED, function, schema, sides)
        return operated(uid, (self.keyed, self.control), work)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ControlStream:
    """A stream for all partitions: `Stream.broadcast` makes it, and `KeyedStream.connect` takes it."""

    node: Node
