"""The source of a stage whose partition has several members: all of them hand out the same rows in the same rounds.

Invariant: each member reads the splits itself, and hands out what was decided, cut at the row. The member that leads
proposes only rounds that end where a reading of its own ended; so it knows the positions of a cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from snapshot.cut.frames import Marker
from snapshot.cut.pauses import Then
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.round_source import RoundSource
from snapshot.host.partition.source_agreement import SourceAgreement
from snapshot.host.partition.source_run import at_its_beginning
from snapshot.host.partition.stage_clock import StageClock
from snapshot.host.protocol.stage_now import SourceNow
from snapshot.program.plan import Stage
from snapshot.program.source import Source
from snapshot.replication.decisions import Decision, MarkerBehind, SourceEnd, SourceRound
from snapshot.tree.manifest import SplitPosition
from statebackend.ids import NO_EPOCH, Attempt, Epoch

_UNDECIDED: Final = 4
"""So many decisions may be under way; then rounds become larger."""
_NONE: Final[Mapping[str, int]] = {}


class AgreedSource(RoundSource):
    """Proposes a round with each tick if its member leads, and hands out the rounds that were decided."""

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
        agreement: SourceAgreement,
    ) -> None:
        super().__init__(stage, source, placement, attempt, wake, clock, tick=tick, driver_time=driver_time)
        self._uid = stage.uid
        self._agreement = agreement
        self._rows = _SplitRows()
        self._decided: deque[Decision] = deque()  # and not handed out
        self._ends: dict[str, int] = {}  # of the rounds that were decided, and while it leads proposed
        self._splits: tuple[str, ...] = self.splits.splits
        self._last_number = -1
        self._ending = False  # the end was proposed
        self._at_end: tuple[SplitPosition, ...] = ()
        self._end: SourceEnd | None = None
        self._draining = False
        self._positions: dict[Epoch, tuple[SplitPosition, ...]] = {}
        self._at_cut: tuple[SplitPosition, ...] = ()
        self._over = NO_EPOCH
        agreement.add(stage.uid, self)

    # --- what the driver and the other members say ----------------------------------------------------------------

    def triggered(self, epoch: Epoch, then: Then) -> None:
        """Refuse, as markers come with what was decided."""
        del then
        raise AssertionError(f"the marker of epoch {epoch} comes with what the members agree on")

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Read on if the source stood still for this epoch alone; this may be heard before its marker."""
        super().over(epoch, complete=complete)
        self._over = max(self._over, epoch)

    def drain(self) -> None:
        """End where the rows that were read end, as soon as this member leads."""
        self._draining = True

    def decided(self, decision: Decision) -> None:
        """Hand out what was decided when it is here."""
        self._decided.append(decision)
        self._note(decision)

    def lead(self, waiting: Sequence[Decision]) -> None:
        """Propose rounds from now on, behind those that were proposed and not decided yet."""
        for decision in waiting:
            self._note(decision)
        self._pacing.passed(self._last_number)

    def _note(self, decision: Decision) -> None:
        match decision:
            case SourceRound(_, number, ends):
                self._ends.update((split, end) for split, end in ends if end > self._ends.get(split, 0))
                self._last_number = max(self._last_number, number)
            case SourceEnd(_, number, positions):
                self._ending, self._last_number, self._at_end = True, number, positions
            case MarkerBehind():
                pass

    # --- proposing ------------------------------------------------------------------------------------------------

    @property
    def has_what_was_proposed(self) -> bool:
        """True if all rows of the rounds that were proposed have been read here."""
        return self._rows.has(self._ends)

    def close_for(self, epoch: Epoch, then: Then) -> SourceRound | None:
        """Return the round that has all that was read, and note that the epoch is cut behind it; None at the end."""
        closing = None if self._ending else self._round(self._driver_time())
        self._positions[epoch] = self._behind_the_end() if self._ending else self.splits.positions()
        if epoch > self._over:
            self._pauses.triggered(epoch, then)
        return closing

    def _behind_the_end(self) -> tuple[SplitPosition, ...]:
        """Return where splits were at the end, with those that were assigned since then: no row of these is handed out.

        A drained source is told of splits until the driver has heard of its end; another run reads them.
        """
        there = {at.split for at in self._at_end}
        later = [at_its_beginning(at.split) for at in self.splits.positions() if at.split not in there]
        return (*self._at_end, *later)

    def _round(self, now: int) -> SourceRound:
        ends = tuple((split, end) for split, end in self._rows.ends() if end > self._ends.get(split, 0))
        made = SourceRound(self._uid, self._pacing.close(now), ends, self.splits.splits)
        self._note(made)
        return made

    def _propose_if_due(self, now: int, most: int) -> None:
        agreement = self._agreement
        if not agreement.leads or not self.has_what_was_proposed:
            return
        agreement.propose_markers()
        if self._ending or agreement.undecided >= _UNDECIDED:
            return
        if self._draining:
            self.splits.drain()
        if self._pauses.stands_still:  # what it has read ahead, before it came to lead, waits as well
            if now >= self._pacing.next_at:
                agreement.propose(self._empty_round(now))
        elif self.splits.ended:
            agreement.propose(self._round(now))
            self._propose_end(now)
        elif now >= self._pacing.next_at or self._rows.ahead(self._ends) >= most:
            agreement.propose(self._round(now))

    def _empty_round(self, now: int) -> SourceRound:
        made = SourceRound(self._uid, self._pacing.close(now), (), self.splits.splits)
        self._note(made)
        return made

    def _propose_end(self, now: int) -> None:
        end = SourceEnd(self._uid, self._pacing.close(now), self.splits.positions())
        self._note(end)
        self._agreement.propose(end)

    # --- reading and handing out ----------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True if all that was decided has been handed out, and that it ends with it."""
        return self._end is not None

    def read(self, most: int) -> pa.RecordBatch | None:
        """Return the next rows of the round that is being handed out; or read for the next ones, and return no rows."""
        if self._number is None:
            self._hand_out_next()
        if self._number is None:
            now = self._driver_time()
            is_late = now >= self._pacing.next_at + self._tick
            proposes_first = is_late and self._agreement.leads and self.has_what_was_proposed
            if not proposes_first and (batch := self._read_ahead(most)) is not None:
                return batch.slice(0, 0)
            self._propose_if_due(now, most)
            self._hand_out_next()
            # What is proposed is decided later, so a source that is late at each turn would never read otherwise.
            if proposes_first and not self.owes and (batch := self._read_ahead(most)) is not None:
                return batch.slice(0, 0)
        if not self._batches:
            return None
        self._split, batch = self._batches.popleft()
        return batch

    def _read_ahead(self, most: int) -> pa.RecordBatch | None:
        room = most - self._rows.ahead(self._ends)
        if self._pauses.stands_still and self._agreement.leads:
            return None
        if (room <= 0 or self._ending) and self._rows.has(self._ends):
            return None
        read = self.splits.read(room if room > 0 else most)
        if read is None:
            return None
        split, batch = read
        self._rows.add(split, batch)
        return batch

    def _hand_out_next(self) -> None:
        if not self._decided or self._end is not None:
            return
        match self._decided[0]:
            case SourceRound(_, number, ends, splits):
                if self._rows.has(dict(ends)):
                    self._decided.popleft()
                    self._splits = splits
                    self._begin_round(number, {split: self._rows.take(split, end) for split, end in ends})
            case SourceEnd() as end:
                self._decided.popleft()
                self._end = end
            case MarkerBehind():
                pass

    def marker(self) -> Marker | None:
        """Return the marker behind which nothing was handed out yet, once."""
        if self._number is not None or not self._decided or not isinstance(self._decided[0], MarkerBehind):
            return None
        behind = self._decided[0]
        self._decided.popleft()
        epoch = behind.marker.epoch
        if epoch > self._over:
            self._pauses.triggered(epoch, behind.then)
        self._at_cut = self._positions.pop(epoch, ())
        return behind.marker

    def positions(self) -> tuple[SplitPosition, ...]:
        """Return how far the rows go before the last marker; nothing if another member has placed it."""
        return self._at_cut

    def now(self) -> SourceNow:
        """Return where the source is, right behind a marker: how much it has handed out, not how far it has read."""
        return replace(super().now(), splits=self._splits, handed_out=self._rows.taken, end=self._end)

    def go_on(self, now: SourceNow) -> None:
        """Begin where another member is."""
        super().go_on(now)
        self._splits = now.splits
        self._ends = dict(now.handed_out)
        self._rows = _SplitRows(now.handed_out)
        if now.end is not None:
            self._end = now.end
            self._note(now.end)

    def closes_last(self) -> int:
        """Return the number of the round that the end closes."""
        assert self._end is not None
        return self._end.number

    def next_due(self) -> float:
        """Return in how many seconds the round is to be closed, or a split may have more."""
        agreement = self._agreement
        if agreement.leads and agreement.undecided < _UNDECIDED and self.has_what_was_proposed:
            return super().next_due()
        return self._tick / 1000


