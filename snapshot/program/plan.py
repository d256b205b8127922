"""The stages that a program runs as: what is chained in one loop, and which channels lie between.

Invariant: every partition runs every stage; a stage begins at a source, at an operator with state or at the
meeting of several streams, and ends where rows change partition or meet others; stages are in the order in which
rows flow, so no cycle can wait for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from snapshot.ids import ChannelId
from snapshot.operators.operator import KeyedOperator, Transform
from snapshot.program.sink import Sink
from snapshot.program.source import Source
from statebackend.durations import Duration, milliseconds
from statebackend.ids import Partition, Uid


class Exchange(Enum):
    """The rule by which the rows of an edge find their receivers."""

    KEYED = "keyed"
    """To the partition that owns the key's group."""
    BROADCAST = "broadcast"
    """All rows to every partition."""
    FORWARD = "forward"
    """To the same partition."""
    REBALANCE = "rebalance"
    """In turns to every partition."""


@dataclass(frozen=True, slots=True, init=False)
class EventTime:
    """The origin of event time: a column of timestamps, or of integers that are milliseconds since 1970.

    The watermark stays `out_of_order` behind the latest time seen, per split. A split without rows for `idle_after` no
    longer holds the others back; None: it always does. Both may be given as "5s", and are kept in milliseconds.
    """

    column: str
    out_of_order: int
    idle_after: int | None

    def __init__(self, column: str, out_of_order: Duration = 0, idle_after: Duration | None = None) -> None:
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "out_of_order", milliseconds(out_of_order, "out_of_order"))
        object.__setattr__(self, "idle_after", None if idle_after is None else milliseconds(idle_after, "idle_after"))


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """All channels from one stage into one input of another. `keys` are the columns of the key on a keyed edge."""

    source: Uid
    target: Uid
    port: int
    """Tells edges between the same two stages apart."""
    input: int
    """The number of the input of the target's operator."""
    exchange: Exchange
    schema: pa.Schema
    timed: bool
    keys: tuple[str, ...] = ()

    def channel(self, sender: Partition, receiver: Partition) -> ChannelId:
        """Return the channel between these partitions."""
        return ChannelId(self.source, self.target, sender, receiver, self.port)

    def senders(self, receiver: Partition, parallelism: int) -> tuple[Partition, ...]:
        """Return the partitions from which a receiver hears."""
        if self.exchange is Exchange.FORWARD:
            return (receiver,)
        return tuple(Partition(index) for index in range(parallelism))

    def receivers(self, sender: Partition, parallelism: int) -> tuple[Partition, ...]:
        """Return the partitions to which a sender speaks: as channels go in both directions, the same as `senders`."""
        return self.senders(sender, parallelism)

    @property
    def ordered(self) -> bool:
        """True if its channel state could not be split at a rescale, so that it is always cut aligned."""
        return self.exchange is not Exchange.KEYED


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A transform in a chain, and what follows it. Where `event_time` is set, rows are given their times after it."""

    transform: Transform | None
    event_time: EventTime | None
    then: tuple[Target, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ToSink:
    """The end of a chain: a sink with an identity of its own."""

    uid: Uid
    sink: Sink
    schema: pa.Schema


@dataclass(frozen=True, slots=True, eq=False)
class ToEdge:
    """The end of a chain: rows leave the stage."""

    edge: Edge


Target = Step | ToSink | ToEdge


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The steps that run in one loop: a source or an operator with keyed state, and what is chained after it.

    A stage with neither hands on what comes in: after a rebalance, or where a sink takes several streams.
    """

    uid: Uid
    inputs: tuple[Edge, ...]
    outputs: Mapping[str | None, tuple[Target, ...]]
    """The chains, by side output; None for the main one."""
    source: Source | None = None
    operator: KeyedOperator | None = None

    def targets(self) -> Iterator[Target]:
        """Yield everything in the stage's chains, in the order in which it stands there."""
        waiting = [target for targets in self.outputs.values() for target in targets]
        while waiting:
            target = waiting.pop(0)
            yield target
            if isinstance(target, Step):
                waiting[:0] = target.then

    @property
    def sinks(self) -> tuple[ToSink, ...]:
        """Return the sinks in the stage's chains."""
        return tuple(target for target in self.targets() if isinstance(target, ToSink))

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Return the edges that leave the stage."""
        return tuple(target.edge for target in self.targets() if isinstance(target, ToEdge))

    @property
    def uids(self) -> tuple[Uid, ...]:
        """Return the uids that have a part of every epoch here: the stage's own and those of its sinks."""
        return tuple(dict.fromkeys((self.uid, *(sink.uid for sink in self.sinks))))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A program as it runs; `max_parallelism` is fixed when the job is born. It can be pickled."""

    stages: tuple[Stage, ...]
    max_parallelism: int

    @property
    def uids(self) -> tuple[Uid, ...]:
        """Return all uids that have a part of an epoch, in order."""
        return tuple(sorted(uid for stage in self.stages for uid in stage.uids))

    @property
    def sources(self) -> dict[Uid, Source]:
        """Return the sources by uid."""
        return {stage.uid: stage.source for stage in self.stages if stage.source is not None}

    @property
    def keyed(self) -> dict[Uid, KeyedOperator]:
        """Return the operators with keyed state by uid."""
        return {stage.uid: stage.operator for stage in self.stages if stage.operator is not None}
