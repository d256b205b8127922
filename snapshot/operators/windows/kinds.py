"""The division of time into windows: the kinds that a program chooses from, and the windows of a row.

Invariant: kinds are plain data, and `problems` says what is wrong with one before it runs. A row is in every
window [start, end) with start <= time < end, and in no other; its place among the rows of a window is its place in the
batch. A window that begins or ends beyond 64 bits is cut off there, and the last of all times, which would be in no
window then, counts as the one before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.rows import Times
from statebackend.durations import Duration, in_words, milliseconds
from statebackend.states.namespaces import Window as Span

Time: TypeAlias = Literal["event", "processing"]


@dataclass(frozen=True, slots=True, init=False)
class Tumbling:
    """Windows of one size, one after the other: `Tumbling("5s")`. One of them begins `offset` after 1970 began."""

    size: int
    offset: int
    time: Time

    def __init__(self, size: Duration, offset: Duration = 0, *, time: Time = "event") -> None:
        """Set durations and time: rows count at their event time, or at the time at which they come."""
        _set(self, size=milliseconds(size, "size"), offset=milliseconds(offset, "offset"), time=time)

    @classmethod
    def processing(cls, size: Duration, offset: Duration = 0) -> Self:
        """Return these windows in processing time."""
        return cls(size, offset, time="processing")

    @property
    def slide(self) -> int:
        """Return the time between the beginnings of two windows."""
        return self.size

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the reasons why there can be no such windows."""
        return () if self.size else ("windows last longer than 0 ms: give Tumbling a size",)

    def __str__(self) -> str:
        return f"{in_words(self.size)} windows{_of(self.time)}"


@dataclass(frozen=True, slots=True, init=False)
class Sliding:
    """Windows of one size, of which one begins every `slide`: a row is in all that hold its time."""

    size: int
    slide: int
    offset: int
    time: Time

    def __init__(self, size: Duration, slide: Duration, offset: Duration = 0, *, time: Time = "event") -> None:
        """Set durations and time: rows count at their event time, or at the time at which they come."""
        _set(
            self,
            size=milliseconds(size, "size"),
            slide=milliseconds(slide, "slide"),
            offset=milliseconds(offset, "offset"),
            time=time,
        )

    @classmethod
    def processing(cls, size: Duration, slide: Duration, offset: Duration = 0) -> Self:
        """Return these windows in processing time."""
        return cls(size, slide, offset, time="processing")

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the reasons why there can be no such windows."""
        if not self.slide:
            return ("windows slide by more than 0 ms: give Sliding a slide",)
        if self.slide > self.size:
            return (
                f"windows of {in_words(self.size)} that slide by {in_words(self.slide)} leave out what is between "
                f"them: slide by less, or drop those rows with a filter",
            )
        return ()

    def __str__(self) -> str:
        return f"{in_words(self.size)} windows each {in_words(self.slide)}{_of(self.time)}"


@dataclass(frozen=True, slots=True, init=False)
class Session:
    """The rows of a key between which less than `gap` passes; a session ends a gap after its last row.

    A row is late if the session that it would be in is over, and the lateness as well. Rows that come in one batch are
    judged together: what would be late by itself is taken if others join it to a session that is not. No promise says
    how rows come together in batches, so whether such a row counts may be otherwise after a restart.
    """

    gap: int
    time: Time

    def __init__(self, gap: Duration, *, time: Time = "event") -> None:
        """Set gap and time: rows count at their event time, or at the time at which they come."""
        _set(self, gap=milliseconds(gap, "gap"), time=time)

    @classmethod
    def processing(cls, gap: Duration) -> Self:
        """Return these sessions in processing time."""
        return cls(gap, time="processing")

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the reasons why there can be no such sessions."""
        return () if self.gap else ("sessions end after a gap of more than 0 ms: give Session a gap",)

    def __str__(self) -> str:
        return f"sessions with gaps of {in_words(self.gap)}{_of(self.time)}"


Window: TypeAlias = "Tumbling | Sliding | Session"
"""The windows that a program can choose."""

Aligned: TypeAlias = "Tumbling | Sliding"
"""Windows that are the same for all keys."""


def _set(window: object, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(window, name, value)


def _of(time: Time) -> str:
    return "" if time == "event" else " of processing time"


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


def assigned(kind: Aligned, times: Times) -> Iterator[tuple[Span, Chosen | None]]:
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


def _window(kind: Aligned, start: int) -> Span:
    return Span(max(start, EARLIEST), min(start + kind.size, LATEST))


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
