"""The base of operators over windows: the declaration, its problems, and the columns that name the window.

Invariant: a result stands at the last moment of its window, so that it is in time for the windows behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from snapshot.operators.aggregated import key_problems
from snapshot.operators.operator import Input
from snapshot.operators.windows.kinds import Session, Sliding, Tumbling, Window
from snapshot.operators.windows.operator import LATE, Lateness
from statebackend.states.namespaces import Window as Span

START, END = "window_start", "window_end"
SPAN_FIELDS = (pa.field(START, pa.timestamp("ms")), pa.field(END, pa.timestamp("ms")))


def span_arrays(span: Span, count: int) -> list[pa.Array]:
    """Return the columns that name the window, for `count` results."""
    return [pa.array(np.full(count, time)).cast(pa.timestamp("ms")) for time in (span.start, span.end)]


class OverWindows:
    """A declared operator over windows: what all of them say of themselves in the same way."""

    __slots__ = ()
    window: Window
    input: Input
    lateness_ms: int
    late: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return its one keyed input."""
        return (self.input,)

    @property
    def timed(self) -> bool:
        """True if the windows are of event time; the results have event times then."""
        return self.window.time == "event"

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """Return the side output for late rows, if it was asked for."""
        return {LATE: self.input.schema} if self.late else {}

    @property
    def lateness(self) -> Lateness:
        """Return how rows that come late are dealt with."""
        return Lateness(self.lateness_ms, self.late)

    def _problems(self) -> Iterator[str]:
        """Yield the problems of the windows over the input, and of its key."""
        yield from _window_problems(self.window, self.input, self.lateness_ms, self.late)
        yield from key_problems(self.input)


def _window_problems(window: object, input: Input, lateness_ms: int, late: bool) -> Iterator[str]:
    if not isinstance(window, Tumbling | Sliding | Session):
        yield f"{window!r} is no window; give Tumbling, Sliding or Session"
        return
    yield from window.problems
    if window.time not in ("event", "processing"):
        yield f"windows are of 'event' or 'processing' time, not of {window.time!r}"
    if window.time == "event" and not input.timed:
        kind = type(window).__name__
        yield f"the rows have no event time: say where it is with with_event_time, or use {kind}.processing"
    if window.time == "processing" and (lateness_ms or late):
        yield "no row is late in processing time: leave lateness and late out"
    if lateness_ms < 0:
        yield f"a lateness of {lateness_ms} ms is negative"
