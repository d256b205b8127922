"""Programs drawn from a schedule: which shape, how many splits and rows, in what order, with which sinks.

Invariant: the same bytes give the same program; zeros give the simplest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from recovery.testing.programs.aggregates import Totals, Windowed
from recovery.testing.programs.joined import Configured, Paired
from recovery.testing.programs.shape import Output, Shape
from recovery.testing.programs.sink import Keeping
from recovery.testing.programs.source import IDS_OF_A_SPLIT, Failing, Item, Quiet, SimulatedSource, Step, let_fail
from recovery.testing.programs.tallied import Tallied
from recovery.testing.programs.target import SimulatedTarget, forget_target, target
from snapshot.operators.operator import Per
from snapshot.program.plan import Plan
from snapshot.program.program import Program
from snapshot.testing.schedule import Schedule
from statebackend.ids import Uid

KEYS: Final = 4
_STEP: Final = 10
"""Milliseconds of event time from a row of a split to the next."""
_OUT_OF_ORDER: Final = 40
_IDLE: Final = 60
_LATER: Final = 100_000
"""Milliseconds of event time by which the rows after a long pause are later than all others."""
_PERS: Final[tuple[Per, ...]] = ("record", "batch", "end")
_KEEPINGS: Final = (
    (Keeping.TARGET,),
    (Keeping.TREE,),
    (Keeping.TARGET, Keeping.TREE),
    (Keeping.TREE, Keeping.TARGET, Keeping.TARGET),
)


@dataclass(frozen=True)
class DrawnProgram:
    """A program by its name, and the judge of what it does. `forget` it when its history is over."""

    name: str
    shape: Shape
    keepings: tuple[Keeping, ...]
    max_parallelism: int = 8

    @cached_property
    def program(self) -> Program:
        """Return the program."""
        return self.shape.program(self.name, self.keepings)

    @cached_property
    def plan(self) -> Plan:
        """Return the plan of the program."""
        return self.program.plan(self.max_parallelism)

    @property
    def target(self) -> SimulatedTarget:
        """Return the target of its sinks."""
        return target(self.name)

    def fail_by(self, failing: Failing | None) -> None:
        """Have its sources and functions ask this before each call, and raise what it raises; None: no more."""
        let_fail(self.name, failing)

    @property
    def output(self) -> Output:
        """Return what is visible now."""
        return {output.uid: self.target.rows(Uid(output.uid)) for output in self.program.outputs}

    @property
    def exactly_once(self) -> bool:
        """True if every sink writes exactly once."""
        return Keeping.NOWHERE not in self.keepings

    def forget(self) -> None:
        """Forget its target, and what its functions ask."""
        forget_target(self.name)
        self.fail_by(None)


def draw(schedule: Schedule, name: str) -> DrawnProgram:
    """Draw a program from the next bytes; of this name there must be no other."""
    drawer = _DRAWERS[schedule.number(len(_DRAWERS))]
    shape = drawer(schedule, name)
    keepings = _KEEPINGS[schedule.number(len(_KEEPINGS))]
    return DrawnProgram(name, shape, keepings, max_parallelism=(8, 4)[schedule.number(2)])


def _source(
    schedule: Schedule, name: str, *, base: int = 0, idle: bool = False, most_splits: int = 4, on_demand: bool = True
) -> SimulatedSource:
    """Draw a source. Splits that are given out one by one are later in event time, as those of a growing log."""
    splits, length = 1 + schedule.number(most_splits), 3 + schedule.number(6)
    piece, pace = (1, 2, 4, 8)[schedule.number(4)], (0.0, 0.005, 0.02, 0.05)[schedule.number(4)]
    one_by_one = on_demand and not idle and schedule.flag()
    steps = tuple(
        _split(split, length, base, begins=split * length if one_by_one else 0, idle=idle and split == 0)
        for split in range(splits)
    )
    return SimulatedSource(name, steps, piece, pace, one_by_one)


def _split(split: int, length: int, base: int, *, begins: int, idle: bool) -> tuple[Step, ...]:
    items: list[Step] = []
    for place in range(length):
        at = (begins + place) * _STEP + (split * 7 + place * 13) % _OUT_OF_ORDER
        if idle and place * 2 >= length:
            if not any(isinstance(item, Quiet) for item in items):
                items.append(Quiet(0.3))
            at += _LATER
        items.append(Item((split + place * 3) % KEYS, base + split * IDS_OF_A_SPLIT + place, at, place + 1))
    return tuple(items)


def _takes(schedule: Schedule) -> float:
    return (0.0, 0.004, 0.02, 0.001)[schedule.number(4)]


def _tallied(schedule: Schedule, name: str) -> Shape:
    window = (50, 0, 20)[schedule.number(3)]
    idle = window > 0 and schedule.number(4) == 3
    return Tallied(
        _source(schedule, name, idle=idle),
        window,
        every=(0, 20)[schedule.number(2)],
        out_of_order=_OUT_OF_ORDER,
        idle_after=_IDLE if idle else None,
        rebalanced=schedule.number(4) == 3,
        chained=schedule.number(3) == 2,
        takes=_takes(schedule),
    )


def _totals(schedule: Schedule, name: str) -> Shape:
    source = _source(schedule, name)
    per, rebalanced = _PERS[schedule.number(3)], schedule.number(4) == 3
    return Totals(source, per, rebalanced, summed=len(source.splits) % 2 == 1)


def _windowed(schedule: Schedule, name: str) -> Shape:
    branched = schedule.number(3) == 2
    idle = not branched and schedule.number(3) == 2
    return Windowed(
        _source(schedule, name, idle=idle, on_demand=not branched),
        (50, 20)[schedule.number(2)],
        _OUT_OF_ORDER,
        _IDLE if idle else None,
        branched,
        nested=not idle and schedule.number(3) == 2,
    )


def _paired(schedule: Schedule, name: str) -> Shape:
    return Paired(
        _source(schedule, name, most_splits=2),
        _source(schedule, name, base=100 * IDS_OF_A_SPLIT, most_splits=2),
        _takes(schedule),
    )


def _configured(schedule: Schedule, name: str) -> Shape:
    return Configured(
        _source(schedule, name, most_splits=2),
        _source(schedule, name, base=100 * IDS_OF_A_SPLIT, most_splits=1),
        _takes(schedule),
    )


_DRAWERS: Final[Sequence[Callable[[Schedule, str], Shape]]] = (
    _tallied,
    _totals,
    _windowed,
    _tallied,
    _paired,
    _configured,
    _totals,
)
