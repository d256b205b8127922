"""Whole jobs in simulation: the real driver and the real processes, on simulated clocks, threads, links and store.

A schedule decides the program, how it is run, and all that befalls it; `examples/simulated_recovery.py` looks for a
history with a story.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.on_demand import on_demand

if TYPE_CHECKING:
    from recovery.testing.simulated_job import run as run
    from recovery.testing.simulated_job import run_job as run_job
    from recovery.testing.whole.adversary import Act as Act
    from recovery.testing.whole.job import Job as Job
    from recovery.testing.whole.shape import JobShape as JobShape

_HOME = {
    "recovery.testing.simulated_job": ("run", "run_job"),
    "recovery.testing.whole.adversary": ("Act",),
    "recovery.testing.whole.job": ("Job",),
    "recovery.testing.whole.shape": ("JobShape",),
}

__all__, __getattr__, __dir__ = on_demand(__name__, _HOME)
