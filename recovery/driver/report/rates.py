"""How many rows go in and out per second, from totals that partitions tell now and then.

What always holds: a rate is over the last five seconds or so; a partition that begins anew begins at nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from snapshot.host.protocol.messages import StageFigures
from statebackend.ids import Partition, Uid

_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Rows per second."""

    rows_in: float
    rows_out: float


class Rates:
    """Takes the totals of all partitions. Times are in seconds."""

    def __init__(self) -> None:
        self._seen: dict[Partition, deque[tuple[float, Mapping[Uid, StageFigures]]]] = {}

    def begin_anew(self) -> None:
        """Forget all totals: they begin at zero again."""
        self._seen.clear()

    def told(self, now: float, partition: Partition, stages: Mapping[Uid, StageFigures]) -> None:
        """Take the totals that a partition has told."""
        seen = self._seen.setdefault(partition, deque())
        seen.append((now, stages))
        while len(seen) > 2 and now - seen[1][0] >= _SECONDS:
            seen.popleft()

    def now(self) -> Mapping[Uid, Rate]:
        """Return the rates of each stage, summed over all partitions."""
        rates: dict[Uid, Rate] = {}
        for seen in self._seen.values():
            (began, before), (ended, after) = seen[0], seen[-1]
            for uid, stage in after.items():
                first, known = before.get(uid), rates.get(uid, Rate(0.0, 0.0))
                if first is None or ended <= began:
                    rates[uid] = known
                    continue
                seconds = ended - began
                rates[uid] = Rate(
                    known.rows_in + (stage.rows_in - first.rows_in) / seconds,
                    known.rows_out + (stage.rows_out - first.rows_out) / seconds,
                )
        return rates
