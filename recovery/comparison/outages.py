"""The effect of faults on a job's output, from when each row was scheduled and when it was first seen.

Invariant: only the first sighting of a row counts, so what a job makes again after a roll-back is no output; a row's
latency begins at its scheduled time, so it includes the time in which nothing could be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Moments = NDArray[np.int64]
"""Microseconds since 1970."""

BUCKET: Final = 250_000
"""Microseconds of output that are judged together."""
_ALLOWED: Final = 50_000
USUAL: Final = 3_000_000
"""The output of so long before a fault says what is usual."""
ROLLING: Final = 1_000_000
"""The window of the rolling mean, in microseconds; the script that came with Clonos has ten seconds."""
_DEVIATIONS: Final = 1.1


@dataclass(frozen=True, slots=True)
class Sightings:
    """Each row once: when it was scheduled, and when it was first seen; in the order in which they were seen."""

    scheduled: Moments
    came: Moments

    @classmethod
    def of(cls, scheduled: Moments, came: Moments, rows: NDArray[Any] | None = None) -> Sightings:
        """Return the first sighting of each row; `rows` tells rows apart, the scheduled time alone if that is None."""
        order = np.argsort(came, kind="stable")
        which = scheduled if rows is None else rows
        _, first = np.unique(which[order], return_index=True)
        chosen = order[np.sort(first)]
        return cls(scheduled[chosen], came[chosen])

    def between(self, began: int, ended: int) -> Sightings:
        """Return those that were seen in this time."""
        first, last = np.searchsorted(self.came, [began, ended])
        return Sightings(self.scheduled[first:last], self.came[first:last])

    @property
    def latencies(self) -> Moments:
        """Return how long each row took."""
        return self.came - self.scheduled


@dataclass(frozen=True, slots=True)
class Outage:
    """The effect of faults, in seconds, and in milliseconds for the latency."""

    no_output_s: float
    """The longest time without a new row, from the last one before the first fault on."""
    silent_at_end: bool
    """True if that was the time from the last row of all to the end, so that it may have been longer."""
    peak_latency_ms: float
    """The highest of all rows that came after the first fault, those that came after the end too."""
    to_normal_s: float
    """From the last fault until the 99th percentile of the rows that are due stays below twice the usual and 50 ms."""
    normal_again: bool
    """False if that was not so at the end; `to_normal_s` is then the time until the end."""
    rolling_mean_s: float | None
    """From the last fault until the rolling mean stays within the usual mean and 1.1 standard deviations, as Clonos has
    it: half of the window is taken off. None where rows come in bursts, of which a window may have one or none."""


def outage(seen: Sightings, fault_at: int, until: int, last_fault_at: int | None = None, usual: int = USUAL) -> Outage:
    """Return the effect of the faults from `fault_at` on, if nothing else happened until the end.

    The output of the time `usual` before the first one says what is usual. `ValueError` if there is none, or if no row
    came after the fault.
    """
    last = fault_at if last_fault_at is None else last_fault_at
    before = seen.between(fault_at - usual, fault_at)
    after = seen.between(fault_at, int(seen.came[-1]) + 1 if len(seen.came) else fault_at)
    if not len(before.came) or not len(after.came):
        raise ValueError(f"there is no output {'after' if len(before.came) else 'before'} the fault")
    gaps = np.diff(np.concatenate((before.came[-1:], after.came)))
    at_end = until - int(after.came[-1])
    to_normal, normal_again = _last_bad_bucket(seen, before, last, until)
    in_bursts = len(before.came) < 2 or int(np.diff(before.came).max()) > BUCKET
    return Outage(
        max(int(gaps.max()), at_end) / 1e6,
        at_end > int(gaps.max()),
        float(after.latencies.max()) / 1e3,
        to_normal / 1e6,
        normal_again,
        None if in_bursts else _rolling_mean(seen, before, last, until) / 1e6,
    )


def _last_bad_bucket(seen: Sightings, before: Sightings, fault_at: int, until: int) -> tuple[int, bool]:
    """Return how long after the fault, at most a bucket too long, rows that were due were late, and if that was over.

    A bucket of which no row ever came is late as well, unless so few rows are due that this is usual.
    """
    allowed = 2 * float(np.percentile(before.latencies, 99)) + _ALLOWED
    order = np.argsort(seen.scheduled, kind="stable")
    due, latencies = seen.scheduled[order], seen.latencies[order]
    starts = np.arange(fault_at, until - BUCKET + 1, BUCKET)
    places = np.searchsorted(due, np.append(starts, starts[-1] + BUCKET if len(starts) else fault_at))
    often = len(before.came) * BUCKET >= int(before.came[-1] - before.came[0])
    last, bad = 0, False
    for start, first, end in zip(starts.tolist(), places[:-1], places[1:], strict=True):
        bad = bool(np.percentile(latencies[first:end], 99) >= allowed) if end > first else often
        if bad:
            last = start + BUCKET - fault_at
    return last, not bad


def _rolling_mean(seen: Sightings, before: Sightings, fault_at: int, until: int) -> float:
    """Return how long after the fault the mean of the last `ROLLING` was above the limit, less half of that."""
    limit = float(before.latencies.mean() + _DEVIATIONS * before.latencies.std())
    end = int(np.searchsorted(seen.came, until))
    totals = np.concatenate(([0], np.cumsum(seen.latencies[:end], dtype=np.float64)))
    here = np.arange(int(np.searchsorted(seen.came, fault_at)), end)
    first = np.searchsorted(seen.came, seen.came[here] - ROLLING, side="right")
    means = (totals[here + 1] - totals[first]) / (here + 1 - first)
    above = here[means > limit]
    return max(0.0, float(seen.came[above[-1]] - fault_at) - ROLLING / 2) if len(above) else 0.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The latency of some rows, in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    rows: int


def percentiles(seen: Sightings) -> Percentiles | None:
    """Return the latency of these rows; None if there are none."""
    if not len(seen.came):
        return None
    p50, p99, p999 = (float(value) for value in np.percentile(seen.latencies / 1e3, (50, 99, 99.9)))
    return Percentiles(p50, p99, p999, len(seen.came))


def over_time(seen: Sightings, began: int, ended: int, width: int = BUCKET) -> Sequence[tuple[int, Percentiles]]:
    """Return the latency of the rows that were scheduled in each span of `width`, by when the span begins."""
    order = np.argsort(seen.scheduled, kind="stable")
    due = Sightings(seen.scheduled[order], seen.came[order])
    starts = np.arange(began, ended, width)
    places = np.searchsorted(due.scheduled, np.append(starts, ended))
    found = []
    for start, first, last in zip(starts.tolist(), places[:-1], places[1:], strict=True):
        latency = percentiles(Sightings(due.scheduled[first:last], due.came[first:last]))
        if latency is not None:
            found.append((start, latency))
    return found
