"""What a fault did to a job's output, from when each row was scheduled and when it first came.

Invariant: only the first sighting of a row counts, so what a job makes again after it went back is no output;
a row's latency is from its scheduled time, so it includes the time in which nothing could be made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Moments = NDArray[np.int64]
"""Microseconds since 1970."""

BUCKET: Final = 250_000
"""Microseconds of output that are judged together."""
_ALLOWED: Final = 50_000
_BEFORE: Final = 3_000_000
"""Of so much output before a fault it is learnt what is usual."""


@dataclass(frozen=True, slots=True)
class Sightings:
    """Each row once: when it was scheduled, and when it first came; in the order in which they came."""

    scheduled: Moments
    came: Moments

    @classmethod
    def of(cls, scheduled: Moments, came: Moments) -> Sightings:
        """All that was noted; of a row that came again the first time counts."""
        order = np.argsort(came, kind="stable")
        _, first = np.unique(scheduled[order], return_index=True)
        chosen = order[np.sort(first)]
        return cls(scheduled[chosen], came[chosen])

    def between(self, began: int, ended: int) -> Sightings:
        """Those that came in this time."""
        first, last = np.searchsorted(self.came, [began, ended])
        return Sightings(self.scheduled[first:last], self.came[first:last])

    @property
    def latencies(self) -> Moments:
        """How long each row took."""
        return self.came - self.scheduled


@dataclass(frozen=True, slots=True)
class Outage:
    """What followed from one fault, in seconds, and in milliseconds for the latency."""

    no_output_s: float
    """The longest time without a new row, from the last one before the fault on."""
    peak_latency_ms: float
    to_normal_s: float
    """From the fault until the 99th percentile stays below twice the usual one and 50 ms more."""


def outage(seen: Sightings, fault_at: int, until: int) -> Outage:
    """What the fault at this time did, if nothing else happened until then. There must be output before and after."""
    before = seen.between(fault_at - _BEFORE, fault_at)
    after = seen.between(fault_at, until)
    if not len(before.came) or not len(after.came):
        raise ValueError(f"there is no output {'after' if len(before.came) else 'before'} the fault")
    came = np.concatenate((before.came[-1:], after.came))
    allowed = 2 * float(np.percentile(before.latencies, 99)) + _ALLOWED
    return Outage(
        float(np.diff(came).max()) / 1e6,
        float(after.latencies.max()) / 1e3,
        _last_bad_bucket(after, fault_at, until, allowed) / 1e6,
    )


def _last_bad_bucket(after: Sightings, fault_at: int, until: int, allowed: float) -> int:
    """Until which time after the fault, at most a bucket too long, output was late, or was not there."""
    last = 0
    for began in range(fault_at, until - BUCKET + 1, BUCKET):
        latencies = after.between(began, began + BUCKET).latencies
        if not len(latencies) or np.percentile(latencies, 99) >= allowed:
            last = began + BUCKET - fault_at
    return last
