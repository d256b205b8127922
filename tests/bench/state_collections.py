"""What a change of a list or a map costs when it is made over and over: at the start, and after 100,000 of them.

Invariant: each operation leaves the newest five of its key, so all of them find and leave the same; what is
measured is the CPU time of the thread that works, in rounds of operations, without the cuts between the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from statebackend.keyed_state import KeyedState
from statebackend.operator import Operator
from statebackend.states.declarations import ListState, MapState
from tests.bench.figures import Figure, figure, progress
from tests.bench.state_inputs import WORKLOAD, Bench, opened
from tests.bench.state_throughput import cpu_seconds

NEWEST = 5
OPERATOR = Operator("newest", key=int, states={"list": ListState(int), "map": MapState(int, int)})
_MEMORY = 256 << 20
_COMPARED = 5
"""So many rounds at the start and at the end; the first of all is left out, as keys come in it."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many keys there are, and how many operations, in all and in a round."""

    keys: int
    operations: int
    round: int


FULL, SMALL = Size(100, 100_000, 2_000), Size(20, 2_400, 200)

Operation = Callable[[KeyedState, int], None]


def _replace(state: KeyedState, number: int) -> None:
    numbers = state["list"]
    numbers.replace([*numbers.get(), number][-NEWEST:])


def _clear_and_extend(state: KeyedState, number: int) -> None:
    numbers = state["list"]
    newest = [*numbers.get(), number][-NEWEST:]
    numbers.clear()
    numbers.extend(newest)


def _put_and_remove(state: KeyedState, number: int) -> None:
    numbers = state["map"]
    numbers.put(number, number)
    keys = list(numbers.keys())
    if len(keys) > NEWEST:
        numbers.remove(keys[0])


_OPERATIONS = {"replace": _replace, "clear_and_extend": _clear_and_extend, "put_and_remove": _put_and_remove}


def _nothing(bench: Bench) -> None:
    """No cut is made."""


def _complete(bench: Bench) -> None:
    bench.complete()


def _cut(bench: Bench) -> None:
    """An epoch that is never completed."""
    bench.cut()
    bench.state.poll()


def _rewind(bench: Bench) -> None:
    """All keys are changed, and that is taken back: each is looked up in the files again."""
    bench.complete()
    complete = bench.epoch
    for number in range(FULL.keys):
        bench.state.set_key(number)
        for operation in _OPERATIONS.values():
            operation(bench.state, number)
    bench.cut()
    if not bench.state.rewind(complete, bench.files, bench.names):
        raise RuntimeError(f"the state did not go back to epoch {complete}")


_BETWEEN = {"uncut": _nothing, "completed": _complete, "never_completed": _cut, "rewound": _rewind}


def figures(size: Size) -> Iterator[Figure]:
    """Microseconds per operation at the start and at the end, by what is done between the rounds."""
    for name, operation in _OPERATIONS.items():
        for between, action in _BETWEEN.items():
            begun = cpu_seconds()
            rounds = _rounds(size, operation, action)
            first, last = rounds[1 : 1 + _COMPARED], rounds[-_COMPARED:]
            spent, prefix = cpu_seconds() - begun, f"{name}_{between}"
            progress(f"{WORKLOAD}: {prefix}: {median(first):.2f} us at first, {median(last):.2f} us at the end")
            yield figure(WORKLOAD, f"{prefix}_first_us", "us", first, spent)
            yield figure(WORKLOAD, f"{prefix}_last_us", "us", last, spent)


def _rounds(size: Size, operation: Operation, between: Callable[[Bench], None]) -> list[float]:
    rounds = []
    with opened(memory=_MEMORY, operator=OPERATOR) as bench:
        for first in range(0, size.operations, size.round):
            begun = time.thread_time()
            for number in range(first, first + size.round):
                bench.state.set_key(number % size.keys)
                operation(bench.state, number)
            rounds.append((time.thread_time() - begun) / size.round * 1e6)
            between(bench)
    return rounds
