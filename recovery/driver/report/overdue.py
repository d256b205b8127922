"""Decide whether epochs are still completed, and when a job without any is given up: no clock is read.

Invariant: a job is never given up while it has not failed to complete an epoch that it tried. All times are in
seconds, of a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Late:
    """No epoch has been completed for so long. The job is to be given up in `gives_up_in` seconds; None: not for this.

    `abandoned` epochs were tried meanwhile, the last of which was given up because of `reason`.
    """

    seconds: float
    abandoned: int
    reason: str
    gives_up_in: float | None

    @property
    def gives_up(self) -> bool:
        """True if the job is to be given up now."""
        return self.gives_up_in == 0.0


class Overdue:
    """Watches the epochs of one generation, from its first one on.

    `every` is from one epoch to the next; what is `report_after` later is told, and again whenever the time has
    doubled. What is `give_up_after` later ends the job, unless that is None or the attempt has not run for so long: how
    often attempts may fail is not decided here.
    """

    def __init__(self, every: float, report_after: float, give_up_after: float | None) -> None:
        self._every = every
        self._report_after = report_after
        self._give_up_after = give_up_after
        self._since: float | None = None
        self._trying_since: float | None = None
        self._next_report = report_after
        self._abandoned = 0
        self._reason = ""

    def triggered(self, now: float) -> None:
        """Take note that an epoch was begun."""
        if self._since is None:
            self._since = now
        if self._trying_since is None:
            self._trying_since = now

    def completed(self, now: float) -> None:
        """Take note that an epoch is complete."""
        self._since = self._trying_since = now
        self._next_report = self._report_after
        self._abandoned, self._reason = 0, ""

    def abandoned(self, reason: str) -> None:
        """Take note that an epoch was given up while its attempt ran on."""
        self._abandoned += 1
        self._reason = reason

    def attempt_over(self) -> None:
        """Take note that no epoch is tried until the next attempt runs."""
        self._trying_since = None

    def look(self, now: float) -> Late | None:
        """Return what is to be reported or done now, or None."""
        if self._since is None:
            return None
        since = now - self._since
        left = self._left(now)
        if left == 0.0:
            return Late(since, self._abandoned, self._reason, 0.0)
        late = since - self._every
        if late < self._next_report:
            return None
        self._next_report = max(2 * late, self._next_report)
        return Late(since, self._abandoned, self._reason, left)

    def _left(self, now: float) -> float | None:
        if self._give_up_after is None or self._trying_since is None or not self._abandoned:
            return None
        return max(self._trying_since + self._every + self._give_up_after - now, 0.0)
