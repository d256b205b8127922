"""No row is lost in any history of a whole simulated job under the scheme that acknowledges frames.

The jobs, faults and judges are those of `recovery.testing.simulated_job`, without control streams.
"""

from __future__ import annotations

from collections import Counter

import pytest

from recovery.testing.programs import drawn
from recovery.testing.simulated_job import run_job
from snapshot.testing.schedule import Schedule
from tests.planted.seeds import schedule_of
from tests.scheme_shapes import acknowledged, without_control_streams

HISTORIES = 20
SHOWED = (2011,)
"""A history that showed an error: a partition that restarted alone in a drained job read on."""


@pytest.mark.timeout(0)
def test_a_job_keeps_its_promises_whatever_befalls_it(monkeypatch: pytest.MonkeyPatch, search_factor: int) -> None:
    monkeypatch.setattr(drawn, "_DRAWERS", without_control_streams())
    met: Counter[str] = Counter()
    for number in (*SHOWED, *range(1_000, 1_000 + HISTORIES * search_factor)):
        job = run_job(Schedule(schedule_of(number)), acknowledged)
        met.update(str(record.payload).partition(" ")[0] for record in job.history)
    assert met["PartitionReplaced"] > 5
    assert met["PartitionReplaced"] <= met["PartitionLost"]
