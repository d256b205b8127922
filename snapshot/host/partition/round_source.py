"""The source of a stage whose partition works in rounds: what it reads is handed out when its round is closed.

Invariant: a round has whole readings, and a cut is made between two rounds; so a cut has exactly the rows of the rounds
before it. Which readings a round has depends on time; what the stage makes of them does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from snapshot.cut.frames import Watermark
from snapshot.cut.pauses import Then
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.partition.stage_source import StageSource
from snapshot.program.plan import Stage
from snapshot.program.source import Source
from snapshot.replication.pacing import Pacing
from statebackend.ids import Attempt, Epoch


class RoundSource(StageSource):
    """Closes a round with each tick, and earlier if it has as many rows as the outputs have room for.

    Rows are handed out by splits in the order of their names, in batches of `batch_rows`; then the watermark is
    announced and the round is closed. `driver_time` is the driver's clock, in milliseconds.
    """

    def __init__(
        self,
        stage: Stage,
        source: Source,
        placement: StatePlacement,
        attempt: Attempt,
        wake: Callable[[], None],
        clock: StageClock,
        *,
        tick: int,
        driver_time: Callable[[], int],
    ) -> None:
        super().__init__(stage, source, placement, attempt, wake, clock)
        assert clock.close_round is not None
        self._close_round = clock.close_round
        self._batch_rows = placement.options.batch_rows
        self._tick = tick
        self._driver_time = driver_time
        self._pacing = Pacing(tick, driver_time())
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._count = 0
        self._splits: tuple[str, ...] | None = None  # as the last round that was handed out says; None: those of now
        self._number: int | None = None  # of the round that is being handed out
        self._batches: deque[tuple[str, pa.RecordBatch]] = deque()

    @property
    def reads(self) -> bool:
        """Return True, as rounds go on while nothing is read."""
        return True

    @property
    def owes(self) -> bool:
        """True if a round has not been handed out whole."""
        return self._number is not None

    @property
    def ended(self) -> bool:
        """True if nothing will ever be read any more, and all that was read has been handed out."""
        return self.splits.ended and not self._count and self._number is None

    def triggered(self, epoch: Epoch, then: Then) -> None:
        """Let the epoch have all that was read: its round is closed before the cut."""
        super().triggered(epoch, then)
        if self._number is None:
            self._hand_out(self._pacing.close(self._driver_time()))

    def read(self, most: int) -> pa.RecordBatch | None:
        """Return the next rows of the round that is being handed out; or read for the next one, and return no rows."""
        if self._number is None:
            now = self._driver_time()
            is_late = now >= self._pacing.next_at + self._tick
            if self._count < most and not is_late:
                batch = self._read_some(most - self._count)
                if batch is not None:
                    return batch.slice(0, 0)
            if now >= self._pacing.next_at or self._count >= most or (self.splits.ended and self._count):
                self._hand_out(self._pacing.close(now))
        if not self._batches:
            return None
        self._split, batch = self._batches.popleft()
        return batch

    def _read_some(self, most: int) -> pa.RecordBatch | None:
        read = None if self._pauses.stands_still else self.splits.read(most)
        if read is None:
            return None
        split, batch = read
        if len(batch):
            self._held.setdefault(split, []).append(batch)
            self._count += len(batch)
        return batch

    def _hand_out(self, number: int) -> None:
        held, self._held, self._count = self._held, {}, 0
        self._begin_round(number, held)

    def _begin_round(self, number: int, held: Mapping[str, Sequence[pa.RecordBatch]]) -> None:
        self._number = number
        self._close_round(number)
        for split, pieces in sorted(held.items()):
            rows = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
            for start in range(0, len(rows), self._batch_rows):
                self._batches.append((split, rows.slice(start, self._batch_rows)))

    def watermark(self, *, at_once: bool = False) -> Watermark | None:
        """Return the watermark to announce, once in a round, or if asked for `at_once`; None if it is the last one."""
        if self._times is None or not (at_once or (self._number is not None and not self._batches)):
            return None
        splits = self.splits.splits if self._splits is None else self._splits
        return self._times.watermark(splits, self._clock.now())

    def closes(self) -> int | None:
        """Return the number of the round that is to be closed now, as all of it was handed out; None if none is."""
        if self._batches:
            return None
        number, self._number = self._number, None
        return number

    def closes_last(self) -> int:
        """Return the number of the round that the end closes."""
        return self._pacing.close(self._driver_time())

    def next_due(self) -> float:
        """Return in how many seconds the round is to be closed."""
        return max(0.0, (self._pacing.next_at - self._driver_time()) / 1000)
