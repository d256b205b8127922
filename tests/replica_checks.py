"""What replicas promise each other, checked in simulated jobs while these run: all copies of a channel say the same.

Invariant: what is compared is what has come on the copies, by the place that its receiver gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest import MonkeyPatch

from snapshot.cut.frames import Data, Frame
from snapshot.host.flow.round_inlet import RoundInlet
from snapshot.host.partition.attempt import PartitionAttempt
from snapshot.host.partition.stage_inputs import StageInputs
from snapshot.ids import Copy
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


def _elements(inputs: StageInputs, copy: Copy, frame: Frame) -> Iterator[object]:
    if not isinstance(frame, Data):
        yield frame
        return
    wire = inputs._wires[inputs.of(copy.channel).port_of]
    rows = frame.payload if isinstance(frame.payload, Rows) else wire.decode(frame)
    times = [None] * len(rows) if rows.times is None else rows.times.tolist()
    yield from zip(map(repr, rows.batch.to_pylist()), times, strict=True)
