"""The contract of a recovery scheme: plain data that a user gives, and its decisions in one run of a job.

Invariant: a scheme does nothing itself. The driver asks it, and carries out what it says; what of it concerns
partitions is their wiring, which is sent to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from recovery.decisions.restarts import Cause
from recovery.restart_strategies import Restarts
from snapshot.cut.pauses import Then
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions, Rhythm
from snapshot.host.protocol.messages import Hello
from snapshot.host.protocol.options import Following
from snapshot.host.protocol.wiring import Wiring
from snapshot.ids import Member
from snapshot.program.plan import Plan
from snapshot.replication.agreement import View
from statebackend.durations import Duration
from statebackend.ids import Epoch, Partition

USUAL_INTERVAL: Final = "1s"
"""The interval of epochs if nothing says another."""


class Scheme(Protocol):
    """The way in which a job goes on when processes of it are lost, as plain data."""

    def wiring(self, interval: int) -> Wiring:
        """Return how the partitions are wired; `interval` is that of epochs, in milliseconds."""

    @property
    def every(self) -> Duration | None:
        """Return the interval of epochs; None if the run says it."""

    @property
    def rhythm(self) -> Rhythm:
        """Return how one epoch follows the other."""

    def check(self, options: CoordinatorOptions, plan: Plan) -> None:
        """Raise `ContradictingOptions` if a job with these options and this plan cannot run under it."""

    def processes(self, parallelism: int) -> int:
        """Return how many processes a job of so many partitions is to have."""

    @property
    def standbys(self) -> int:
        """Return how many of them have no role."""

    @property
    def ready(self) -> Following:
        """Return how much of an epoch these have ready."""

    @property
    def spread(self) -> bool:
        """True if partitions may move to other executors."""

    @property
    def agreeing(self) -> bool:
        """True if processes have to compute the same, to the bit: those whose Python is another one are refused."""

    @property
    def restarts(self) -> Restarts:
        """Return how often a broken attempt is followed by another."""

    @property
    def poisoned_after(self) -> int:
        """Return after how many failures of the program in a row the job is given up."""

    def begin(self, parallelism: int) -> SchemeRun:
        """Return its decisions for one run of a job."""


def interval_of(scheme: Scheme, every: Duration | None) -> Duration:
    """Return the interval of a run's epochs; raise `ContradictingOptions` if the run and its scheme both say it."""
    if every is None:
        return USUAL_INTERVAL if scheme.every is None else scheme.every
    if scheme.every is not None:
        raise ContradictingOptions(
            f"every is given twice: as {every!r} for the run, and as {scheme.every!r} for its scheme "
            f"{type(scheme).__name__}; leave out one of them"
        )
    return every


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes that there are for an attempt, and what the driver knows of each.

    `before` has the roles that they had in the attempt before, `slots` the slot that each role was in last: a task that
    is started again in a slot finds the files of the one that was there.
    """

    there: Mapping[str, Hello]
    before: Mapping[str, Member] = field(default_factory=dict)
    slots: Mapping[Member, int] = field(default_factory=dict)
    ready: Mapping[str, Epoch] = field(default_factory=dict)
    """The epoch that a process has ready."""
    only: Mapping[str, Partition] = field(default_factory=dict)
    """The partition of which alone it has that, if not of all."""
    last: str = ""
    """A process that comes after all others, as it could not begin when it was to; empty for none."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The attempt cannot go on: every partition rolls back to the last complete epoch."""

    collapsed: Partition | None = None
    """The partition of which no member is left that could go on alone, if it had several."""


@dataclass(frozen=True, slots=True)
class Masked:
    """The other members go on as if nothing had happened."""

    view: View | None = None
    """The view that the members of its partition are told."""
    moved: bool = False
    """True if another one stands for the partition now."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The other partitions go on, and this one alone restarts, from the last complete epoch: as another member.

    That counts as a restart of the job. One that is not to be, as it is one too many, or the second of the partition
    without an epoch in between, breaks the attempt.
    """

    by: Member


@dataclass(frozen=True, slots=True)
class TriggerPlan:
    """The way in which an epoch is begun: the members `told` hear of it, and their sources then go on like this."""

    told: Sequence[Member]
    then: Then = Then.READ_ON


@runtime_checkable
class Rejoins(Protocol):
    """The decisions of a scheme whose partitions have several members, about those that come later."""

    def joiner(self, processes: Processes, roles: Mapping[str, Member]) -> tuple[Member, str] | None:
        """Return a new member that a partition lacks, and the process for it; None if none is lacked, or none is free.

        `roles` are those that processes have.
        """

    def entered(self, member: Member) -> View:
        """Return the view in which the member is one of its partition, though not in sync."""

    def caught_up(self, member: Member, view: int) -> View | None:
        """Return the view in which the member is in sync, as the primary has said in this view; None if it is over."""

    def not_joining(self, member: Member) -> View | None:
        """Return the view without a member that does not join after all; None if it is in none."""


class SchemeRun(Protocol):
    """The decisions of a scheme in one run of a job, through all its attempts."""

    def place(self, processes: Processes) -> Mapping[Member, str] | None:
        """Return the process of each member of the next attempt; None while there are too few processes."""

    def view(self, partition: Partition) -> View | None:
        """Return the members of a partition as they are told at the start of the attempt; None if it has one."""

    def lost(self, member: Member, cause: Cause) -> Masked | Replaced | Broken:
        """Return what it means that a member of the attempt is gone, or cannot go on."""

    def suspected(self, by: Member, of: Member, view: int) -> Masked | Broken | None:
        """Return what it means that a member cannot reach another one; None if it means nothing any more.

        Where the loss is masked, the member is let go.
        """

    def stands_for(self, member: Member) -> bool:
        """True if what a member says of epochs and commits counts as its partition's word."""

    def trigger(self) -> TriggerPlan:
        """Return how the next epoch of the attempt is begun."""
