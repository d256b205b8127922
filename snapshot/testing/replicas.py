"""Replicas of an operator that lead different lives with the same input: what they emit has to be the same, to the bit.

Invariant: lives differ in nothing that an operator may go by. All of them are given the same rows and times in the same
order, so an operator that emits other rows in one of them is not deterministic.

    steps = [Arrive([("ann", 3), ("bob", 4)], times=[1_000, 2_000]), EventTime(5_000), Arrive([("ann", 1)], [6_000])]
    check_replicas(Fraud, steps, columns={"user": str, "amount": int}, key="user", timed=True)  # a KeyedProcess
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, Literal, TypeAlias, TypeGuard, cast

import pyarrow as pa

from snapshot.operators.operator import KeyedOperator, Transform, never
from snapshot.operators.row_class import shown_row
from snapshot.operators.rows import Rows, joined
from snapshot.program.nodes import NO_SIDES
from snapshot.program.pickling import dumps, loads
from snapshot.program.program import Program
from snapshot.testing.operators import (
    BatchLike,
    OperatorHarness,
    OperatorSnapshot,
    Tested,
    tested_operator,
    transformed,
)
from statebackend.child_python import command_of, environment
from statebackend.columns import SchemaLike

_MEMORY: Final = 128 << 20
_NEXT_TO_NOTHING: Final = 1 << 12
_LATER: Final = 400 * 86_400 + 12_345.678
"""By so many seconds the clock of the other process is ahead."""
_BITS: Final = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_SEEDS: Final = ("1", "2")
_CUTS: Final = 3
"""So often an operator is cut and restored in the middle of a step."""


_ORDER: Final = "the order in which things lie in memory"
_KEPT: Final = f"what it keeps outside of its declared state, or {_ORDER}"


@dataclass(frozen=True, slots=True)
class Arrive:
    """Rows come to an input, with event times if that has some."""

    rows: BatchLike
    times: Sequence[int] | None = None
    input: int = 0


@dataclass(frozen=True, slots=True)
class EventTime:
    """Event time comes to this time, in milliseconds."""

    to: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Processing time comes to this time, in milliseconds, and timers up to it fire."""

    to: int


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """All input of the run has ended."""


Step: TypeAlias = Arrive | EventTime | Clock | EndOfInput


class Life(Enum):
    """The lives of replicas: what becomes of one, and what an operator goes by that emits other rows then."""

    AGAIN = "was run once more", "the clock, or random numbers that are not of ctx.random"
    ELSEWHERE = (
        "ran in a process with another hash seed, clock and time zone",
        "the order of a set, the clock, id(), or random numbers that are not of ctx.random",
    )
    RESTORED = "was restored from a snapshot at the marker", _KEPT
    INTERRUPTED = (
        "was interrupted after each call, and restored in the middle of the step after the marker",
        _KEPT,
    )
    REWOUND = "went back in place to the marker", _KEPT
    RESCALED = (
        "was restored from a snapshot of another parallelism",
        "the number of its partition, or rows of other keys",
    )
    EVICTED = "had its tables on the disk", _ORDER
    IN_ROCKSDB = "had its state in RocksDB", _ORDER


class ReplicasDiffer(AssertionError):
    """Replicas of an operator emitted different rows; the message shows the first ones."""


Outcome: TypeAlias = Mapping[tuple[str | None, int], Rows]
"""The rows that a step brought, by side output and partition."""

Outcomes: TypeAlias = Iterator[tuple[int, Outcome]]
"""The outcomes of steps, each with the number of its step."""


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """An operator or a transform, its input, and the number of steps before the marker."""

    tested: KeyedOperator | Transform
    steps: tuple[Step, ...]
    parallelism: int
    marker: int


def check_replicas(
    tested: Tested | Transform,
    steps: Sequence[Step],
    *,
    columns: SchemaLike | None = None,
    key: str | Sequence[str] = (),
    timed: bool = False,
    schema: SchemaLike | None = None,
    sides: Mapping[str, SchemaLike] = NO_SIDES,
    uid: str | None = None,
    parallelism: int = 2,
    marker: int | None = None,
    seed: int = 0,
    lives: Sequence[Life] = tuple(Life),
) -> None:
    """Give the steps to a replica that lives undisturbed, and to one for each of the `lives`; compare what they emit.

    `tested` and what describes it are as for `OperatorHarness`. The marker at which replicas are cut stands after so
    many steps, by default after as many as `seed` chooses. `ReplicasDiffer` names the life, the step and the first rows
    that differ. The rows of a transform, such as `MapRows`, are given as record batches.
    """
    under_test = (
        tested
        if _is_transform(tested)
        else tested_operator(cast("Tested", tested), columns, key, timed, schema, sides, uid)
    )
    marker = Random(seed).randint(0, len(steps)) if marker is None else marker
    trial = _Trial(under_test, tuple(steps), parallelism, marker)
    with TemporaryDirectory() as folder:
        lived = dict(_outcomes(trial, None, Path(folder)))
        for life in lives:
            for at, outcome in _outcomes(trial, life, Path(folder)):
                _compare(trial, life, at, lived[at], outcome)


