"""No promise is broken in any history of a whole simulated job whose partitions have two members, which send the same.

The jobs, faults and judges are those of `recovery.testing.simulated_job`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from recovery.testing.simulated_job import run_job
from snapshot.testing.schedule import Schedule
from tests.planted.seeds import schedule_of
from tests.replica_checks import watch_admissions, watch_copies
from tests.scheme_shapes import replicated

HISTORIES = 5
SHOWED = (1020, 1056, 1017, 1021)
"""Histories that showed errors: rows were read after a drained source had ended; a source that was late at each turn
never read; a member that joined was sent markers behind the end, and was cut before it had its state."""
JOINED = (22, 49, 5088, 5109)
"""Histories in which members joined, as the product was."""


@pytest.mark.timeout(0)
def test_a_job_keeps_its_promises_whatever_befalls_it(search_factor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watch_copies(monkeypatch)
    watch_admissions(monkeypatch)
    met: Counter[str] = Counter()
    for number in (*SHOWED, *JOINED, *range(1_000, 1_000 + HISTORIES * search_factor)):
        job = run_job(Schedule(schedule_of(number)), replicated)
        met.update(str(record.payload).partition(" ")[0] for record in job.history)
    assert met["ReplicaLost"]
    assert met["PrimaryMoved"]
    assert met["RedundancyRestored"] or search_factor == 1
