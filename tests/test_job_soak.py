"""What the soak says of measures that grow, and of such that only go up and down."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from recovery.driver.report.event_log import KEPT
from tests.job_soak import LIMITS, Samples, descendants, slope

MINUTES = 10
TIMES = [float(second) for second in range(60 * MINUTES)]


def samples(**grows: float) -> Samples:
    """Of ten minutes, in which these measures grow by so much per minute, in teeth of twenty seconds."""
    found = Samples()
    for second in TIMES:
        measured = dict.fromkeys(LIMITS, 1000000 + 5000 * (second % 20))
        measured |= {name: measured[name] + second / 60 * more for name, more in grows.items()}
        found.add(second, int(second * KEPT / 200), measured)
    return found


def test_the_slope_of_a_line_is_that_of_the_line() -> None:
    found = slope("tree bytes", TIMES, [3.0 * second for second in TIMES])
    assert found.per_minute == pytest.approx(180)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert slope("tree files", TIMES, [7.0] * len(TIMES)).per_minute == pytest.approx(0, abs=1e-9)


def test_what_goes_up_and_down_does_not_grow() -> None:
    assert [one.name for one in samples().slopes() if not one.within] == []


def test_what_killed_attempts_leave_is_noticed() -> None:
    grown = [one for one in samples(**{"tree bytes": 350_000.0}).slopes() if not one.within]
    assert [one.name for one in grown] == ["tree bytes"]
    assert "GROWS" in grown[0].line()


def test_the_drivers_memory_is_judged_from_when_as_many_events_are_kept_as_ever_will_be() -> None:
    measured = samples()
    memory = measured.values["driver's memory"]
    for second in range(400):
        memory[second] += 10_000 * second
    memory[400:] = [value + 4_000_000 for value in memory[400:]]
    measured.events = [KEPT - 1] * 400 + [KEPT] * (len(TIMES) - 400)
    [found] = [one for one in measured.slopes() if one.name == "driver's memory"]
    assert found.judged
    assert found.within
    measured.events = [KEPT - 1] * len(TIMES)
    [found] = [one for one in measured.slopes() if one.name == "driver's memory"]
    assert not found.judged
    assert "not judged" in found.line()


def test_all_processes_below_one_are_found_and_known_to_be_gone() -> None:
    below = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", below], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = descendants(os.getpid())
        assert len([one for one in found if one.pid == process.pid]) == 1
        assert len(descendants(process.pid)) == 1
        assert all(one.there for one in found)
        process.communicate(b"\n")
    assert not any(one.there for one in found if one.pid == process.pid)
