"""The sources and sinks of simulated programs keep what any source and sink promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from recovery.testing.programs.sink import Keeping, ToSimulated
from recovery.testing.programs.source import Item, Quiet, SimulatedSource, Step
from recovery.testing.programs.target import Disturbance, TargetAway, forget_target, target
from snapshot.ids import JobId
from snapshot.program.source import Source
from snapshot.testing import sources
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SinkEnvironment, SinkTrial
from statebackend.ids import Uid


def visible(_: SinkEnvironment) -> list[str]:
    return [row for (row,) in target("kit").rows(Uid("the/sink"))]


@contextmanager
def out_of_reach() -> Iterator[None]:
    target("kit").disturb = lambda _: Disturbance.REFUSED
    try:
        yield
    finally:
        target("kit").disturb = lambda _: Disturbance.NONE


def trial(keeping: Keeping) -> SinkTrial:
    return SinkTrial(
        ToSimulated("kit", keeping),
        visible,
        lambda: forget_target("kit"),
        disturb=out_of_reach,
        pending=lambda job: target("kit").pending(job),
        elsewhere=["another"],
        outside=lambda: list(target("another").shown),
    )


TRIALS = {keeping: trial(keeping) for keeping in (Keeping.TARGET, Keeping.TREE)}

TestPreparedMachine = sink_machine(TRIALS[Keeping.TARGET]).TestCase
TestStagedMachine = sink_machine(TRIALS[Keeping.TREE]).TestCase


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("keeping", TRIALS, ids=lambda keeping: keeping.value)
def test_a_simulated_sink_passes_the_kit(keeping: Keeping, check: Callable[[SinkTrial], None]) -> None:
    check(TRIALS[keeping])


def test_a_call_whose_answer_is_lost_is_done_and_one_that_is_refused_is_not() -> None:
    at, sink, fates = target("calls"), Uid("out"), [Disturbance.REFUSED, Disturbance.LOST]
    at.disturb = lambda _: fates.pop(0)
    for count in (0, 1):
        with pytest.raises(TargetAway):
            at.show(JobId("job"), sink, [(1,)])
        assert len(at.rows(sink)) == count
    forget_target("calls")


@pytest.mark.parametrize("check", sources.CHECKS)
def test_a_simulated_source_passes_the_kit(check: Callable[[Source], None]) -> None:
    items = tuple(Item(i % 3, i, i * 10, i) for i in range(20))
    splits: tuple[tuple[Step, ...], ...] = (items[:9], (*items[9:12], Quiet(0.0), *items[12:]), ())
    check(SimulatedSource("kit", splits, piece=4, pace=0.0))
