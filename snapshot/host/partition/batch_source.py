"""The source at the beginning of a stage that works batch by batch: it is read at an epoch's trigger, before its cut.

Invariant: which rows are in a batch is decided by `snapshot.cut.batches` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from snapshot.cut.batches import Batches
from snapshot.cut.pauses import Then
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.partition.stage_source import StageSource
from snapshot.program.plan import Stage
from snapshot.program.source import Source
from statebackend.ids import Attempt, Epoch

_LOOK: Final = 0.05
"""Seconds until a source is looked at again whose batch is not over: the driver may have had no split for it."""


class BatchSource(StageSource):
    """Reads what is there when an epoch is triggered: `at_most` rows, for `longest` milliseconds."""

    def __init__(
        self,
        stage: Stage,
        source: Source,
        placement: StatePlacement,
        attempt: Attempt,
        wake: Callable[[], None],
        clock: StageClock,
        at_most: int | None,
        longest: int,
    ) -> None:
        super().__init__(stage, source, placement, attempt, wake, clock)
        self._batches = Batches(at_most, longest / 1000)

    def triggered(self, epoch: Epoch, then: Then) -> None:
        """Begin to read the epoch's batch."""
        self._batches.triggered(epoch, then, self._clock.monotonic())

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Let the next batch begin at the next trigger."""
        self._batches.over(epoch, complete=complete)

    @property
    def gathers(self) -> bool:
        """True while the batch is read; a source that has ended is cut before its end is sent on."""
        return self._batches.is_read and not self.ended

    @property
    def reads(self) -> bool:
        """True while the batch is read, and when the source has ended."""
        return self.gathers or (self.ended and self._batches.may_end)

    def read(self, most: int) -> pa.RecordBatch | None:
        """Return the next rows of the batch, about `most` at most; None if there are none now."""
        batch = super().read(self._batches.left(most))
        if batch is None and self.splits.is_caught_up:
            self._batches.found_nothing()
        else:
            self._batches.took(0 if batch is None else len(batch), self._clock.monotonic())
        return batch

    def next_due(self) -> float:
        """Return in how many seconds there may be something to read, or the batch is over."""
        due = super().next_due()
        return min(due, _LOOK, self._batches.next_due(self._clock.monotonic())) if self.gathers else due