class _SplitRows:
    """The rows of each split that were read and not handed out, and how many there have been."""

    def __init__(self, taken: Mapping[str, int] = _NONE) -> None:
        self._pieces: dict[str, deque[pa.RecordBatch]] = {}
        self._read: dict[str, int] = dict(taken)
        self._taken: dict[str, int] = dict(taken)

    @property
    def taken(self) -> Mapping[str, int]:
        """Return how many rows of each split were taken."""
        return dict(self._taken)

    def add(self, split: str, batch: pa.RecordBatch) -> None:
        """Add rows that were read."""
        if len(batch):
            self._pieces.setdefault(split, deque()).append(batch)
            self._read[split] = self._read.get(split, 0) + len(batch)

    def ends(self) -> Iterable[tuple[str, int]]:
        """Return for each split how many rows were read."""
        return sorted(self._read.items())

    def has(self, ends: Mapping[str, int]) -> bool:
        """True if so many rows of each split were read."""
        return all(self._read.get(split, 0) >= end for split, end in ends.items())

    def ahead(self, ends: Mapping[str, int]) -> int:
        """Return how many rows were read behind these ends."""
        return sum(max(0, read - ends.get(split, 0)) for split, read in self._read.items())

    def take(self, split: str, end: int) -> list[pa.RecordBatch]:
        """Take the next rows of a split, up to the row of this number."""
        wanted, taken = end - self._taken.get(split, 0), []
        pieces = self._pieces[split]
        while wanted > 0:
            piece = pieces.popleft()
            if len(piece) > wanted:
                pieces.appendleft(piece.slice(wanted))
                piece = piece.slice(0, wanted)
            taken.append(piece)
            wanted -= len(piece)
        self._taken[split] = end
        return taken
