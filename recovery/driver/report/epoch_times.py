"""The cost of each epoch, put together from the partitions' reports.

Invariant: an epoch's report has every partition that acknowledged it once; epochs that are over are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from recovery.events import EpochCompleted
from snapshot.host.protocol.messages import Acknowledgement, PartitionCost
from statebackend.ids import Epoch, Partition, Uid

_NOTED: Final = 100


@dataclass(slots=True)
class _UnderWay:
    triggered_at: float
    savepoint: bool
    costs: list[PartitionCost] = field(default_factory=list)
    states: dict[Uid, dict[Partition, int]] = field(default_factory=dict)


class EpochTimes:
    """Times are in milliseconds of a clock that never goes back; `at` is the time of day in seconds."""

    def __init__(self) -> None:
        self._epochs: dict[Epoch, _UnderWay] = {}
        self._last_complete: float | None = None

    def triggered(self, epoch: Epoch, now: float, *, savepoint: bool) -> None:
        """Take note that the epoch's marker has gone out."""
        self._epochs[epoch] = _UnderWay(now, savepoint)

    def acknowledged(self, said: Acknowledgement, now: float) -> None:
        """Take note that a partition's part is durable; do nothing for an epoch that is over."""
        epoch = self._epochs.get(said.epoch)
        if epoch is not None:
            epoch.costs.append(replace(said.cost, since_trigger_ms=now - epoch.triggered_at))
            for uid, subtask in said.subtasks.items():
                if subtask.state is not None:
                    size = sum(file.size for file in subtask.state.files)
                    epoch.states.setdefault(uid, {})[said.partition] = size

    def taken(self, epoch: Epoch) -> tuple[PartitionCost, ...]:
        """Return, for the notes, what the epoch took in each partition so far; of very many partitions, the slowest."""
        under_way = self._epochs.get(epoch)
        slowest = sorted(under_way.costs if under_way else (), key=lambda cost: -cost.since_trigger_ms)[:_NOTED]
        return tuple(sorted(slowest, key=lambda cost: cost.partition))

    def completed(self, epoch: Epoch, now: float, at: float, *, output: bool) -> EpochCompleted:
        """Return the report of an epoch that is in the journal now, and forget the epoch."""
        under_way = self._epochs.pop(epoch, None) or _UnderWay(now, savepoint=False)
        self._last_complete = under_way.triggered_at
        costs = sorted(under_way.costs, key=lambda cost: cost.partition)
        return EpochCompleted(
            at=at,
            epoch=epoch,
            savepoint=under_way.savepoint,
            since_trigger_ms=now - under_way.triggered_at,
            alignment_ms=max((cost.alignment_ms for cost in costs), default=0.0),
            sync_ms=max((cost.sync_ms for cost in costs), default=0.0),
            async_ms=max((cost.async_ms for cost in costs), default=0.0),
            state_bytes=sum(cost.state_bytes for cost in costs),
            channel_bytes=sum(cost.channel_bytes for cost in costs),
            partitions=tuple(costs),
            states=under_way.states,
            output=output,
        )

    def given_up(self, epoch: Epoch) -> None:
        """Forget an epoch that will never be complete."""
        self._epochs.pop(epoch, None)

    def age(self, now: float) -> float | None:
        """Return the time since the last complete epoch was triggered, or None if this driver has completed none."""
        return None if self._last_complete is None else now - self._last_complete
