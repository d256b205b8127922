"""Histories in which a planted error shows, as traces for the specifications that may see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest import MonkeyPatch

from snapshot.testing import Schedule
from snapshot.testing.tla import Trace
from tests.planted.error import ERRORS, PlantedError
from tests.planted.seeds import schedule_of
from tests.specs import job

HISTORIES: Final = 200
"""In so many, from the noted one on, an error has to show: a change of the product makes other histories."""

_STATE: Final = "the specifications do not know what states hold"
_TIME: Final = "the specifications know no event time"
_OF_A_SCHEME: Final = "under "
"""Errors of one scheme alone break promises that no other has; the specifications do not know them."""
UNSEEN: Final = {
    "a base is made of a backend that has not taken every delta": _STATE,
    "a drained source forgets where its splits are": "the epoch after the end has no more than the one before",
    "a sink's transaction is sealed after rows behind the marker": "the specifications do not count rows of sinks",
    "a watermark leaves before rows that wait for others to fill a batch": _TIME,
    "after a rescale a partition takes only its first parent's state": _STATE,
    "an attempt counts as over while its last epoch is being published, and its files as orphans": (
        "most histories show it by what the driver says, before an epoch is complete whose files are gone"
    ),
    "an epoch is durable while an earlier one's files are not": _STATE,
    "an input that has said nothing of event time does not hold it back": _TIME,
    "deletions are left out of the delta": _STATE,
    "timers that were set before a restore are forgotten by it": _STATE,
    "values that were read or written stay when the state is rewound": _STATE,
    "what an attempt has uploaded stays when it is rolled back, and goes with its generation alone": (
        "nothing wrong is done, only less"
    ),
}
"""Errors that no specification rejects, and why. The journal's own protocol is not specified, either."""


def traces() -> Iterator[tuple[str, Trace]]:
    """Yield the name of each specification with the first history from the noted one on in which an error shows."""
    for error in (error for error in ERRORS if not error.sentence.startswith(_OF_A_SCHEME)):
        shown = _shown(error)
        for name, actions in job.SPECIFICATIONS.items():
            yield name, job.only(shown, actions)


def _shown(error: PlantedError) -> Trace:
    with MonkeyPatch.context() as patch:
        error.switch_on(patch)
        for number in range(error.shown_by, error.shown_by + HISTORIES):
            trace, violation = job.trace(Schedule(schedule_of(number)), error.sentence)
            if violation is not None:
                return trace
    raise AssertionError(f"{HISTORIES} histories from {error.shown_by} on do not show that {error.sentence}")
