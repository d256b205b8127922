"""When a driver looks for what attempts that are over have left in the job's tree.

What always holds: nothing is begun while no attempt runs, so no recovery waits for it, and each attempt that runs is
followed by a look; looking takes at most a twentieth of the time. A process that was taken for lost may wake up at any
time and finish an upload, so the driver looks again, ever less often, for as long as it has the job.
"""

from __future__ import annotations

from math import inf
from typing import Final

_PAUSES: Final = (1.0, 10.0, 60.0, 600.0, 3600.0)
"""Seconds from the moment in which an attempt runs to the first look, from that to the second, and so on."""
_SHARE: Final = 20


class Sweeps:
    """Takes what happens, with the time in seconds, and says when to look next."""

    def __init__(self) -> None:
        self._runs = False
        self._began: float | None = None
        self._wanted = inf
        self._not_before = -inf
        self._done = 0
        """How often the driver has looked since an attempt began to run."""

    @property
    def due(self) -> float | None:
        """When to begin; None if something else has to happen before."""
        due = max(self._wanted, self._not_before)
        return due if self._runs and self._began is None and due < inf else None

    def attempt_runs(self, now: float) -> None:
        """All partitions are restored; what the attempts before left may be looked for."""
        self._runs, self._done = True, 0
        self._wanted = min(self._wanted, now + _PAUSES[0])

    def attempt_over(self) -> None:
        """The attempt is over, and a recovery begins."""
        self._runs = False

    def began(self, now: float) -> None:
        """The driver looks."""
        self._began, self._wanted = now, inf

    def ended(self, now: float) -> None:
        """The driver has looked, and has deleted what it found, or failed to."""
        if self._began is None:
            raise ValueError("nothing was begun that could end")
        self._not_before = now + _SHARE * (now - self._began)
        self._began = None
        if self._wanted == inf:  # else another attempt runs by now
            self._done += 1
            self._wanted = now + _PAUSES[min(self._done, len(_PAUSES) - 1)]
