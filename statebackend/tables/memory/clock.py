"""The clock that all namespaces of a table share: what is touched is numbered, and so are the times between cuts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TouchClock:
    """Numbers what is touched, over all namespaces; what was touched since the last cut has a number from `cut` on.

    The times between cuts are numbered, too. Of those from `kept` on it is noted what was there before; of none if
    `kept` is yet to come. What is noted in all namespaces takes about so many bytes. Whenever keys leave, or come that
    are not new, that is one more of the `losses`.
    """

    now: int = 0
    cut: int = 0
    interval: int = 0
    kept: int = 0
    noted_bytes: int = 0
    losses: int = 0

    @property
    def notes(self) -> bool:
        """True if what is there is noted before it changes."""
        return self.kept <= self.interval
