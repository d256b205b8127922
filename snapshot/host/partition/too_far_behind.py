"""The bound of what is kept for a member that joins, while it cannot work on it."""

from __future__ import annotations

from typing import Final

from statebackend.errors import JobError

MOST_KEPT: Final = 256 << 20
"""So many bytes of rows, and no more."""


class TooFarBehind(JobError):
    """More has come to a member that joins than it can keep until it has its state; the join is tried again."""
