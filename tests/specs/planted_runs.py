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

HISTORIES: Final = 40
"""In so many, from the noted one on, an error is looked for: a change of the product makes other histories. That it is
found at all is for `tests/test_planted_errors.py` to see.
"""

_STATE: Final = "the specifications do not know what states hold"
_TIME: Final = "the specifications know no event time"
_OF_A_SCHEME: Final = ("under ", "a member that ")
"""Errors of one scheme alone, or of replicas, break promises that no other has; the specifications do not know them."""
_JOURNAL: Final = "the journal's own protocol is not specified"
UNSEEN: Final = {
    "a collision is taken for success": _JOURNAL,
    "a create that succeeded but whose answer was lost is taken for another writer's": _JOURNAL,
    "a reader does not pin what it reads": "the specifications do not know who reads without a pin",
    "a state that follows takes the last delta alone": _STATE,
    "a watermark leaves no time for rows that are out of order": _TIME,
    "an unknown outcome of a create is taken for success": _JOURNAL,
    "event time is announced before what it makes due is done": _TIME,
    "watermarks are left out of the cut": _TIME,
    "a compaction deletes entries before their summary is there": _JOURNAL,
    "a compaction deletes entries that came after its summary": _JOURNAL,
    "a restored list numbers its elements from the beginning": _STATE,
    "a table stays as it was when the state is rewound": _STATE,
    "after a rescale every partition processes all in-flight data": "rows are there twice before an epoch is triggered",
    "an ended channel is still waited for": "nothing wrong is done, only less",
    "broadcast state is left out of a restore": _STATE,
    "broadcast state of an older epoch is referred to again, though it has changed": _STATE,
    "event time follows the fastest input": _TIME,
    "the delta of a failed epoch is dropped while the job runs on": _STATE,
    "the snapshot reads state that has moved on": _STATE,
    "timers stay as they were when the state is rewound": _STATE,
    "two branches of a source that declare their event time alike share one watermark": _TIME,
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
"""Errors that no specification rejects in the histories that are noted, and why."""


def traces() -> Iterator[tuple[str, Trace]]:
    """Yield the name of each specification with the first history from the noted one on in which an error shows."""
    for error in (error for error in ERRORS if not error.sentence.startswith(_OF_A_SCHEME)):
        shown = _shown(error)
        if shown is None:
            print(f"{HISTORIES} histories from {error.shown_by} on do not show that {error.sentence}")
            continue
        for name, actions in job.SPECIFICATIONS.items():
            yield name, job.only(shown, actions)


def _shown(error: PlantedError) -> Trace | None:
    with MonkeyPatch.context() as patch:
        error.switch_on(patch)
        for number in range(error.shown_by, error.shown_by + HISTORIES):
            trace, violation = job.trace(Schedule(schedule_of(number)), error.sentence)
            if violation is not None:
                return trace
    return None
