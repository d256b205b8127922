"""Finds for each planted error the first history that shows it, and notes it in the table.

python -m tests.planted.seeds [WORD ...]    the errors whose sentences have one of these words; all without one

An error that is found is entered with `@planted`, one that is not with `@seldom`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import pytest

import tests.planted.acks
import tests.planted.commit
import tests.planted.cut
import tests.planted.joins
import tests.planted.schemes
import tests.planted.state
import tests.planted.storage
import tests.planted.times  # noqa: F401  (importing fills the table)
from recovery.testing.simulated_job import run
from snapshot.testing.schedule import Schedule
from tests.planted.error import ERRORS, SELDOM, PlantedError

SIZES: Final = range(30, 110)
"""The lengths of schedules: about thirty bytes say how the job is run, and a few more each act of the adversary."""
BUDGET: Final = 2_000
"""Histories, as many as `make test` looks at. All errors are searched for in the same ones."""


@dataclass(frozen=True, slots=True)
class Found:
    """The history that shows an error, by its number, and the promise that is broken in it."""

    number: int
    violation: AssertionError


def schedule_of(number: int) -> bytes:
    """Return the schedule of the history with this number."""
    random = Random(number)
    return random.randbytes(random.choice(SIZES))


def shown_by(error: PlantedError, patch: pytest.MonkeyPatch, numbers: Iterable[int]) -> Found | None:
    """Return the first of these histories that shows the error; None if none does."""
    error.switch_on(patch)
    for number in numbers:
        try:
            run(Schedule(schedule_of(number)))
        except AssertionError as violation:
            return Found(number, violation)
    return None


def noted(text: str, sentence: str, number: int | None) -> str:
    """Return the text of a module with this number, None for none, in the line that enters the error, if it does."""
    entered = re.compile(
        rf'^@(?:planted|seldom)\(\s*"{re.escape(sentence)}",?\s*(?:shown_by=\d+,?\s*)?\)$', re.MULTILINE
    )
    if number is None:
        return entered.sub(f'@seldom("{sentence}")', text)
    return entered.sub(f'@planted("{sentence}", shown_by={number})' if number else f'@planted("{sentence}")', text)


def main(words: Sequence[str]) -> None:
    for error in [*ERRORS, *SELDOM]:
        if words and not any(word in error.sentence for word in words):
            continue
        with pytest.MonkeyPatch.context() as patch:
            found = shown_by(error, patch, range(BUDGET))
        print(f"{'-' if found is None else found.number + 1:>5}  {error.sentence}", flush=True)
        for module in Path(__file__).parent.glob("*.py"):
            number = None if found is None else found.number
            module.write_text(noted(module.read_text(), error.sentence, number))


if __name__ == "__main__":
    main(sys.argv[1:])
