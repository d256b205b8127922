"""The event times of all rows that a source's stage gives them to, and the one watermark that holds for all of them.

Invariant: each branch has its times from the column that was declared for it; the watermark never goes back,
and is at most what every branch that is not idle allows.

While no split is idle, the watermark of a branch is at most what every split that is being read allows. So a split
makes no row late that keeps to `out_of_order`, unless it was idle or is younger than the watermark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.cut.frames import EARLIEST, LATEST, Watermark
from snapshot.cut.watermarks import earliest_active
from snapshot.host.protocol.stage_now import BranchTimes, SplitTimes, TimesNow
from snapshot.operators.row_class import shown_row
from snapshot.operators.rows import Rows, Times
from snapshot.program.plan import EventTime, Step
from snapshot.program.source import SourceError

_PER_MILLISECOND = {"us": 1_000, "ns": 1_000_000}


class NoEventTime(SourceError):
    """A row whose event time is null, or beyond what milliseconds of 64 bits can say."""


@dataclass(slots=True)
class _Split:
    latest: int | None = None
    """The latest time seen; None before the first row."""
    quiet: int = 0
    """For how many milliseconds nothing has come."""


class EventTimes:
    """The times and the watermark of one source in one partition, in one attempt.

    `restored` is the watermark of the cut that the attempt starts from. The caller tells which splits are being read,
    gives each one's rows in order, and asks for the watermark again and again; `now` is the processing time in
    milliseconds. Belonging to the cut is `current`. Where no split is left to read, the watermark goes to what the
    latest of those that have ended allows, and no further; the partition is idle when that has lasted for `idle_after`,
    just like a split from which nothing comes.
    """

    def __init__(self, event_time: EventTime, restored: Watermark | None = None) -> None:
        self._event_time = event_time
        self._current = restored
        self._splits: dict[str, _Split] = {}
        self._ended: int | None = None  # the latest time of all splits that are no longer read
        self._without_splits = _Split()
        self._asked_at: int | None = None

    @property
    def current(self) -> Watermark | None:
        """Return the last watermark announced; None before the first."""
        return self._current

    def now(self) -> BranchTimes:
        """Return all that it knows."""
        splits = {name: SplitTimes(split.latest, split.quiet) for name, split in self._splits.items()}
        without = SplitTimes(self._without_splits.latest, self._without_splits.quiet)
        return BranchTimes(self._current, splits, self._ended, without, self._asked_at)

    def go_on(self, now: BranchTimes) -> None:
        """Know what another one does, of the same source and partition."""
        self._current, self._ended, self._asked_at = now.current, now.ended, now.asked_at
        self._splits = {name: _Split(split.latest, split.quiet) for name, split in now.splits.items()}
        self._without_splits = _Split(now.without_splits.latest, now.without_splits.quiet)

    def reading(self, splits: Collection[str]) -> None:
        """Set the splits that are being read: new ones hold the watermark until they have had rows or are idle, and
        those that are no longer among them do not hold it any more.
        """
        if self._splits.keys() == set(splits):
            return
        for ended in sorted(self._splits.keys() - set(splits)):
            latest = self._splits.pop(ended).latest
            self._ended = _later(self._ended, latest)
        for added in sorted(set(splits) - self._splits.keys()):
            self._splits[added] = _Split()
        self._without_splits.quiet = 0

    def observe(self, split: str, batch: pa.RecordBatch, now: int) -> Times:
        """Return the event times of these rows, which came from a split at `now`; raise `NoEventTime` for a null."""
        times = self._times(split, batch)
        if len(times):
            seen = self._splits.setdefault(split, _Split())
            seen.latest = _later(seen.latest, int(times.max()))
            # The next question counts all time since the last one as quiet; what of it is past by now was not.
            seen.quiet = 0 if self._asked_at is None else min(0, self._asked_at - now)
        return times

    def watermark(self, now: int) -> Watermark | None:
        """Return the watermark to announce now; None if that is still the last one."""
        self._grow_quiet(now)
        idle_after = self._event_time.idle_after
        waiting = list(self._splits.values()) or [self._without_splits]
        active = [split for split in waiting if idle_after is None or split.quiet < idle_after]
        timestamp = self._timestamp(active if self._splits else [])
        if timestamp is None and active and self._current is None:
            return None
        if self._current is not None:
            timestamp = max(self._current.timestamp, EARLIEST if timestamp is None else timestamp)
        watermark = Watermark(EARLIEST if timestamp is None else timestamp, idle=not active)
        if watermark == self._current:
            return None
        self._current = watermark
        return watermark

    def _timestamp(self, active: Sequence[_Split]) -> int | None:
        """Return how far the splits let the watermark go, whatever was announced; None if they say nothing."""
        seen = [split.latest for split in active if split.latest is not None]
        if len(seen) < len(active):
            return None
        if active:
            latest: int | None = min(seen)
        else:  # nobody is left from whom something older is expected: the latest of all
            latest = self._ended
            for split in self._splits.values():
                latest = _later(latest, split.latest)
        return None if latest is None else min(max(latest - self._event_time.out_of_order, EARLIEST), LATEST - 1)

    def _grow_quiet(self, now: int) -> None:
        """Count the time since the last call as quiet, but not all of a long one: then nothing was read at all, because
        outputs were full, and it says nothing of the splits.
        """
        asked_at, self._asked_at = self._asked_at, now
        if self._event_time.idle_after is None or asked_at is None:
            return
        elapsed = min(max(0, now - asked_at), (self._event_time.idle_after + 1) // 2)
        for split in self._splits.values() if self._splits else (self._without_splits,):
            split.quiet = max(0, split.quiet + elapsed)

    def _times(self, split: str, batch: pa.RecordBatch) -> Times:
        column = batch.column(batch.schema.get_field_index(self._event_time.column))
        if column.null_count:
            place = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._refusal(split, batch, place, "is null")
        try:
            return _milliseconds(column)
        except (pa.ArrowInvalid, OverflowError) as error:
            raise self._refusal(
                split, batch, 0, f"cannot be said in milliseconds, here or in a later row: {error}"
            ) from error

    def _refusal(self, split: str, batch: pa.RecordBatch, place: int, what: str) -> NoEventTime:
        names = [name for name in batch.schema.names if name != self._event_time.column]
        row = shown_row(batch.select(names), place)
        return NoEventTime(
            f"split {split!r}: the event time in the column {self._event_time.column!r} {what}; the row has {row}; "
            f"filter such rows out before event time is assigned, or give them a time"
        )


def _milliseconds(column: pa.Array) -> Times:
    """Return the values in milliseconds, rounded down, so that nothing seems later than it is."""
    if not pa.types.is_timestamp(column.type):
        return _plain(pc.cast(column, pa.int64()))
    if column.type.unit == "s":
        return _plain(pc.multiply_checked(column.cast(pa.int64()), 1_000))
    values = _plain(column.view(pa.int64()))
    per_millisecond = _PER_MILLISECOND.get(column.type.unit)
    return values if per_millisecond is None else values // per_millisecond


def _plain(column: pa.Array) -> Times:
    values: Times = column.to_numpy(zero_copy_only=False)
    return values


def _later(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


class SourceTimes:
    """One source in one partition and attempt. `restored` is the watermark of the cut that it starts from.

    A stream may be given event time in several steps, each in a branch of its own; `steps` are those and no others. Two
    may be declared alike: their rows still come to different times.
    """

    def __init__(self, steps: Iterable[Step], restored: Watermark | None) -> None:
        self._branches = {step: EventTimes(step.event_time, restored) for step in steps if step.event_time is not None}
        self._current = restored

    def now(self) -> TimesNow:
        """Return where all branches are."""
        return TimesNow(tuple(branch.now() for branch in self._branches.values()), self._current)

    def go_on(self, now: TimesNow) -> None:
        """Begin where another process is."""
        for branch, there in zip(self._branches.values(), now.branches, strict=True):
            branch.go_on(there)
        self._current = now.current

    def stamped(self, step: Step, split: str, rows: Rows, now: int) -> Rows:
        """Return the rows of a split with their event times."""
        return Rows(rows.batch, self._branches[step].observe(split, rows.batch, now))

    def watermark(self, splits: Collection[str], now: int) -> Watermark | None:
        """Return the watermark to announce while these splits are read; None if that is still the last one."""
        for branch in self._branches.values():
            branch.reading(splits)
            branch.watermark(now)
        known = [branch.current for branch in self._branches.values() if branch.current is not None]
        if len(known) < len(self._branches):
            return None
        combined = earliest_active(known, self._current)
        if combined == self._current:
            return None
        self._current = combined
        return combined
