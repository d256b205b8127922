"""How much memory a process holds."""

from __future__ import annotations

from pathlib import Path
from resource import RUSAGE_SELF, getpagesize, getrusage


def memory_of_process() -> int:
    """What this process holds; where the kernel does not say so, the most that it ever held."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
    except OSError:
        return getrusage(RUSAGE_SELF).ru_maxrss * 1024
