"""The source at the beginning of a stage whose frames are acknowledged: it waits for that with all it says of itself.

Invariant: a cut has the positions of the oldest rows that are not acknowledged; a watermark is announced, and the end,
when all rows before it are. So rows that are read again, or sent again, are never late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from snapshot.cut.frames import Watermark
from snapshot.host.partition.acks import PartitionAcks
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.partition.stage_source import StageSource
from snapshot.program.plan import Stage
from snapshot.program.source import Source
from snapshot.tree.manifest import SplitPosition
from statebackend.ids import Attempt

_TOGETHER: Final = 512
"""So many rows have one position, if more come at once than can be sent."""


class AckedSource(StageSource):
    """Reads while there is room, and not too much is unacknowledged."""

    def __init__(
        self,
        stage: Stage,
        source: Source,
        placement: StatePlacement,
        attempt: Attempt,
        wake: Callable[[], None],
        clock: StageClock,
        acks: PartitionAcks,
    ) -> None:
        super().__init__(stage, source, placement, attempt, wake, clock)
        self._acks = acks.of(stage.uid)
        self._rows = 0  # that were read since all had gone out
        self._is_closing = False
        self._later: deque[tuple[int | None, Watermark]] = deque()

    @property
    def reads(self) -> bool:
        """True if the source is to be read now, as far as its outputs have room."""
        return super().reads and (not self._acks.is_full or self.splits.ended)

    @property
    def ended(self) -> bool:
        """True if nothing will ever be read any more, and all is acknowledged."""
        self._settle()
        return self.splits.ended and not self._acks.waits

    def read(self, most: int) -> pa.RecordBatch | None:
        """Return the next rows, about `most` at most; None if there are none now."""
        self._settle()
        if self.splits.ended:
            return None
        batch = super().read(most)
        if batch is not None and len(batch):
            self._acks.readings.read(self._split, self.splits.read_from)
            self._rows += len(batch)
        return batch

    def closes(self) -> int | None:
        """Return 0 if all that was read is to go out now: there is no more to be read, or it is enough."""
        self._settle()
        if self._acks.readings.is_open and (self._rows >= _TOGETHER or not self._has_more):
            self._is_closing = True
            return 0
        return None

    def positions(self) -> tuple[SplitPosition, ...]:
        """Return from where each split is to be read again; when a cut is made, all that was read has gone out."""
        self._is_closing = True
        self._settle()
        return self.splits.positions(self._acks.readings.positions())

    def watermark(self, *, at_once: bool = False) -> Watermark | None:
        """Return the last watermark before which all rows are acknowledged, if it is another one than before."""
        self._settle()
        new = super().watermark(at_once=at_once)
        if new is not None:
            self._later.append((None if self._acks.readings.is_open else self._acks.sent, new))
        due = None
        while self._later and (place := self._later[0][0]) is not None and place <= self._acks.acknowledged:
            _, due = self._later.popleft()
        return due

    @property
    def _has_more(self) -> bool:
        return self.splits.next_in <= 0

    def _settle(self) -> None:
        """Take note that all has gone out, if that was asked for."""
        if self._is_closing:
            self._is_closing = False
            self._rows = 0
            self._acks.gone_out()
            sent = self._acks.sent
            self._later = deque((sent if place is None else place, watermark) for place, watermark in self._later)
