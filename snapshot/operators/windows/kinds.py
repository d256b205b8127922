"""How time is divided into windows: the kinds that a program chooses from.

What always holds: they are plain data; what is wrong with one is said by `problems`, never found while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from statebackend.durations import Duration, in_words, milliseconds

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
    judged together: what would be late by itself is taken if others join it to a session that is not. How rows come
    together in batches is nobody's promise, so whether such a row counts may be otherwise after a restart.
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
"""What a program can choose."""

Aligned: TypeAlias = "Tumbling | Sliding"
"""Windows that are the same for all keys."""


def _set(window: object, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(window, name, value)


def _of(time: Time) -> str:
    return "" if time == "event" else " of processing time"
