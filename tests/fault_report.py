"""What came of faults of different kinds in jobs whose output was compared with the truth.

Invariant: a recovery belongs to all faults since the one before it; rows that are lost or there twice count for
every kind of fault that the job had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from tests.jobs.comparison import Comparison
from tests.jobs.running_job import Event, Phase


class Kind(Enum):
    """What is done to a job."""

    WORKER = "worker"
    """A process is killed, whatever it does, or two at once, or another one while the job comes back."""
    STANDBY = "standby"
    """A process that stands by is killed."""
    DRIVER = "driver"
    """The driver is killed, and started again, perhaps for another parallelism."""
    EXECUTOR = "executor"
    """On a cluster, the executor of a partition is killed, and all that runs in it."""
    HUNG = "hung"
    """A process with a partition hangs, for a short time or until it is taken for lost and wakes up later."""
    CUT_OFF = "cut_off"
    """All connections of a process carry nothing for a time."""
    LINK = "link"
    """The connections between two partitions, or one and the driver, carry nothing for a time."""
    MID_FRAME = "mid_frame"
    """A connection breaks inside a frame."""


@dataclass(slots=True)
class Fault:
    """One of them. Times are in milliseconds."""

    kind: Kind
    phase: Phase
    since_epoch: float | None
    """How long the last epoch had been complete; None if there was none yet."""
    event: int
    """How many events had been heard."""
    output: float | None = None
    """From the detection until rows came again; after the driver was killed, until all partitions were restored."""


@dataclass(slots=True)
class Tally:
    """All faults of a kind."""

    faults: list[Fault] = field(default_factory=list)
    jobs: int = 0
    compared: Comparison = field(default_factory=lambda: Comparison(0))

    def line(self, kind: Kind) -> str:
        distances = [fault.since_epoch for fault in self.faults if fault.since_epoch is not None]
        outputs = [fault.output for fault in self.faults if fault.output is not None]
        found = self.compared
        return (
            f"{kind.value:10}{len(self.faults):6}{self.jobs:6}{found.rows:10}{found.lost:6}{found.twice:6}"
            f"{found.wrong:6}{_milliseconds(distances):>24}{len(outputs):8}{_milliseconds(outputs):>24}"
        )


HEADING = (
    f"{'kind':10}{'faults':>6}{'jobs':>6}{'rows':>10}{'lost':>6}{'twice':>6}{'wrong':>6}"
    f"{'ms after epoch, med max':>24}{'recov.':>8}{'ms to output, med max':>24}"
)


def attribute(faults: Sequence[Fault], events: Sequence[Event]) -> None:
    """Give the faults, in their order, the recoveries from them."""
    waiting: list[Fault] = []
    upcoming = list(faults)
    for number, event in enumerate(events):
        while upcoming and upcoming[0].event <= number:
            waiting.append(upcoming.pop(0))
        if event["event"] == "Recovered":
            marks = event["marks"]
            assert isinstance(marks, dict)
            for fault in waiting:
                fault.output = marks["first_output"] if fault.output is None else fault.output
            waiting = []


def _milliseconds(times: Sequence[float]) -> str:
    return f"{median(times):.0f} {max(times):.0f}" if times else "-"
