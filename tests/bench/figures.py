"""What every benchmark reports: a number, its unit, the runs that it is the median of, and the CPU time they took.

Invariant: a figure is one line of JSON, and its value is the median of its runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RUNS = 3
"""How often what is timed is repeated."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a workload came to."""

    workload: str
    figure: str
    unit: str
    runs: tuple[float, ...]
    cpu_s: float

    @property
    def value(self) -> float:
        """The median of the runs."""
        return median(self.runs)

    def json(self) -> str:
        """The figure as it is printed."""
        return json.dumps(
            {
                "workload": self.workload,
                "figure": self.figure,
                "value": rounded(self.value),
                "unit": self.unit,
                "runs": [rounded(run) for run in self.runs],
                "cpu_s": rounded(self.cpu_s),
            }
        )


def figure(workload: str, name: str, unit: str, runs: Sequence[float], cpu_s: float) -> Figure:
    """The figure with these runs."""
    return Figure(workload, name, unit, tuple(runs), cpu_s)


def progress(text: str) -> None:
    """Tell the person who waits what is being done; the standard output has figures only."""
    print(text, file=sys.stderr, flush=True)


def rounded(value: float) -> float:
    """Four significant digits: more would only be noise."""
    return float(f"{value:.4g}")
