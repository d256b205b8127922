"""The source at the beginning of a stage: when it is read, the event times of its rows, and what it announces.

Invariant: what a cut says of the splits is how far the rows go that were handed out before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import pyarrow as pa

from snapshot.cut.frames import Marker, Watermark
from snapshot.cut.pauses import Pauses, Then
from snapshot.cut.watermarks import going_on
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.partition.source_times import SourceTimes
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.protocol.stage_now import SourceNow
from snapshot.operators.rows import Rows
from snapshot.program.plan import Stage, Step
from snapshot.program.source import Source
from snapshot.tree.manifest import SplitPosition
from statebackend.ids import Attempt, Epoch

_NOTHING_DUE: Final = float("inf")
_ANNOUNCE: Final = 0.05
"""Sources announce their watermark as often as this at most, in seconds, when they are asked for rows."""
_LEAST_WAIT: Final = 0.001


class Pacing(Protocol):
    """The source of a stage at work: it says when it is read, what it announces, and what a cut of it has."""

    splits: SourceRun

    def triggered(self, epoch: Epoch, then: Then) -> None:
        """Take the coordinator's word that an epoch begins; the source is cut right after this."""

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Take the coordinator's word that an epoch is complete, or was given up."""

    def drain(self) -> None:
        """Take the driver's word that the source is to end where it is."""

    @property
    def reads(self) -> bool:
        """True if `read` is to be called now, as far as the outputs have room."""

    @property
    def gathers(self) -> bool:
        """True if an epoch was triggered whose cut waits for rows that are still to be read."""

    @property
    def owes(self) -> bool:
        """True if there are rows that have to be handed out before a cut, or a round that has to be closed."""

    @property
    def ended(self) -> bool:
        """True if nothing will ever be handed out any more."""

    def read(self, most: int) -> pa.RecordBatch | None:
        """Return the next rows, about `most` at most; None if there are none now."""

    def closes(self) -> int | None:
        """Return the number of the round that is to be closed now, with all that was handed out; None if none is."""

    def closes_last(self) -> int:
        """Return the number of the round that the end closes; 0 where there are no rounds."""

    def marker(self) -> Marker | None:
        """Return the marker that all was handed out before, once, if it is the source that places markers."""

    def positions(self) -> tuple[SplitPosition, ...]:
        """Return how far the rows go that were handed out: the source's part of a cut."""

    def stamp(self, step: Step, rows: Rows) -> Rows:
        """Return rows that were read last with the event times that a step of the chain gives them."""

    def watermark(self, *, at_once: bool = False) -> Watermark | None:
        """Return the watermark to announce, if that is due or asked for `at_once`; None if it is still the last one."""

    def next_due(self) -> float:
        """Return in how many seconds there may be something to read or to announce; infinity if never by the clock."""

    def now(self) -> SourceNow:
        """Return where the source is, right behind a marker."""

    def go_on(self, now: SourceNow) -> None:
        """Begin where another process is."""


class StageSource:
    """Reads whenever there is room, and announces its watermark now and then. What was read is handed out at once.

    `wake` is called, in any thread, when a split that was waited for has something.
    """

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
        self._pauses = Pauses()

    # --- reading --------------------------------------------------------------------------------------------------

    def triggered(self, epoch: Epoch, then: Then) -> None:
        """Go on after the cut as the epoch's trigger says."""
        self._pauses.triggered(epoch, then)

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Read on if the source stood still for this epoch alone."""
        self._pauses.over(epoch, complete=complete)

    @property
    def reads(self) -> bool:
        """True if the source is to be read now, as far as its outputs have room."""
        return not self._pauses.stands_still

    @property
    def gathers(self) -> bool:
        """Return False: the cut waits for nothing."""
        return False

    @property
    def owes(self) -> bool:
        """Return False: what was read was handed out."""
        return False

    @property
    def ended(self) -> bool:
        """True if nothing will ever be read any more."""
        return self.splits.ended

    def closes(self) -> int | None:
        """Return None, as there are no rounds."""
        return None

    def closes_last(self) -> int:
        """Return 0, as there are no rounds."""
        return 0

    def marker(self) -> Marker | None:
        """Return None: the driver's word is the marker."""
        return None

    def drain(self) -> None:
        """Read nothing more, and end."""
        self.splits.drain()

    def read(self, most: int) -> pa.RecordBatch | None:
        """Return the next rows, about `most` at most; None if there are none now."""
        read = self.splits.read(most)
        if read is None:
            return None
        self._split, batch = read
        return batch

    def positions(self) -> tuple[SplitPosition, ...]:
        """Return how far each split was read."""
        return self.splits.positions()

    def now(self) -> SourceNow:
        """Return where the source is, right behind a marker."""
        return SourceNow(None if self._times is None else self._times.now(), self.splits.splits)

    def go_on(self, now: SourceNow) -> None:
        """Begin where another process is."""
        if self._times is not None and now.times is not None:
            self._times.go_on(now.times)

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
        if not self.reads:
            return _NOTHING_DUE
        due = max(_LEAST_WAIT, self.splits.next_in)
        if self._times is not None:
            due = min(due, max(_LEAST_WAIT, self._announce_at - self._clock.monotonic()))
        return due
