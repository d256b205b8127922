"""Which rows of a batch are in which windows.

What always holds: a row is in every window [start, end) with start <= time < end, and in no other; its place among the
rows of a window is its place in the batch. A window that begins or ends beyond 64 bits is cut off there, and the last
of all times, which would be in none then, counts as the one before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.rows import Times
from snapshot.operators.windows.kinds import Aligned
from statebackend.states.namespaces import Window

Chosen = NDArray[np.int64]


def late_rows(kind: Aligned, times: Times, gone: int) -> NDArray[np.bool_] | None:
    """Return for each row if it is in no window that ends after `gone`; None if no row is.

    There must be at least one row.
    """
    # Most often the earliest row tells that none is late.
    if min(_last_start(kind, int(times.min())) + kind.size, LATEST) > gone:
        return None
    ends = times - _since_start(kind, times) + kind.size
    if times.max() > LATEST - kind.size:
        ends[ends < times] = LATEST  # what did not fit into 64 bits
    late: NDArray[np.bool_] = ends <= gone
    return late


def assigned(kind: Aligned, times: Times) -> Iterator[tuple[Window, Chosen | None]]:
    """Yield by start each window that has some of the rows, and their places; None stands for all rows.

    There must be at least one row.
    """
    if times.max() == LATEST:
        times = np.minimum(times, LATEST - 1)
    if kind.slide == kind.size:
        first, last = _last_start(kind, int(times.min())), _last_start(kind, int(times.max()))
        if first == last:
            yield _window(kind, first), None
        else:
            for start, rows in _groups(kind, times):
                yield _window(kind, start), rows
        return
    parts: defaultdict[int, list[Chosen]] = defaultdict(list)
    for newest, rows in _groups(kind, times):
        latest = times[rows]
        for start in range(newest, newest - kind.size, -kind.slide):
            inside = rows if start == newest else rows[latest < start + kind.size]
            if len(inside):
                parts[start].append(inside)
    for start in sorted(parts):
        together = np.sort(np.concatenate(parts[start]))
        yield _window(kind, start), None if len(together) == len(times) else together


def _window(kind: Aligned, start: int) -> Window:
    return Window(max(start, EARLIEST), min(start + kind.size, LATEST))


def _last_start(kind: Aligned, time: int) -> int:
    """Return the start of the last window that holds this time; it may not fit into 64 bits."""
    return time - (time - kind.offset) % kind.slide


def _since_start(kind: Aligned, times: Times) -> Times:
    """Return how long after the start of its last window each time is."""
    since: Times = times % kind.slide
    if offset := kind.offset % kind.slide:
        since -= offset
        since[since < 0] += kind.slide
    return since


def _groups(kind: Aligned, times: Times) -> Iterator[tuple[int, Chosen]]:
    """Yield the start of each last window that rows are in, ascending, and the places of these rows."""
    starts = times - _since_start(kind, times)
    if times.min() < EARLIEST + kind.slide:
        starts[starts > times] = EARLIEST  # what did not fit into 64 bits: all in the same window
    by_start = np.argsort(starts, kind="stable")
    ordered = starts[by_start]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for rows in np.split(by_start, edges):
        yield _last_start(kind, int(times[rows[0]])), rows
