"""Readings of the machine: processor time of a job's processes and of all others, memory, bytes on the loopback.

Invariant: the time of a process that has ended is not lost, as long as its parent has waited for it.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_IDLE: Final = (3, 4)
"""Places in the first line of /proc/stat: idle, and waiting for a disk."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The totals of the machine at a moment; what lies between two of them is their difference."""

    at: float
    """Seconds of a clock that never goes back."""
    ours_s: float
    """Processor time of this process, its children and theirs."""
    machine_s: float
    """Processor time of all processes of the machine and of its kernel."""
    loopback_bytes: int
    """Bytes that have come over the loopback, those of other programs too."""


@dataclass(frozen=True, slots=True)
class Span:
    """The use of the machine between two readings."""

    seconds: float
    cpu_s: float
    others_cpu_s: float
    loopback_bytes: int

    @classmethod
    def between(cls, began: Reading, ended: Reading) -> Span:
        """Return what was used between the two."""
        ours = ended.ours_s - began.ours_s
        others = max(0.0, ended.machine_s - began.machine_s - ours)
        return cls(ended.at - began.at, ours, others, ended.loopback_bytes - began.loopback_bytes)


def read_machine() -> Reading:
    """Return the totals now."""
    return Reading(time.monotonic(), cpu_seconds_of_all(), _machine_seconds(), _loopback_bytes())


def cpu_seconds_of_all() -> float:
    """Return user and system time of this process, its children and theirs, in seconds."""
    times, family = _processes()
    return sum(times.get(process, 0) for process in family) / _TICKS


def memory_of_all() -> int:
    """Return the bytes of memory of this process, its children and theirs; what they share counts once."""
    total = 0
    for process in _processes()[1]:
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return total


def _processes() -> tuple[dict[int, int], list[int]]:
    """Return the ticks of all processes of the machine, those of ended children included, and which are ours."""
    times: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # a process that has ended in between is in the times of its parent
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                times[int(entry.name)] = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    ours = [os.getpid()]
    for process in ours:
        ours += children.get(process, [])
    return times, ours


def _machine_seconds() -> float:
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    return sum(int(value) for place, value in enumerate(fields) if place not in _IDLE) / _TICKS


def _loopback_bytes() -> int:
    with suppress(OSError):
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, values = line.partition(":")
            if name.strip() == "lo":
                return int(values.split()[0])
    return 0


def describe_machine() -> dict[str, str]:
    """Return what has to be known of the machine and of the versions to read figures that were measured here."""
    return dict(_described())


def _described() -> Iterator[tuple[str, str]]:
    yield "cores", str(len(os.sched_getaffinity(0)))
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        yield "processor", next((line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown")
    with suppress(OSError):
        yield "memory", Path("/proc/meminfo").read_text().split(":", 1)[1].splitlines()[0].strip()
    yield "system", f"{platform.system()} {platform.release()}"
    yield "python", platform.python_version()
    yield "epochcut", version("epochcut")
    yield "pyarrow", version("pyarrow")
