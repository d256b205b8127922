"""The event times of all rows that a source's stage gives them to, and the one watermark that holds for all of them.

What always holds: each branch has its times from the column that was declared for it; the watermark never goes back,
and is at most what every branch that is not idle allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from snapshot.frames import Watermark
from snapshot.program.event_time import EventTimes
from snapshot.program.plan import Step
from snapshot.program.rows import Rows


class SourceTimes:
    """One source in one partition and attempt. `restored` is the watermark of the cut that it starts from.

    A stream may be given event time in several steps, each in a branch of its own; `steps` are those and no others. Two
    may be declared alike: their rows still come to different times.
    """

    def __init__(self, steps: Iterable[Step], restored: Watermark | None) -> None:
        self._branches = {step: EventTimes(step.event_time, restored) for step in steps if step.event_time is not None}
        self._current = restored

    def stamped(self, step: Step, split: str, rows: Rows, now: int) -> Rows:
        """The rows of a split with their times."""
        return Rows(rows.batch, self._branches[step].observe(split, rows.batch, now))

    def watermark(self, splits: Collection[str], now: int) -> Watermark | None:
        """What is to be announced while these splits are read; None if that is still the last one."""
        for branch in self._branches.values():
            branch.reading(splits)
            branch.watermark(now)
        known = [branch.current for branch in self._branches.values() if branch.current is not None]
        if len(known) < len(self._branches):
            return None
        active = [watermark.timestamp for watermark in known if not watermark.idle]
        timestamp = min(active) if active else max(watermark.timestamp for watermark in known)
        if self._current is not None:
            timestamp = max(timestamp, self._current.timestamp)
        combined = Watermark(timestamp, idle=not active)
        if combined == self._current:
            return None
        self._current = combined
        return combined
