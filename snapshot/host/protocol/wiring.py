"""The wiring of a job's processes, as plain data: all of its recovery scheme that concerns partitions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByArrival:
    """A stage takes what comes in the order in which it comes, sources are read when there is room, sinks write."""


@dataclass(frozen=True, slots=True)
class InRounds:
    """Sources cut what they read into numbered rounds, and every stage takes a round whole from all its inputs.

    With several replicas of a partition these agree on the rounds of its sources, and each sends to each of another
    partition.
    """

    tick: int
    """Sources close a round so often, in milliseconds."""
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class InBatches:
    """Sources read what is there when an epoch is triggered, then they are cut; sinks show rows when it is complete."""

    at_most: int | None
    """So many rows of each source in each partition; None: as many as there are."""
    longest: int
    """A batch is read for so many milliseconds."""


@dataclass(frozen=True, slots=True)
class WithAcks:
    """Frames are acknowledged to the stages that can send them again, which they do if that takes too long.

    A cut is made where each stage is. A process that is lost is replaced, and the others go on.
    """

    timeout: int
    """Milliseconds after which a frame is sent again."""
    max_pending: int | None
    """The rows of a stage in a partition that may be unacknowledged; None: as many as there are."""


Wiring = ByArrival | InRounds | InBatches | WithAcks
