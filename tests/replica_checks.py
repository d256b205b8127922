"""What replicas promise each other, checked in simulated jobs while these run.

All copies of a channel say the same: what is compared is what has come on them, by the place that its receiver gives
it. And when redundancy is restored, no member waits any more for the marker behind which the new one joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest import MonkeyPatch

from recovery.driver.attempts.joins import Joins
from snapshot.cut.frames import Data, Frame
from snapshot.host.flow.round_inlet import RoundInlet
from snapshot.host.partition.attempt import PartitionAttempt
from snapshot.host.partition.stage_inputs import StageInputs
from snapshot.ids import Copy, Member
from snapshot.operators.rows import Rows
from tests.scheme_checks import judge_at_the_end


def watch_copies(patch: MonkeyPatch) -> None:
    """Raise `Violation` at the end of a history in which two replicas sent different elements at one place."""
    broken: list[str] = []
    said: dict[Any, tuple[Copy, object]] = {}
    arrived = PartitionAttempt.arrived

    def compare(self: PartitionAttempt, copy: Copy, frame: Frame) -> None:
        inputs = self._stage_of[copy.channel].inputs
        if isinstance(inputs.inlet, RoundInlet) and not self._closed:
            at = inputs.inlet._first[copy.channel]._copies[copy]
            for place, element in enumerate(_elements(inputs, copy, frame), at.element):
                where = self._deploy.incarnation, copy.channel, at.segment, place
                other, before = said.setdefault(where, (copy, element))
                if before != element:
                    broken.append(f"{where}: {other} says {before}, {copy} {element}")
        arrived(self, copy, frame)

    judge_at_the_end(patch, broken, said.clear)
    patch.setattr(PartitionAttempt, "arrived", compare)


def watch_admissions(patch: MonkeyPatch) -> None:
    """Raise `Violation` at the end of a history in which a member was counted before all others had let it in."""
    broken: list[str] = []
    parked: list[tuple[PartitionAttempt, Member]] = []
    right_park, right_done = PartitionAttempt.park, Joins._done

    def park(self: PartitionAttempt, member: Member, *rest: Any) -> None:
        parked.append((self, member))
        right_park(self, member, *rest)

    def done(self: Joins, join: Any) -> None:
        for attempt, member in parked:
            deploy = attempt._deploy
            here = deploy.incarnation == join.attempt.incarnation and deploy.member in join.attempt.deployed.values()
            if here and not attempt._closed and member == join.member and member in attempt.parked:
                broken.append(f"{member} counts, and {deploy.member} has not let it in")
        right_done(self, join)

    judge_at_the_end(patch, broken, parked.clear)
    patch.setattr(PartitionAttempt, "park", park)
    patch.setattr(Joins, "_done", done)


def _elements(inputs: StageInputs, copy: Copy, frame: Frame) -> Iterator[object]:
    if not isinstance(frame, Data):
        yield frame
        return
    wire = inputs._wires[inputs.of(copy.channel).port_of]
    rows = frame.payload if isinstance(frame.payload, Rows) else wire.decode(frame)
    times = [None] * len(rows) if rows.times is None else rows.times.tolist()
    yield from zip(map(repr, rows.batch.to_pylist()), times, strict=True)
