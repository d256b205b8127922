"""The stages of a partition at markers that admit another member, until each of them has cut.

Invariant: epochs overlap, and each stage cuts for them in their order. So when all have cut for one, nothing of an
older one is awaited any more, and what they have cut for newer ones stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from snapshot.host.protocol.stage_now import StageNow
from statebackend.ids import Epoch, Uid


class CutStages:
    """The places at which so many stages were when they cut, by epoch."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._cuts: dict[Epoch, dict[Uid, StageNow]] = {}

    def add(self, epoch: Epoch, uid: Uid, now: StageNow) -> Mapping[Uid, StageNow] | None:
        """Take note of a stage that has cut; return all of them if it was the last one, else None."""
        at = self._cuts.setdefault(epoch, {})
        at[uid] = now
        if len(at) < self._stages:
            return None
        self._cuts = {later: cuts for later, cuts in self._cuts.items() if later > epoch}
        return at

    def forget(self) -> None:
        """Forget all, as no member waits for it."""
        self._cuts.clear()
