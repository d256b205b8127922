"""A report on faults: what was done when, how far from the last epoch, and how long the job took to come back.

Invariant: a recovery belongs to all faults that were done since the recovery before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from recovery.events import Marks, Recovered
from recovery.inject.targets import Kind, Order
from statebackend.ids import Epoch, Partition


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was brought about. `at` is in seconds since 1970."""

    order: Order
    at: float
    worker: str | None
    """The process that it happened to; None if that is the driver."""
    pid: int
    partition: Partition | None
    complete: Epoch | None
    """The last complete epoch then."""
    since_complete_ms: float | None
    """The time since it was complete."""


@dataclass(slots=True)
class Entry:
    """One fault of a report."""

    seconds: float
    """Since the first."""
    order: Order
    done: Injected | None
    refused: str = ""
    """Why it could not be done."""
    marks: Marks | None = None
    """The marks of the recovery from it; None if the job did not have to recover, or has not yet."""


@dataclass(frozen=True, slots=True)
class KindTotals:
    """All faults of one kind. The times are milliseconds from the detection, of those that the job recovered from."""

    kind: Kind
    done: int
    refused: int
    recoveries: int
    output_median: float | None
    """Until the first rows came again."""
    output_worst: float | None
    caught_up_median: float | None
    caught_up_worst: float | None


@dataclass(slots=True)
class Report:
    """A report on faults, as they are done."""

    entries: list[Entry] = field(default_factory=list)
    _open: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Add one more fault."""
        self.entries.append(entry)
        if entry.done is not None:
            self._open.append(entry)

    def recovered(self, event: Recovered) -> None:
        """Note the recovery at all faults since the one before: the job has come back."""
        for entry in self._open:
            entry.marks = event.marks
        self._open.clear()

    def totals(self) -> Sequence[KindTotals]:
        """Return the totals of each kind that there is."""
        kinds = [kind for kind in Kind if any(entry.order.kind is kind for entry in self.entries)]
        return [_totals(kind, [entry for entry in self.entries if entry.order.kind is kind]) for kind in kinds]

    @property
    def all_recovered(self) -> bool:
        """True if no fault was done since the last recovery."""
        return not self._open

    @property
    def done(self) -> int:
        """Return how many faults were brought about."""
        return sum(entry.done is not None for entry in self.entries)


def _totals(kind: Kind, entries: Sequence[Entry]) -> KindTotals:
    marks = [entry.marks for entry in entries if entry.marks is not None]
    output, caught_up = _times(marks, lambda of: of.first_output), _times(marks, lambda of: of.caught_up)
    done = sum(entry.done is not None for entry in entries)
    return KindTotals(
        kind,
        done,
        len(entries) - done,
        len(marks),
        median(output) if output else None,
        max(output, default=None),
        median(caught_up) if caught_up else None,
        max(caught_up, default=None),
    )


def _times(marks: Sequence[Marks], of: Callable[[Marks], float | None]) -> list[float]:
    return [time for time in map(of, marks) if time is not None]
