"""The seven marks of a recovery, from the reports as they come in.

Invariant: a recovery is timed from the first failure that it makes up for, also if others follow before it is
done; a mark that is reached again after such another failure is noted anew. The marks up to `opened` follow one
another, and `caught_up` comes after them; `first_output` is the first partition's, and may come before others are open.
A recovery is over when it has caught up and has given output, or has had the time to: some jobs seldom have any.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from recovery.events import Marks
from statebackend.ids import Partition

_USUAL_LAG: Final = 100.0
"""A partition that is so many milliseconds behind its sources' schedule has caught up, in any case."""
_NO_OUTPUT: Final = 10_000.0
"""A job that has given no output in so many milliseconds after it has caught up has none to give."""


@dataclass(slots=True)
class _Recovery:
    detected_at: float
    allowed_lag: float
    marks: Marks = field(default_factory=Marks)
    behind: set[Partition] = field(default_factory=set)

    def since(self, now: float) -> float:
        """Return how long ago the failure was detected."""
        return now - self.detected_at

    def is_over(self, now: float) -> bool:
        """True if no further mark is to be expected."""
        if self.marks.caught_up is None:
            return False
        return self.marks.first_output is not None or self.since(now) - self.marks.caught_up >= _NO_OUTPUT


class RecoveryClock:
    """Takes what happens, with the time in milliseconds, and says when a recovery is over."""

    def __init__(self) -> None:
        self._lags: dict[Partition, float] = {}
        self._recovery: _Recovery | None = None

    @property
    def running(self) -> bool:
        """True if a failure is not made up for yet."""
        return self._recovery is not None

    def detected(self, now: float) -> None:
        """Begin to time a recovery from this failure, unless one is timed already."""
        if self._recovery is None:
            self._recovery = _Recovery(now, max([_USUAL_LAG, *self._lags.values()]))

    def decided(self, now: float) -> None:
        """Note when the roll-back was decided, and drop all later marks."""
        if (recovery := self._recovery) is not None:
            recovery.marks = Marks(decided=recovery.since(now))

    def restarted(self, now: float, partitions: int) -> None:
        """Note when all partitions had been given to processes."""
        if (recovery := self._recovery) is not None:
            recovery.marks = replace(recovery.marks, restarted=recovery.since(now))
            recovery.behind = {Partition(index) for index in range(partitions)}

    def restored(self, now: float, downloaded_ms: float) -> None:
        """Note that a partition is restored, with all its files there `downloaded_ms` after it got its role.

        It got the role a little before all partitions had theirs, so the time of its files is cut off at `now`.
        """
        if (recovery := self._recovery) is not None and (restarted := recovery.marks.restarted) is not None:
            downloaded = min(restarted + downloaded_ms, recovery.since(now))
            recovery.marks = replace(recovery.marks, downloaded=max(recovery.marks.downloaded or 0.0, downloaded))

    def opened(self, now: float) -> None:
        """Note when all partitions were restored."""
        if (recovery := self._recovery) is not None:
            recovery.marks = replace(recovery.marks, opened=recovery.since(now))

    def first_output(self, now: float) -> None:
        """Note when the first partition gave rows to a sink."""
        if (recovery := self._recovery) is not None and recovery.marks.first_output is None:
            recovery.marks = replace(recovery.marks, first_output=recovery.since(now))

    def lag(self, now: float, partition: Partition, lag_ms: float) -> None:
        """Take how far a partition's sources are behind their schedule."""
        recovery = self._recovery
        if recovery is None:
            self._lags[partition] = lag_ms
        elif recovery.marks.opened is not None and lag_ms <= recovery.allowed_lag:
            recovery.behind.discard(partition)
            if not recovery.behind and recovery.marks.caught_up is None:
                recovery.marks = replace(recovery.marks, caught_up=recovery.since(now))

    def over(self, now: float, *, finally_: bool = False) -> Marks | None:
        """Return the marks, once, when the recovery is over; with `finally_`, those so far of one that is under way."""
        recovery = self._recovery
        if recovery is None:
            return None
        if not finally_ and not recovery.is_over(now):
            return None
        self._recovery = None
        return recovery.marks