def _is_transform(tested: object) -> TypeGuard[Transform]:
    return not isinstance(tested, type | Program) and not hasattr(tested, "states") and hasattr(tested, "open")


# --- lives ------------------------------------------------------------------------------------------------------------


def _outcomes(trial: _Trial, life: Life | None, folder: Path) -> Outcomes:
    """Yield what the steps bring in such a life, None for an undisturbed one."""
    if life is Life.ELSEWHERE:
        return _elsewhere(trial, folder)
    if _is_transform(trial.tested):
        return _transformed(trial, trial.tested)
    replica = _Replica(trial, cast("KeyedOperator", trial.tested), folder)
    match life:
        case None | Life.AGAIN:
            return replica.undisturbed()
        case Life.INTERRUPTED:
            return replica.interrupted()
        case Life.REWOUND:
            return replica.rewound()
        case Life.RESCALED:
            return replica.restored(before=trial.parallelism + 1)
        case Life.EVICTED:
            return replica.restored(memory=_NEXT_TO_NOTHING)
        case Life.IN_ROCKSDB:
            return replica.restored(backend="rocksdb")
        case Life.RESTORED:
            return replica.restored()


def _transformed(trial: _Trial, transform: Transform) -> Outcomes:
    """Yield what a transform makes of the rows; it is opened for each step, as it has no state."""
    for at, step in enumerate(trial.steps):
        if not isinstance(step, Arrive) or not isinstance(step.rows, pa.RecordBatch):
            raise TypeError(f"{transform.label}: a transform takes steps Arrive(batch), and step {at + 1} is {step!r}")
        made = transformed(transform, step.rows, step.rows.schema, step.times)
        yield at, {(None, 0): joined(made)} if made else {}


class _Replica:
    """A replica of a keyed operator, from its first step to its last."""

    def __init__(self, trial: _Trial, operator: KeyedOperator, folder: Path) -> None:
        self._trial, self._operator, self._folder = trial, operator, folder

    def undisturbed(self) -> Outcomes:
        """Play all steps."""
        with self._harness() as harness:
            yield from self._play(harness, 0, len(self._trial.steps))

    def restored(
        self, *, before: int | None = None, backend: Literal["heap", "rocksdb"] = "heap", memory: int = _MEMORY
    ) -> Outcomes:
        """Cut at the marker, and restore; the outcomes from before are left out if the parallelism was another one."""
        trial = self._trial
        with self._harness(before, backend=backend, memory=memory) as harness:
            outcomes = list(self._play(harness, 0, trial.marker))
            snapshot = harness.cut()
        if before is None:
            yield from outcomes
        with self._harness(snapshot=snapshot, backend=backend, memory=memory) as harness:
            yield from self._play(harness, trial.marker, len(trial.steps))

    def rewound(self) -> Outcomes:
        """Play all steps, go back in place to the marker, and play those behind it again."""
        marker, end = self._trial.marker, len(self._trial.steps)
        with self._harness() as harness:
            yield from self._play(harness, 0, marker)
            snapshot = harness.cut()
            yield from self._play(harness, marker, end)
            self._go_back(harness, snapshot)
            yield from self._play(harness, marker, end)

    def interrupted(self) -> Outcomes:
        """Interrupt all calls, and restore the operator a few times while it is at the step behind the marker."""
        marker, end = self._trial.marker, len(self._trial.steps)
        cuts = 0

        def restore(harness: OperatorHarness) -> None:
            nonlocal cuts
            if 0 < cuts <= _CUTS:
                cuts += 1
                self._go_back(harness, harness.cut(), now=harness.now)

        with self._harness(overdue=lambda: True, interrupted=restore) as harness:
            yield from self._play(harness, 0, marker)
            cuts = 1
            yield from self._play(harness, marker, min(marker + 1, end))
            cuts = 0
            yield from self._play(harness, marker + 1, end)

    def _go_back(self, harness: OperatorHarness, snapshot: OperatorSnapshot, now: int | None = None) -> None:
        if not harness.rewind(snapshot):
            raise AssertionError(f"{self._operator.label}: its state cannot go back in place to a cut that it has made")
        harness.now = self._clock(self._trial.marker) if now is None else now

    def _harness(
        self,
        parallelism: int | None = None,
        *,
        snapshot: OperatorSnapshot | None = None,
        backend: Literal["heap", "rocksdb"] = "heap",
        memory: int = _MEMORY,
        overdue: Callable[[], bool] = never,
        interrupted: Callable[[OperatorHarness], object] = lambda _: None,
    ) -> OperatorHarness:
        harness = OperatorHarness(
            self._operator,
            self._folder,
            parallelism=parallelism or self._trial.parallelism,
            backend=backend,
            memory=memory,
            snapshot=snapshot,
            overdue=overdue,
            interrupted=interrupted,
        )
        harness.now = 0 if snapshot is None else self._clock(self._trial.marker)
        return harness

    def _clock(self, steps: int) -> int:
        """Return the processing time after so many steps."""
        return max((step.to for step in self._trial.steps[:steps] if isinstance(step, Clock)), default=0)

    def _play(self, harness: OperatorHarness, first: int, end: int) -> Outcomes:
        for at in range(first, end):
            match self._trial.steps[at]:
                case Arrive(rows, times, input):
                    harness.rows(rows, times, input)
                case EventTime(to):
                    harness.watermark(to)
                case Clock(to):
                    harness.wake(to)
                case EndOfInput():
                    harness.end()
            yield at, self._collected(harness)

    def _collected(self, harness: OperatorHarness) -> Outcome:
        outputs = [(side, part) for side in (None, *self._operator.sides) for part in range(self._trial.parallelism)]
        found = {(side, part): harness.emitted_rows(side, part) for side, part in outputs}
        harness.clear()
        return {output: rows for output, rows in found.items() if rows is not None}


