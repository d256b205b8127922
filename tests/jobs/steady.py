"""A source that gives its rows no faster than at a rate, and the last of them only when a file is there.

Invariant: it gives the rows of the source within, in their order; what a reader was not running for is not made
up for, so a job that is killed again and again, or whose machine has much else to do, always has rows under way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from snapshot import Collection, Generate
from snapshot.program.source import Batch, Later, Reader, Reading, SplitContext

_TICK = 0.005
"""Seconds between two looks at the clock and at the gate."""
_LONGEST = 4 * _TICK
"""Seconds that count between two looks, if there were more."""


@dataclass(frozen=True, slots=True)
class Steady:
    """`rate` is in rows per second and split. While the file `gate` is not there, a split gives `held` rows at most;
    as soon as it is, everything comes as fast as it can.
    """

    source: Generate | Collection
    rate: float
    held: int
    gate: str

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def bounded(self) -> bool:
        return True

    @property
    def blocking(self) -> bool:
        return False

    @property
    def on_demand(self) -> bool:
        return False

    @property
    def discover_every(self) -> float | None:
        return None

    def check(self) -> Sequence[str]:
        return self.source.check()

    def discover(self, parallelism: int) -> Sequence[str]:
        return self.source.discover(parallelism)

    def open(self, context: SplitContext) -> Reader:
        return _Reader(self, self.source.open(context), context.position)


class _Reader:
    def __init__(self, source: Steady, within: Reader, position: object) -> None:
        self._source = source
        self._within = within
        self._given = position if isinstance(position, int) else 0
        self._due = float(self._given)
        self._looked = time.monotonic()
        self._open = False

    def read(self, most: int) -> Reading:
        self._open = self._open or Path(self._source.gate).exists()
        if not self._open:
            now = time.monotonic()
            self._due += min(now - self._looked, _LONGEST) * self._source.rate
            self._looked = now
            most = min(most, min(int(self._due), self._source.held) - self._given)
            if most < 1:
                return Later(time.time() + _TICK)
        reading = self._within.read(most)
        if isinstance(reading, Batch):
            assert isinstance(reading.position, int)
            self._given = reading.position
        return reading

    def close(self) -> None:
        self._within.close()
