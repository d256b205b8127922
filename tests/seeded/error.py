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


ERRORS: list[SeededError] = []


def in_the_job(sentence: str) -> Callable[[Break], Break]:
    """Put an error into the table that a whole simulated job must show."""
    return _entry(sentence, job.run)


def in_the_journal(sentence: str) -> Callable[[Break], Break]:
    """Put an error into the table that the journal must show, under drivers that do nothing else."""
    return _entry(sentence, journal_job.run)


def among_committers(sentence: str) -> Callable[[Break], Break]:
    """Put an error into the table that two committers of one committable must show."""
    return _entry(sentence, worlds.run_committers)


def at_a_receiver(sentence: str) -> Callable[[Break], Break]:
    """Put an error into the table that one receiver with confused senders must show."""
    return _entry(sentence, worlds.run_receiver)


def _entry(sentence: str, world: Run) -> Callable[[Break], Break]:
    def enter(switch_on: Break) -> Break:
        ERRORS.append(SeededError(sentence, switch_on, world))
        return switch_on

    return enter
