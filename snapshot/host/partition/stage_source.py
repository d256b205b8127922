"""The source at the beginning of a stage: when it is read, the event times of its rows, and what it announces.

Invariant: nothing is read while an epoch stands at which the source is to pause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from snapshot.cut.frames import Watermark
from snapshot.cut.watermarks import going_on
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.partition.source_times import SourceTimes
from snapshot.host.partition.stage_clock import StageClock
from snapshot.operators.rows import Rows
from snapshot.program.plan import Stage, Step
from snapshot.program.source import Source
from statebackend.ids import Attempt, Epoch

_NOTHING_DUE: Final = float("inf")
_ANNOUNCE: Final = 0.05
"""Sources announce their watermark as often as this at most, in seconds, when they are asked for rows."""
_LEAST_WAIT: Final = 0.001


class StageSource:
    """The source of a stage in one partition and attempt. `wake` is called, in any thread, when it has something."""

    def __init__(
        self,
        stage: Stage,
        source: Source,
        placement: StatePlacement,
        attempt: Attempt,
        wake: Callable[[], None],
        clock: StageClock,
    ) -> None:
        role, most = placement.role, placement.options.batch_rows
        self.splits = SourceRun(stage.uid, source, placement.partition, attempt, role.positions, most, wake, role.ends)
        steps = [target for target in stage.targets() if isinstance(target, Step) and target.event_time is not None]
        self._times = SourceTimes(steps, going_on(role.watermark)) if steps else None
        self._clock = clock
        self._split = ""  # that of the rows that are on their way through the chain
        self._announce_at = 0.0
        self._paused_by: Epoch | None = None

    # --- reading --------------------------------------------------------------------------------------------------

    def pause(self, epoch: Epoch) -> None:
        """Read nothing more, as this epoch is to have all that was read."""
        self._paused_by = epoch

    def abandoned(self, epoch: Epoch) -> None:
        """Read on if the source was paused by this epoch, which was given up."""
        if self._paused_by == epoch:
            self._paused_by = None

    @property
    def paused(self) -> bool:
        """True if nothing is to be read."""
        return self._paused_by is not None

    def read(self, most: int) -> pa.RecordBatch | None:
        """Return the next rows, about `most` at most; None if there are none now."""
        read = self.splits.read(most)
        if read is None:
            return None
        self._split, batch = read
        return batch

    # --- event time -----------------------------------------------------------------------------------------------

    def stamp(self, step: Step, rows: Rows) -> Rows:
        """Return rows that were read last with the event times that a step of the chain gives them."""
        assert self._times is not None
        return self._times.stamped(step, self._split, rows, self._clock.now())

    def watermark(self, *, at_once: bool = False) -> Watermark | None:
        """Return the watermark to announce, if that is due or asked for `at_once`; None if it is still the last one."""
        now = self._clock.monotonic()
        if self._times is None or (now < self._announce_at and not at_once):
            return None
        self._announce_at = now + _ANNOUNCE
        return self._times.watermark(self.splits.splits, self._clock.now())

    # --- waiting --------------------------------------------------------------------------------------------------

    def next_due(self) -> float:
        """Return in how many seconds there may be something to read or to announce; infinity if never by the clock."""
        if self.paused:
            return _NOTHING_DUE
        due = max(_LEAST_WAIT, self.splits.next_in)
        if self._times is not None:
            due = min(due, max(_LEAST_WAIT, self._announce_at - self._clock.monotonic()))
        return due
