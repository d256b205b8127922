"""Synchronous epochs: sources stop at the cut, and go on when the epoch is complete.

Invariant: no row that was read after a cut is processed while the cut's epoch is under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.schemes.passive import Passive, PassiveRun
from snapshot.cut.frames import MarkerMode
from snapshot.cut.pauses import Then
from snapshot.epochs.coordinator_options import ContradictingOptions, CoordinatorOptions, Rhythm
from snapshot.program.plan import Plan
from statebackend.durations import Duration, milliseconds


@dataclass(frozen=True, slots=True)
class Synchronous(Passive):
    """Stop, snapshot, go on: everything is stored while nothing new is read, and a failure rolls back as in `Passive`.

    At an epoch's trigger sources stop. What they have read is processed to the end; when the state is stored and output
    is prepared, the epoch is complete, and sources go on; they do so too if the epoch is given up. The snapshots are
    the incremental ones that `Passive` takes while rows go on, so that the difference between the two is that overlap.

    `every` is the time from one trigger to the next, if the run does not say it. An epoch that takes longer than half
    of that puts the next one off: sources read for at least as long as they stood still.
    """

    every: Duration | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Passive.__post_init__(self)
        if self.every is not None:
            milliseconds(self.every, "every")

    @property
    def rhythm(self) -> Rhythm:
        """Let sources read between two epochs for as long as they stood still."""
        return Rhythm.WITH_REST

    def check(self, options: CoordinatorOptions, plan: Plan) -> None:
        """Raise `ContradictingOptions` for markers that overtake, as nothing is in their way."""
        del plan
        refuse_overtaking(options, "Synchronous", "rows are under way only until the marker has come through")

    def begin(self, parallelism: int) -> PassiveRun:
        """Return its decisions for one run of a job."""
        return PassiveRun(parallelism, Then.PAUSE)


def refuse_overtaking(options: CoordinatorOptions, scheme: str, why: str) -> None:
    """Raise `ContradictingOptions` if markers may overtake rows, or rows of the next epoch count for this one."""
    if options.mode is not MarkerMode.ALIGNED:
        given = f"mode is {options.mode.value}"
    elif options.alignment_timeout is not None:
        given = "alignment_timeout is set"
    else:
        return
    raise ContradictingOptions(
        f"{given}, and the scheme is {scheme}: sources stand still behind a marker, so {why}, and an epoch has nothing "
        "to overtake; leave it out"
    )
