"""The wiring of a job's processes, as plain data: all of its recovery scheme that concerns partitions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByArrival:
    """A stage takes what comes in the order in which it comes, sources are read when there is room, sinks write."""


Wiring = ByArrival
