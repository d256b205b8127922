"""Micro-batches: a program runs batch by batch, and a batch is an epoch.

Invariant: rows of one batch alone are under way at a time, and none of them is shown before the batch is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.schemes.passive import Passive, PassiveRun
from recovery.schemes.synchronous import refuse_overtaking
from snapshot.cut.pauses import Then
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions, Rhythm
from snapshot.host.protocol.wiring import InBatches, Wiring
from snapshot.program.plan import Plan
from statebackend.durations import Duration, milliseconds


@dataclass(frozen=True, slots=True)
class MicroBatches(Passive):
    """Run the program batch by batch, as Trident and Spark do, in processes that live as long as the job.

    At a trigger sources read what is there, at most `at_most` rows of each source in each partition, and stop; a
    source that a thread of its own reads ahead may give up to one reading more. When all that follows from these rows
    is done, state is stored and output is prepared, the batch is complete: it is the epoch of that trigger. Then all
    sinks show its rows, those that are at least once too. The next batch begins at once, but not before `every` has
    passed since the last one began. A failure rolls back as in `Passive`, and the batch is done again.

    Sources that are given more than they can read end a batch after `every`, so that each one comes to its end. A batch
    without rows costs as much as an empty epoch, once in `every`; rows of timers that fire meanwhile are shown with it.
    `every` may be said for the run as well.
    """

    every: Duration | None = field(default=None, kw_only=True)
    at_most: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Passive.__post_init__(self)
        if self.every is not None:
            milliseconds(self.every, "every")
        if self.at_most is not None and self.at_most < 1:
            raise ValueError(f"at_most is {self.at_most}; a batch has at least 1 row, or leave it out")

    def wiring(self, interval: int) -> Wiring:
        """Return how the partitions are wired."""
        return InBatches(self.at_most, interval)

    @property
    def rhythm(self) -> Rhythm:
        """Let one batch follow the other."""
        return Rhythm.ONE_BY_ONE

    def check(self, options: CoordinatorOptions, plan: Plan) -> None:
        """Raise `ContradictingOptions` for markers that overtake, and for batches that may be given up while read."""
        del plan
        refuse_overtaking(options, "MicroBatches", "the rows of a batch are under way only until it is complete")
        if options.timeout <= options.interval:
            raise ContradictingOptions(
                f"a batch may be read for as long as every says, {options.interval} ms, and an epoch that takes longer "
                f"than timeout, {options.timeout} ms, is given up; let timeout be longer"
            )
        if options.min_pause:
            raise ContradictingOptions(
                f"min_pause is {options.min_pause} ms, and the scheme is MicroBatches, which reads nothing between two "
                "batches; say by every how far apart they begin"
            )

    def begin(self, parallelism: int) -> PassiveRun:
        """Return its decisions for one run of a job."""
        return PassiveRun(parallelism, Then.PAUSE)