# --- another process --------------------------------------------------------------------------------------------------


def _elsewhere(trial: _Trial, folder: Path) -> Outcomes:
    """Yield the outcomes of an undisturbed replica in a process that has little in common with this one."""
    given, found = folder / "trial", folder / "outcomes"
    given.write_bytes(dumps(trial))
    seed = next(seed for seed in _SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    ended = subprocess.run(
        command_of("snapshot.testing.replicas", [str(given), str(found)]),
        env={**environment(), "PYTHONHASHSEED": seed, "TZ": "Asia/Kathmandu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise AssertionError(f"{trial.tested.label} cannot run in another process:\n{ended.stderr}")
    return iter(cast("list[tuple[int, Outcome]]", loads(found.read_bytes())))


def _set_the_clock_ahead() -> None:
    wall = time.time
    time.time = lambda: wall() + _LATER
    time.time_ns = lambda: int(time.time() * 1e9)


def main() -> None:
    """Run the trial in the file that is named first, and write its outcomes to the file that is named second."""
    given, found = map(Path, sys.argv[1:])
    _set_the_clock_ahead()  # before the modules of the trial are imported
    trial = cast("_Trial", loads(given.read_bytes()))
    found.write_bytes(dumps(list(_outcomes(trial, None, given.parent))))


# --- comparing --------------------------------------------------------------------------------------------------------


def _compare(trial: _Trial, life: Life, at: int, lived: Outcome, found: Outcome) -> None:
    for side, part in sorted(lived.keys() | found.keys(), key=lambda output: (output[0] or "", output[1])):
        one, other = lived.get((side, part)), found.get((side, part))
        rows = zip_longest(_exactly(one), _exactly(other))
        place = next((place for place, (here, there) in enumerate(rows) if here != there), None)
        if place is None:
            continue
        what, suspects = life.value
        output = "" if side is None else f", side output {side!r}"
        raise ReplicasDiffer(
            f"{trial.tested.label}: a replica that {what} emits other rows than one that lived undisturbed; the marker "
            f"stands after step {trial.marker}\n"
            f"step {at + 1} of {len(trial.steps)}: {_in_short(trial.steps[at])}\n"
            f"partition {part}{output}, row {place + 1}:\n"
            f"    undisturbed: {_row(one, place)}\n"
            f"    the other:   {_row(other, place)}\n"
            f"Rows may depend on the rows and times before them alone; perhaps these depend on {suspects}."
        )


def _in_short(step: Step) -> str:
    if not isinstance(step, Arrive):
        return str(step)
    number = step.rows.num_rows if isinstance(step.rows, pa.RecordBatch) else len(step.rows)
    return f"{number} {'row arrives' if number == 1 else 'rows arrive'} at input {step.input}"


def _row(rows: Rows | None, place: int) -> str:
    if rows is None or place >= len(rows):
        return "no row" if not place else "no more rows"
    return shown_row(rows.batch, place) + ("" if rows.times is None else f" at {rows.times[place]}")


def _exactly(rows: Rows | None) -> list[tuple[object, ...]]:
    """Return values that are equal exactly if the rows are, to the bit."""
    if rows is None:
        return []
    columns = [*map(_values, rows.batch.columns), *([] if rows.times is None else [rows.times.tolist()])]
    return list(zip(*columns, strict=True)) if columns else [()] * len(rows)


def _values(column: pa.Array) -> list[object]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _values(column.cast(kind.value_type))
    if (pa.types.is_floating(kind) or pa.types.is_temporal(kind)) and kind.bit_width in _BITS:
        return list(column.view(_BITS[kind.bit_width]).to_pylist())
    if pa.types.is_nested(kind):
        return [repr(value) for value in column.to_pylist()]  # which tells -0.0 from 0.0
    return list(column.to_pylist())


if __name__ == "__main__":
    import_module("snapshot.testing.replicas").main()  # whose classes are those of the trial
