"""The plan of a comparison: which schemes, which faults, at which rate, how long and how often; and plans by name.

Invariant: a plan that cannot be carried out is refused before anything starts, with all that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from recovery.inject.faults import Fault, parse_fault
from recovery.inject.moments import After
from recovery.inject.targets import Anything, TheDriver
from recovery.schemes.named import COMPARED
from snapshot.program.problems import near_names
from statebackend.durations import milliseconds
from statebackend.errors import EpochcutError, OptionError

START_S: Final = 2.5
"""Seconds that the start and the end of a run take, or so; for the time that is left."""


class UnusablePlan(OptionError, ValueError):
    """The plan of a comparison cannot be carried out; the message has all reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A comparison as it is to be done.

    A run reads for `warm`, `before` and `after` together. Nothing is measured in `warm`; the first fault is due when
    `before` is over, and each of the others is due from the fault before it on.
    """

    schemes: tuple[str, ...] = tuple(COMPARED)
    faults: tuple[str, ...] = ("kill worker:0 at epoch:next+0.3s",)
    rate: float | None = None
    """Rows per second of all paced sources together; None: as the program says."""
    share: float | None = None
    """The share of each scheme's own sustainable rate that counts instead of `rate`."""
    repeats: int = 3
    parallelism: int = 2
    every: str = "1s"
    """The interval of epochs."""
    warm: str = "3s"
    before: str = "4s"
    after: str = "8s"
    lost_after: str | None = None
    """The time for which a process may be silent until it is lost; None: as jobs have it."""
    heartbeat: str | None = None

    @property
    def orders(self) -> Sequence[Fault]:
        """Return the faults."""
        return [parse_fault(fault) for fault in self.faults]

    @property
    def seconds(self) -> float:
        """Return how long the sources of a run give rows."""
        return sum(milliseconds(part) for part in (self.warm, self.before, self.after)) / 1000

    @property
    def warm_s(self) -> float:
        """Return the seconds in which nothing is measured."""
        return milliseconds(self.warm) / 1000

    @property
    def before_s(self) -> float:
        """Return the seconds of output that say what is usual."""
        return milliseconds(self.before) / 1000

    @property
    def after_s(self) -> float:
        """Return the seconds of output from the first fault on."""
        return milliseconds(self.after) / 1000

    @property
    def expected_s(self) -> float:
        """Return how long all runs take, or so, without a search for sustainable rates."""
        return self.runs * (self.seconds + START_S)

    @property
    def runs(self) -> int:
        """Return how many runs there are, with two without faults at each rate."""
        rates = 1 if self.share is None else len(self.schemes)
        return len(self.schemes) * self.repeats + 2 * rates

    def check(self) -> None:
        """Raise `UnusablePlan` if it cannot be carried out."""
        problems = [*self._about_schemes(), *self._about_numbers(), *self._about_faults()]
        if problems:
            raise UnusablePlan("; ".join(problems))

    def _about_schemes(self) -> Sequence[str]:
        if not self.schemes:
            return ["there is no scheme to compare"]
        if len(set(self.schemes)) < len(self.schemes):
            return ["a scheme is given twice"]
        unknown = [name for name in self.schemes if name not in COMPARED]
        return [f"there is no scheme {name!r}: {near_names(name, list(COMPARED))}" for name in unknown]

    def _about_numbers(self) -> Sequence[str]:
        problems = []
        if self.rate is not None and not 0 < self.rate < float("inf"):
            problems.append(f"rate is {self.rate}; it is in rows per second, and more than 0")
        if self.share is not None and not 0 < self.share <= 1:
            problems.append(f"share is {self.share}; it is a part of the sustainable rate, more than 0 and at most 1")
        if self.rate is not None and self.share is not None:
            problems.append("rate and share are both given; a run has one rate")
        if self.repeats < 1:
            problems.append(f"repeats is {self.repeats}; there must be one at least")
        for name in ("every", "warm", "before", "after", "lost_after", "heartbeat"):
            value = getattr(self, name)
            try:
                if value is not None and milliseconds(value, name) == 0 and name != "warm":
                    problems.append(f"{name} is no time at all")
            except EpochcutError as error:
                problems.append(str(error))
        return problems

    def _about_faults(self) -> Sequence[str]:
        problems = []
        for text in self.faults:
            try:
                target = parse_fault(text).order.target
            except EpochcutError as error:
                problems.append(str(error))
                continue
            if isinstance(target, TheDriver):
                problems.append(f"{text!r}: rows are timed in the driver's process, so its loss cannot be compared")
            if isinstance(target, Anything):
                problems.append(f"{text!r}: a target at random differs from run to run; name one, such as worker:0")
        if not problems and not self._fits():
            problems.append("the faults are due later than `after` allows; let it be longer")
        return problems

    def _fits(self) -> bool:
        later = sum(fault.at.offset for fault in self.orders) + max(
            (fault.order.lasting or 0 for fault in self.orders), default=0
        )
        epochs = sum(not isinstance(fault.at, After) for fault in self.orders) * milliseconds(self.every)
        return later + epochs < milliseconds(self.after)


PLANS: Final[Mapping[str, Plan]] = {
    "small": Plan(),
    "hang": Plan(faults=("stop worker:0 for 5s at epoch:next+0.3s",), after="12s"),
    "three": Plan(
        faults=("kill worker:0 at epoch:next+0.3s", "kill worker:1 at +2s", "kill worker:0 at +2s"), after="12s"
    ),
}
"""Plans by name: a kill; a process that hangs, with detection as jobs have it; three kills, one after the other."""


def in_words(seconds: float) -> str:
    """Return a time as people read it: seconds below two minutes, else minutes."""
    return f"{ceil(seconds)} s" if seconds < 120 else f"{ceil(seconds / 60)} min"
