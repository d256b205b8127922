"""A protocol error that can be switched on, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from recovery.testing import job, journal_job
from snapshot.testing.search import Run
from tests.seeded import worlds

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class SeededError:
    """What is done wrong, how to make the code do it, and in which simulation the search looks for it."""

    sentence: str
    switch_on: Break
    world: Run
    seed: int = 0
    """From which the search finds it soon; `python -m tests.seeded.seeds` notes another one, should it not any more."""


ERRORS: list[SeededError] = []


def in_the_job(sentence: str, seed: int = 0) -> Callable[[Break], Break]:
    """Put an error into the table that a whole simulated job must show."""
    return _entry(sentence, job.run, seed)


def going_back(sentence: str, seed: int = 0) -> Callable[[Break], Break]:
    """Put an error into the table that a job must show which loses manifests or is started from a savepoint."""
    return _entry(sentence, job.run_going_back, seed)


def in_the_journal(sentence: str, seed: int = 0) -> Callable[[Break], Break]:
    """Put an error into the table that the journal must show, under drivers that do nothing else."""
    return _entry(sentence, journal_job.run, seed)


def among_committers(sentence: str, seed: int = 0) -> Callable[[Break], Break]:
    """Put an error into the table that two committers of one committable must show."""
    return _entry(sentence, worlds.run_committers, seed)


def at_a_receiver(sentence: str, seed: int = 0) -> Callable[[Break], Break]:
    """Put an error into the table that one receiver with confused senders must show."""
    return _entry(sentence, worlds.run_receiver, seed)


def _entry(sentence: str, world: Run, seed: int) -> Callable[[Break], Break]:
    def enter(switch_on: Break) -> Break:
        ERRORS.append(SeededError(sentence, switch_on, world, seed))
        return switch_on

    return enter
