"""Active recovery: the work of a partition is done in an order that any replica of it would keep.

Invariant: what a partition does follows from what its channels contain; a scheme is plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.restart_strategies import Restarts
from recovery.schemes.active_run import ActiveRun
from recovery.schemes.passive import Passive
from recovery.schemes.scheme import SchemeRun
from snapshot.cut.frames import MarkerMode
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions, Rhythm
from snapshot.host.protocol.options import Following
from snapshot.host.protocol.wiring import InRounds, Wiring
from snapshot.program.plan import Plan
from snapshot.program.source import MayDiffer
from statebackend.durations import Duration, milliseconds

_MOST: int = 3


@dataclass(frozen=True, slots=True)
class Active:
    """Take input in rounds, so that a job's output follows from its sources' rounds, batch by batch.

    Sources close a round each `tick`, all with the same number, and every stage takes a round whole from all its
    inputs: the rows in the order of the plan's edges and of their senders, then event time, then timers in processing
    time, which is that of the round. So neither the order nor the batches depend on when something arrived. A row waits
    for the end of its round once, at its source; a tick is the time that this takes at most.

    `replicas` is the number of processes that do the work of each partition, 3 at most. With 1 a loss is what it is
    under `fallback`, whose standbys and restarts count. With more the loss of one is masked: the others go on, and
    sinks that promise it have every row once; another process, a standby if there is one, comes to take the lost one's
    place meanwhile. The loss of all replicas of a partition rolls back, as under `fallback`.
    """

    replicas: int = 1
    tick: Duration = "5ms"
    fallback: Passive = field(default_factory=Passive)

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= _MOST:
            raise ValueError(
                f"replicas is {self.replicas}; it can be 1, which is order alone: no loss is masked, or up to {_MOST}"
            )
        if milliseconds(self.tick, "tick") < 1:
            raise ValueError(f"tick is {self.tick!r}; it must be at least 1ms")

    def wiring(self, interval: int) -> Wiring:
        """Return how the partitions are wired."""
        del interval
        return InRounds(milliseconds(self.tick), self.replicas)

    @property
    def agreeing(self) -> bool:
        """Return True, as the output is to follow from the rounds alone, whatever process makes it."""
        return True

    @property
    def every(self) -> Duration | None:
        """Return None, as the run says how often there is an epoch."""
        return None

    @property
    def rhythm(self) -> Rhythm:
        """Return the one of the fallback: epochs overlap."""
        return self.fallback.rhythm

    def check(self, options: CoordinatorOptions, plan: Plan) -> None:
        """Raise `ContradictingOptions` if what a marker overtakes, or a source gives, would depend on the moment."""
        if options.mode is not MarkerMode.ALIGNED or options.alignment_timeout is not None:
            given = (
                "alignment_timeout is set" if options.mode is MarkerMode.ALIGNED else f"mode is {options.mode.value}"
            )
            raise ContradictingOptions(
                f"{given}, and the scheme is Active: what such markers overtake depends on the moment at which they "
                "arrive, and in rounds nothing may; markers wait for nothing there, so leave it out"
            )
        for uid, source in plan.sources.items():
            if isinstance(source, MayDiffer) and source.why_it_may_differ:
                raise ContradictingOptions(
                    f"the source {uid} cannot be read under the scheme Active: {source.why_it_may_differ}"
                )

    def processes(self, parallelism: int) -> int:
        """Return how many processes a job of so many partitions is to have."""
        return self.fallback.processes(parallelism * self.replicas)

    @property
    def standbys(self) -> int:
        """Return how many of them have no role."""
        return self.fallback.standbys

    @property
    def ready(self) -> Following:
        """Return how much of an epoch these have ready."""
        return self.fallback.ready

    @property
    def spread(self) -> bool:
        """True if partitions may move to other executors."""
        return self.fallback.spread and self.replicas == 1

    @property
    def restarts(self) -> Restarts:
        """Return how often a broken attempt is followed by another."""
        return self.fallback.restarts

    @property
    def poisoned_after(self) -> int:
        """Return after how many failures of the program in a row the job is given up."""
        return self.fallback.poisoned_after

    def begin(self, parallelism: int) -> SchemeRun:
        """Return its decisions for one run of a job."""
        return self.fallback.begin(parallelism) if self.replicas == 1 else ActiveRun(parallelism, self.replicas)
