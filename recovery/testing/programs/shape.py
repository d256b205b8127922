"""The contract of a shape of program: what is run, and what any execution of it gives.

Invariant: `check_output` and `check_cut` raise a `Violation` for what no sequential execution could have given, and for
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from recovery.testing.programs.sink import Keeping, ToSimulated
from recovery.testing.programs.source import SimulatedSource
from recovery.testing.programs.target import ShownRow
from recovery.testing.programs.truth import CutFacts, Terms
from snapshot.program.program import Program

Output = Mapping[str, Sequence[ShownRow]]
"""The visible rows by the uid of their sink, in the order in which they became visible."""


class Shape(Protocol):
    """A program, and the judge of it."""

    @property
    def sources(self) -> Mapping[str, SimulatedSource]:
        """Return its sources by uid."""

    def program(self, name: str, keepings: Sequence[Keeping]) -> Program:
        """Return the program, with sinks to the target of this name; the keepings are theirs, in turn."""

    def check_output(self, output: Output, terms: Terms, *, complete: bool) -> None:
        """Check the visible rows; when `complete`, they are all that will ever come."""

    def check_cut(self, facts: CutFacts, terms: Terms) -> None:
        """Check a complete epoch."""


def sink_of(name: str, keepings: Sequence[Keeping], number: int) -> ToSimulated:
    """Return the sink with this number of a program."""
    return ToSimulated(name, keepings[number % len(keepings)])


def milliseconds(number: int) -> timedelta:
    """Return so many milliseconds as a duration."""
    return timedelta(milliseconds=number)
