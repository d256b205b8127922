"""The search for a history that breaks a promise, driven by hypothesis, and what it found, drawn.

Invariant: what is found can be had again from its schedule alone, a line of hexadecimal digits; and
shrinking leaves a history with as few steps, faults and preferences as still break a promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Final, TypeAlias

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from snapshot.testing.diagram import as_text
from snapshot.testing.diagram_svg import as_svg
from snapshot.testing.history import Cut, History, Violation
from snapshot.testing.schedule import Schedule

Run: TypeAlias = Callable[[Schedule], object]
"""Runs one simulation under a schedule and checks its history; raises `Violation`, or fails an assertion."""

SIZE = 300
"""The number of bytes of the longest schedules, unless told otherwise; a step of a small simulation needs about one."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A schedule under which a promise is broken, how it is broken, and the history in which it is."""

    schedule: bytes
    violation: AssertionError
    history: History | None

    def __str__(self) -> str:
        return f"{self.violation}\n\n{self.text()}\nTo see it again: replay(run, {self.schedule.hex()!r})"

    @property
    def cut(self) -> Cut | None:
        """Return the cut that the violation is about; None if it is about none."""
        return self.violation.cut if isinstance(self.violation, Violation) else None

    def text(self) -> str:
        """Draw the history as a space-time diagram of characters; empty without a history."""
        return as_text(self.history, self.cut, self._marked) if self.history else ""

    def svg(self) -> str:
        """Draw the history as a space-time diagram in SVG; empty without a history."""
        return as_svg(self.history, self.cut, self._marked) if self.history else ""

    @property
    def _marked(self) -> tuple[int, ...]:
        return self.violation.at if isinstance(self.violation, Violation) else ()


_SEEDS: Final = 4
"""From so many seeds a history is shrunk, while the budget lasts."""


def schedules(size: int = SIZE) -> st.SearchStrategy[Schedule]:
    """Return a strategy for schedules of up to `size` bytes, of any length alike; they shrink to few and zeros."""
    return _bytes(size).map(Schedule)


def search(
    run: Run, histories: int = 1000, size: int = SIZE, seed: int = 0, shrink: bool = True
) -> Counterexample | None:
    """Try up to `histories` schedules of up to `size` bytes; return the (smallest) one that breaks a promise.

    The same `seed` tries the same schedules. Without `shrink` the first that is found is the answer, which is
    much faster. Shrinking ends where no small change makes a history smaller, so that it is done from several seeds,
    and the shortest history is the answer; all others together may take as many runs as the first, or `histories`.
    """
    counted = _Counted(run)
    found = _found(counted, histories, size, Random(seed), shrink)
    if found is None or not shrink:
        return found
    others = _Counted(run, most=max(histories, counted.runs))
    for number in range(1, _SEEDS):
        if others.runs >= others.most:
            break
        other = _found(others, histories, size, Random(f"{seed}/{number}"), shrink)
        if other is not None and _length(other) < _length(found):
            found = other
    return found


class _Counted:
    """A run that is not made again for the same bytes, and that breaks no promise any more after so many runs."""

    def __init__(self, run: Run, most: float = inf) -> None:
        self._run, self.most = run, most
        self._broken: dict[bytes, bool] = {}
        self.runs = 0

    def breaks(self, data: bytes) -> bool:
        known = self._broken.get(data)
        if known is None:
            if self.runs >= self.most:
                return False
            self.runs += 1
            known = self._broken[data] = self.attempt(data) is not None
        return known

    def attempt(self, data: bytes) -> Counterexample | None:
        return _attempt(self._run, data)


def _length(found: Counterexample) -> tuple[int, int]:
    return len(found.history or ()), len(found.schedule)


def _found(run: _Counted, histories: int, size: int, random: Random, shrink: bool) -> Counterexample | None:
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    options = settings(
        max_examples=histories,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        data = find(_bytes(size), run.breaks, settings=options, random=random)
    except NoSuchExample:
        return None
    return run.attempt(_shortened(run, data) if shrink else data)


def check(run: Run, histories: int = 1000, size: int = SIZE, seed: int = 0) -> None:
    """Search, and fail with the counterexample, drawn and with a line to replay it, if there is one."""
    counterexample = search(run, histories, size, seed)
    if counterexample is not None:
        raise AssertionError(str(counterexample)) from counterexample.violation


def replay(run: Run, schedule: str) -> Counterexample | None:
    """Run once more under a schedule that is given in hexadecimal digits; None if no promise is broken."""
    return _attempt(run, bytes.fromhex(schedule))


def _attempt(run: Run, data: bytes) -> Counterexample | None:
    schedule = Schedule(data)
    try:
        run(schedule)
    except AssertionError as violation:
        return Counterexample(data, violation, schedule.history)
    return None


def _shortened(run: _Counted, data: bytes) -> bytes:
    """Leave out all bytes that can be left out, several at a time.

    Hypothesis leaves out longer pieces only where it can leave out one byte, but a message sent and delivered,
    say, is two choices that go together.
    """
    for size in (8, 6, 4, 3, 2, 1):
        for at in range(len(data) - size, -1, -1):
            shorter = data[:at] + data[at + size :]
            if len(shorter) + size == len(data) and run.breaks(shorter):
                data = shorter
    return data


def _bytes(size: int) -> st.SearchStrategy[bytes]:
    """Return a strategy for bytes of a length that is drawn first, as `binary` by itself prefers very short ones.

    A length of 0 leaves the length free: that is what the others shrink to, because only then hypothesis may
    delete from the middle. The length is the one number drawn, as hypothesis would else try swapping it with others.
    """
    return st.integers(0, size).flatmap(lambda length: st.binary(min_size=length, max_size=length or size))
