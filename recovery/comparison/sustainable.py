"""The highest rate that a scheme sustains with a program: a search by halves, each step of which is a run.

Invariant: a rate counts as sustained if the job is no further behind its sources' schedule at the end of a run than an
interval of epochs and half a second; the rate that is found was sustained, and one that is a tenth higher was not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from recovery.comparison.measuring import keeps_up
from recovery.comparison.plan import Plan
from recovery.comparison.prepared import own_rate, prepare
from recovery.comparison.record import Outcome
from recovery.schemes.named import Compared
from snapshot.program.program import Program
from statebackend.durations import milliseconds
from statebackend.errors import JobError

_CLOSE: Final = 1.1
_WARM_MS: Final = 5_000
_EPOCHS: Final = 4
_STEP: Final = 4.0
_TRIES: Final = 3
_LEAST: Final = 10.0
_MOST: Final = 1e6


class NothingSustained(JobError):
    """No rate is sustained; the message says why the lowest was not."""


class Search:
    """Searches for the highest rate that is sustained, from a first one on."""

    def __init__(self, first: float) -> None:
        self._sustained: float | None = None
        self._failed: float | None = None
        self._first = first

    @property
    def next(self) -> float | None:
        """Return the rate to try now; None if the search is over."""
        if self._sustained is None:
            lower = self._first if self._failed is None else self._failed / 2
            return lower if lower >= _LEAST else None
        if self._failed is None:
            return self._sustained * _STEP if self._sustained < _MOST else None
        near = self._failed / self._sustained <= _CLOSE
        return None if near else (self._sustained * self._failed) ** 0.5

    @property
    def found(self) -> float | None:
        """Return the highest rate that was sustained so far; None if none was."""
        return self._sustained

    def tried(self, rate: float, *, sustained: bool) -> None:
        """Take the outcome of a run at this rate."""
        if sustained:
            self._sustained = rate
        else:
            self._failed = rate


def sustainable(program: Program, compared: Compared, plan: Plan, folder: Path, told: Callable[[str], object]) -> float:
    """Return the highest rate, in rows per second, at which the scheme keeps up; `NothingSustained` if there is none.

    `told` hears of each rate that is tried.
    """
    search, why = Search(own_rate(program)), ""
    warm = max(_WARM_MS, _EPOCHS * milliseconds(plan.every))
    trial = replace(plan, warm=f"{warm}ms", before="6s", after="4s", share=None)
    while (rate := search.next) is not None:
        outcome, why = _tried(program, rate, compared, trial, folder)
        if outcome in (Outcome.REFUSED, Outcome.NO_FAULT):
            raise NothingSustained(why)
        told(f"  {rate:,.0f} rows a second: {why or 'sustained'}")
        search.tried(rate, sustained=outcome is Outcome.MEASURED)
    if search.found is None:
        raise NothingSustained(f"no rate down to {_LEAST:g} rows a second is sustained: {why}")
    return search.found


def _tried(program: Program, rate: float, compared: Compared, trial: Plan, folder: Path) -> tuple[Outcome, str]:
    """Run the program at this rate, again if it was not ready in time."""
    prepared = prepare(program, rate, trial.seconds, shown_at_once=compared.shows_at_once)
    for _ in range(_TRIES):
        outcome, why = keeps_up(prepared, compared, trial, folder)
        if outcome is not Outcome.NO_FAULT:
            break
    return outcome, why
