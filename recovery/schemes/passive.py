"""Passive recovery: when something dies, everything goes back to the last complete epoch.

Invariant: there is one process for each partition, and no attempt outlives the loss of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recovery.decisions.restarts import Cause
from recovery.restart_strategies import ExponentialDelay, Restarts
from recovery.schemes.placing import place
from recovery.schemes.scheme import Broken, Processes, Replaced, Scheme, TriggerPlan
from snapshot.cut.pauses import Then
from snapshot.epochs.coordinator_options import CoordinatorOptions, Rhythm
from snapshot.host.protocol.options import Following
from snapshot.host.protocol.wiring import ByArrival, Wiring
from snapshot.ids import Member
from snapshot.program.plan import Plan
from statebackend.durations import Duration
from statebackend.ids import Partition


@dataclass(frozen=True, slots=True)
class Passive:
    """Roll back to the last complete epoch.

    `standbys` processes more than there are partitions wait for a role, so that a lost one is replaced at once. What
    they have ready says `following`: "warm", a process alone; "files", the files of the newest complete epoch; or
    "open", the state as it is in that epoch, which takes as much memory as all partitions do together.
    `restarts` says how often a broken attempt is followed by another, and after which pause: by default at once, and
    then later and later while no epoch is completed, for about twenty minutes. `poisoned_after` bounds three things,
    each counted in a row, with no epoch completed in between: failures of the program, which are taken for a record
    that will always fail; silences of one partition's process, taken for a function that never ends; and crashes of it.
    Processes that are killed count only if two in a row die in the very same call for the same row, timer or window;
    while a function is opened they may be killed as often as `restarts` allows.

    With `spread`, on a cluster, partitions do not stay on one executor when another one has a free slot: one at a time
    moves there, as if a standby took over what it has open, so that output stops no longer than with one of those. It
    is no failure, but like one it gives a sink that is not exactly-once some rows again.
    """

    standbys: int = 0
    following: Following | str = Following.FILES
    restarts: Restarts = field(default_factory=lambda: ExponentialDelay(attempts=30))
    poisoned_after: int = 3
    spread: bool = True

    def __post_init__(self) -> None:
        if self.standbys < 0:
            raise ValueError(f"standbys is {self.standbys}; it cannot be negative")
        known = {kind.value: kind for kind in Following}
        if not isinstance(self.following, Following) and self.following not in known:
            listed = ", ".join(repr(kind) for kind in known)
            raise ValueError(f"following is {self.following!r}; standbys can follow in these ways: {listed}")

    @property
    def agreeing(self) -> bool:
        """Return False, as no process computes what another one does."""
        return False

    def wiring(self, interval: int) -> Wiring:
        """Return how partitions are wired."""
        del interval
        return ByArrival()

    @property
    def every(self) -> Duration | None:
        """Return None, as the run says how often there is an epoch."""
        return None

    @property
    def rhythm(self) -> Rhythm:
        """Let epochs overlap."""
        return Rhythm.OVERLAPPING

    def check(self, options: CoordinatorOptions, plan: Plan) -> None:
        """Take any options and plan."""

    @property
    def ready(self) -> Following:
        """Return how much standbys have ready."""
        return Following(self.following)

    def processes(self, parallelism: int) -> int:
        """Return how many processes a job of so many partitions is to have."""
        return parallelism + self.standbys

    def begin(self, parallelism: int) -> PassiveRun:
        """Return its decisions for one run of a job."""
        return PassiveRun(parallelism)


class PassiveRun:
    """The decisions of `Passive` in one run of a job. `then` says how sources go on after their cut."""

    def __init__(self, parallelism: int, then: Then = Then.READ_ON) -> None:
        self._then = then
        self._members = tuple(Member(Partition(index)) for index in range(parallelism))

    def place(self, processes: Processes) -> Mapping[Member, str] | None:
        """Return the process of each partition; None while there are too few processes."""
        return place(self._members, processes)

    def lost(self, member: Member, cause: Cause) -> Replaced | Broken:
        """Break the attempt, whatever has happened to whom."""
        del member, cause
        return Broken()

    def view(self, partition: Partition) -> None:
        """Return None, as a partition has one member."""
        del partition

    def suspected(self, by: Member, of: Member, view: int) -> None:
        """Do nothing, as no member is asked of another one."""
        del by, of, view

    def stands_for(self, member: Member) -> bool:
        """Return True: a partition has no other member."""
        del member
        return True

    def trigger(self) -> TriggerPlan:
        """Tell all partitions."""
        return TriggerPlan(self._members, self._then)


def usual_scheme(standbys: int = 0) -> Scheme:
    """Return the scheme of a job for which none is given."""
    return Passive(standbys)
