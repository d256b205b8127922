"""Histories in which a planted error shows, as traces for the specifications that may see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest import MonkeyPatch

from snapshot.testing import Schedule
from snapshot.testing.tla import Trace
from tests.planted.error import ERRORS
from tests.planted.seeds import schedule_of
from tests.specs import job

UNSEEN: Final[dict[str, str]] = {}
"""Errors that no specification rejects, and why."""


def traces() -> Iterator[tuple[str, Trace]]:
    """Yield the name of each specification with the history that is noted for each planted error."""
    for error in ERRORS:
        with MonkeyPatch.context() as patch:
            error.switch_on(patch)
            shown, violation = job.trace(Schedule(schedule_of(error.shown_by)), error.sentence)
            assert violation is not None, f"history {error.shown_by} does not show that {error.sentence}"
        for name, actions in job.SPECIFICATIONS.items():
            yield name, job.only(shown, actions)
