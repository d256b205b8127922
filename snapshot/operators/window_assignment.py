"""Which rows of a batch are in which windows.

What always holds: a row is in every window [start, end) with start <= time < end, and in no other; its place among the
rows of a window is its place in the batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from snapshot.operators.window_kinds import Aligned
from snapshot.program.rows import Times
from statebackend.states.namespaces import Window

Chosen = NDArray[np.int64]


def late_rows(kind: Aligned, times: Times, gone: int) -> NDArray[np.bool_] | None:
    """Which rows are in no window that ends after `gone`; None if there is no such row among them, of which there is
    one at least.
    """
    # Most often the earliest row tells that none is late.
    if _last_start(kind, int(times.min())) + kind.size > gone:
        return None
    late: NDArray[np.bool_] = _last_starts(kind, times) + kind.size <= gone
    return late


def assigned(kind: Aligned, times: Times) -> Iterator[tuple[Window, Chosen | None]]:
    """The windows that have some of these rows, of which there is one at least, by start; None stands for all rows."""
    if kind.slide == kind.size:
        first, last = _last_start(kind, int(times.min())), _last_start(kind, int(times.max()))
        if first == last:
            yield Window(first, first + kind.size), None
        else:
            for start, rows in _groups(_last_starts(kind, times)):
                yield Window(start, start + kind.size), rows
        return
    starts = _last_starts(kind, times)
    parts: defaultdict[int, list[Chosen]] = defaultdict(list)
    for newest, rows in _groups(starts):
        latest = times[rows]
        for start in range(newest, newest - kind.size, -kind.slide):
            inside = rows if start == newest else rows[latest < start + kind.size]
            if len(inside):
                parts[start].append(inside)
    for start in sorted(parts):
        together = np.sort(np.concatenate(parts[start]))
        yield Window(start, start + kind.size), None if len(together) == len(times) else together


def _last_start(kind: Aligned, time: int) -> int:
    return time - (time - kind.offset) % kind.slide


def _last_starts(kind: Aligned, times: Times) -> Times:
    starts: Times = times - (times - kind.offset) % kind.slide
    return starts


def _groups(starts: Times) -> Iterator[tuple[int, Chosen]]:
    """The rows with each start, ascending."""
    by_start = np.argsort(starts, kind="stable")
    ordered = starts[by_start]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for rows in np.split(by_start, edges):
        yield int(starts[rows[0]]), rows
