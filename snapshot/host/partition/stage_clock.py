"""The clocks of a stage: processing time, and the time that work takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snapshot.replication.pacing import clock_of
from statebackend import means


@dataclass(frozen=True, slots=True)
class StageClock:
    """All that a stage, its operator and its source know of time."""

    now: Callable[[], int]
    """Returns the processing time, in milliseconds since 1970; it never goes back."""
    monotonic: Callable[[], float]
    """Returns a time in seconds that says how long work has taken."""
    close_round: Callable[[int], object] | None = None
    """Moves processing time on to the end of the round of this number; None if it goes on by itself."""
    go_on: Callable[[int], object] = lambda _: None
    """Sets processing time to that of another process, before anything has asked for it, unless it goes on by itself.
    """


def process_clock() -> StageClock:
    """Return the clocks of this process, which go on while a stage works."""
    latest = 0

    def now() -> int:
        nonlocal latest
        latest = max(latest, means.wall_ns() // 1_000_000)
        return latest

    return StageClock(now, means.monotonic)


def round_clock(tick: int, began: int) -> StageClock:
    """Return the clocks of a stage that works in rounds: processing time moves on from round to round.

    Behind a marker rounds may have smaller numbers than before; processing time stands still then.
    """
    latest = began

    def close_round(number: int) -> None:
        nonlocal latest
        latest = max(latest, clock_of(number, tick))

    def go_on(time: int) -> None:
        nonlocal latest
        latest = time

    return StageClock(lambda: latest, means.monotonic, close_round, go_on)
