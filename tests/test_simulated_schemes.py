"""No promise is broken in any history of a whole simulated job under the schemes that pause sources.

The jobs, faults and judges are those of `recovery.testing.simulated_job`.
"""

from __future__ import annotations

import pytest

from recovery.testing.simulated_job import run_job
from snapshot.testing.schedule import Schedule
from tests.planted.seeds import schedule_of
from tests.scheme_checks import watch
from tests.scheme_shapes import Changed, micro_batches, synchronous

HISTORIES = 20
SHOWED: dict[Changed, tuple[int, ...]] = {synchronous: (), micro_batches: (0, 8, 18, 30, 35)}
"""Histories that showed errors of a scheme when it was written."""


@pytest.mark.timeout(0)
@pytest.mark.parametrize("changed", [synchronous, micro_batches], ids=["synchronous", "micro-batches"])
def test_a_job_keeps_its_promises_whatever_befalls_it(
    changed: Changed, monkeypatch: pytest.MonkeyPatch, search_factor: int
) -> None:
    watch(monkeypatch, batches=changed is micro_batches)
    for number in {*SHOWED[changed], *range(1_000, 1_000 + HISTORIES * search_factor)}:
        run_job(Schedule(schedule_of(number)), changed)
