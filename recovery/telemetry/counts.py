"""The counts of a run: how often each kind of event came, and how long things took.

Invariant: a count never goes down while the run lasts. It is a decision about events alone, without clock or threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from recovery import events as log
from recovery.events import Marks
from statebackend.ids import Partition

BOUNDS: Final = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4)
"""The upper bounds of the classes into which times are counted, in milliseconds; one more class is above them."""

PHASES: Final = tuple(one.name for one in fields(Marks))[1:]
"""The phases of a recovery, each ending with its mark."""


@dataclass(slots=True)
class Times:
    """Times in milliseconds, counted by their class."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, milliseconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(BOUNDS, milliseconds)] += 1
        self.total += milliseconds

    def cumulative(self) -> Sequence[tuple[str, int]]:
        """Return, for each bound, how many were not above it."""
        sum_of = 0
        found: list[tuple[str, int]] = []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            sum_of += count
            found.append((bound, sum_of))
        return found


class Counts:
    """The events of one run, counted."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        """All of them, by their names."""
        self.failures: Counter[str] = Counter()
        """Attempts that failed, by cause."""
        self.abandoned: Counter[str] = Counter()
        """Epochs that will never be, by reason."""
        self.faults: Counter[str] = Counter()
        """Faults that were injected, by what was asked for."""
        self.epochs: dict[str, Times] = {name: Times() for name in ("duration", "alignment", "sync", "async")}
        self.state_bytes = 0
        """Bytes of state that complete epochs have stored."""
        self.channel_bytes = 0
        """Bytes of data in flight that they have stored."""
        self.phases: dict[str, Times] = {phase: Times() for phase in PHASES}
        """The times from the detection of a failure until each phase of its recovery was over."""
        self.removed_files = 0
        self.orphans = 0
        self.orphan_bytes = 0
        self.died: Counter[Partition] = Counter()
        """Processes that died, by the partition that they had."""

    def heard(self, event: log.AnyEvent) -> None:
        """Count an event."""
        self.events[type(event).__name__] += 1
        match event:
            case log.EpochCompleted():
                self.epochs["duration"].add(event.since_trigger_ms)
                self.epochs["alignment"].add(event.alignment_ms)
                self.epochs["sync"].add(event.sync_ms)
                self.epochs["async"].add(event.async_ms)
                self.state_bytes += sum(one.state_bytes for one in event.partitions)
                self.channel_bytes += event.channel_bytes
            case log.EpochAbandoned(reason=reason):
                self.abandoned[reason] += 1
            case log.AttemptFailed(cause=cause):
                self.failures[cause] += 1
            case log.Recovered(marks=marks):
                for phase in PHASES:
                    reached: float | None = getattr(marks, phase)
                    if reached is not None:
                        self.phases[phase].add(reached)
            case log.WorkerDied(partition=partition):
                self.died[partition] += 1
            case log.FaultInjected(order=order):
                self.faults[order.split(" ", 1)[0]] += 1
            case log.EpochsRemoved(files=files):
                self.removed_files += files
            case log.OrphansDeleted(files=files, bytes=size):
                self.orphans += files
                self.orphan_bytes += size
            case _:
                pass
