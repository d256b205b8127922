"""The CPU time of a benchmark: of this process and of all that were started from it, Spark's JVM included.

Invariant: the time of a process that has ended is not lost, as long as whoever started it has waited for it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cpu_seconds_of_all() -> float:
    """User and system time of this process, its children and theirs, in seconds."""
    times: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # a process that has ended in between is in the times of its parent
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                times[int(entry.name)] = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        ticks += times.get(process, 0)
        waiting += children.get(process, [])
    return ticks / os.sysconf("SC_CLK_TCK")
