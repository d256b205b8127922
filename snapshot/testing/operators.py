"""Functions, operators and transforms run without a host: rows in, rows out, cut and restored at any parallelism.

Invariant: a row goes to the partition that owns its key, as on a real exchange, and what an operator keeps
anywhere but in its declared state is lost at a restore, as in a real crash.

    payments = {"columns": {"user": str, "amount": int}, "key": "user", "timed": True}
    with OperatorHarness(Fraud, tmp_path, **payments) as harness:  # Fraud is a KeyedProcess
        harness.rows([{"user": "a", "amount": 3}], times=[1_000])
        harness.watermark(5_000)
        assert harness.emitted() == [("a", 3)]
        snapshot = harness.cut()
    with OperatorHarness(Fraud, tmp_path, **payments, parallelism=3, snapshot=snapshot) as harness:
        ...

For a program, `OperatorHarness(program, tmp_path, uid="per-minute")` runs the step with this uid: windows, aggregates,
functions of several streams.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST, LATEST
from snapshot.operators.function_operator import KeyedProcess
from snapshot.operators.keyed_function import KeyedFunction
from snapshot.operators.operator import (
    Input,
    KeyedOperator,
    Operator,
    OperatorContext,
    Transform,
    never,
)
from snapshot.operators.process_batch import BatchProcess
from snapshot.operators.row_class import Row, RowLike, batch_of, rows_of
from snapshot.operators.rows import Rows, joined, keys_in
from snapshot.program.building import CannotBuild, operator_of
from snapshot.program.nodes import NO_SIDES, Processing, Way
from snapshot.program.problems import InvalidProgram, Problem, near_names
from snapshot.program.program import Program
from statebackend.columns import SchemaLike, schema_of
from statebackend.files import FileSet, rescaled
from statebackend.ids import Epoch, Generation, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM, range_of
from statebackend.operator import Operator as StateOperator
from statebackend.options import Options
from statebackend.stores.local_store import LocalStore

_UID: Final = Uid("operator")

BatchLike: TypeAlias = "pa.RecordBatch | Sequence[RowLike]"
"""A batch of the input's schema, or its rows as tuples, lists or mappings."""


class BroadcastDiffers(AssertionError):
    """The partitions of an operator have different broadcast states, though all have had the same control rows."""


@dataclass(frozen=True, slots=True, eq=False)
class OperatorSnapshot:
    """The content of an operator in a cut: all that a restored one knows of the past."""

    epoch: Epoch
    parts: tuple[FileSet, ...]
    """Keyed state, in the folder of the harness that was cut."""
    broadcast: bytes | None
    watermark: int


Tested: TypeAlias = "KeyedProcess | BatchProcess | type[KeyedProcess] | type[BatchProcess] | Program | KeyedOperator"
"""The operators that a harness runs."""


class OperatorHarness:
    """The partitions of one operator, in one thread. What they emit is collected, partition by partition."""

    def __init__(
        self,
        tested: Tested,
        folder: Path,
        *,
        columns: SchemaLike | None = None,
        key: str | Sequence[str] = (),
        timed: bool = False,
        schema: SchemaLike | None = None,
        sides: Mapping[str, SchemaLike] = NO_SIDES,
        uid: str | None = None,
        parallelism: int = 1,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        backend: Literal["heap", "rocksdb"] = "heap",
        memory: int = 128 << 20,
        snapshot: OperatorSnapshot | None = None,
        overdue: Callable[[], bool] = never,
        interrupted: Callable[[OperatorHarness], object] = lambda _: None,
    ) -> None:
        """Open it, empty or from a snapshot of a harness in the same folder with the same maximum parallelism.

        A `KeyedProcess` or `BatchProcess`, a class or an instance, needs the `columns` of its rows, the `key` among
        them, and `timed` if the rows have event times; `schema` and `sides` as in `KeyedStream.process`. A `Program`
        needs the `uid` of the step to run. `InvalidProgram` says what is wrong with either.

        When `overdue` says so, an operator that can be interrupted is; it is given what it left at once. Before that
        `interrupted` is called, which may `cut` the harness and have it `rewind` to that.

        Event time goes on from the snapshot; it begins anew if it was at its end.

        `memory` is what the state of each partition may take.
        """
        operator = tested_operator(tested, columns, key, timed, schema, sides, uid)
        self.operator: Final = copy.deepcopy(operator)
        self.max_parallelism: Final = max_parallelism
        self._overdue, self._interrupted = overdue, interrupted
        self.now = 0
        """The processing time that the operator sees when it takes rows."""
        self._watermark = EARLIEST if snapshot is None else _going_on(snapshot.watermark)
        self._epoch = Epoch(Generation(1), 0) if snapshot is None else _next_generation(snapshot.epoch)
        self._emitted: dict[str | None, list[tuple[int, Rows]]] = {}
        """By side output, with the partition of each."""
        self._members: list[_Member] = []
        try:
            for partition in range(parallelism):
                groups = range_of(Partition(partition), parallelism, max_parallelism)
                files = FileSet(groups) if snapshot is None else rescaled(snapshot.parts, groups)
                options = Options(backend=backend, memory=memory)
                names = _names()
                state = self._opened_state(folder, files, options, names)
                self._open(state, names, partition, parallelism, None if snapshot is None else snapshot.broadcast)
        except BaseException:
            self.close()
            raise

    # --- what comes in ------------------------------------------------------------------------------------------------

    def rows(self, rows: BatchLike, times: Sequence[int] | NDArray[np.int64] | None = None, input: int = 0) -> None:
        """Give rows to an input, each to the owner of its key; those of an input without keys to every partition."""
        declared = self.operator.inputs[input]
        given = _rows(rows, declared.schema, times)
        if declared.timed != (given.times is not None):
            raise ValueError(
                f"the rows of input {input} have event times: give one for each in `times`"
                if declared.timed
                else f"the rows of input {input} have no event times: give none, or have a harness with timed=True, "
                "or a program with with_event_time(...)"
            )
        for place, part in enumerate(self._divided(given, declared)):
            while len(part):
                taken = self._members[place].operator.rows(input, part)
                part = part.slice(0, 0) if taken is None else part.slice(taken, len(part) - taken)
                if len(part):
                    self._interrupted(self)

    def watermark(self, timestamp: int) -> None:
        """Move event time to `timestamp` in every partition."""
        told = False
        while not told:
            told = True
            for place in range(len(self._members)):
                if self._members[place].operator.watermark(timestamp) is False:
                    told = False
                    self._interrupted(self)
        self._watermark = timestamp

    def wake(self, now: int) -> None:
        """Move processing time to `now`, and wake every partition that wants to be woken by then."""
        self.now = now
        for place in range(len(self._members)):
            while (wanted := self._members[place].operator.wakes_at()) is not None and wanted <= now:
                self._members[place].operator.wake(now)
                self._interrupted(self)

    def end(self) -> None:
        """Tell the operator that all input of this run has ended."""
        for member in self._members:
            member.operator.end()

    def wakes_at(self) -> int | None:
        """Return the first processing time at which a partition wants to be woken; None for never."""
        wanted = [member.operator.wakes_at() for member in self._members]
        return min((time for time in wanted if time is not None), default=None)

    # --- what comes out -----------------------------------------------------------------------------------------------

    def emitted(self, side: str | None = None) -> list[Row]:
        """Return the rows of the main output, or of a side output, since opening or the last `clear`."""
        return [row for _, rows in self._emitted.get(side, ()) for row in rows_of(rows.batch)]

    def emitted_times(self, side: str | None = None) -> list[int | None]:
        """Return the event time of each of the emitted rows; None for rows of an output without event times."""
        pieces = [rows for _, rows in self._emitted.get(side, ())]
        return [
            time for rows in pieces for time in (rows.times.tolist() if rows.times is not None else [None] * len(rows))
        ]

    def emitted_rows(self, side: str | None = None, partition: int | None = None) -> Rows | None:
        """Return the emitted rows, of all partitions or of one, as one batch; None if there are none."""
        pieces = [rows for number, rows in self._emitted.get(side, ()) if partition in (None, number)]
        return joined(pieces) if pieces else None

    def clear(self) -> None:
        """Forget what was emitted."""
        self._emitted.clear()

    # --- cuts and the end ---------------------------------------------------------------------------------------------

    def cut(self) -> OperatorSnapshot:
        """Cut all partitions, and wait until the cut is in the folder; work can go on then."""
        self._epoch = Epoch(self._epoch.generation, self._epoch.number + 1)
        broadcasts = {member.operator.broadcast() for member in self._members}
        if len(broadcasts) > 1:
            raise BroadcastDiffers(f"{self.operator.label}: {len(broadcasts)} different broadcast states")
        for member in self._members:
            member.operator.before_cut()
        parts = tuple(member.state.snapshot(self._epoch) for member in self._members)
        for member in self._members:
            member.state.completed(self._epoch)
        return OperatorSnapshot(self._epoch, parts, broadcasts.pop(), self._watermark)

    def rewind(self, snapshot: OperatorSnapshot) -> bool:
        """Go back in place to a cut of this harness, as a job does whose other partition was lost.

        Returns False where a state cannot do that exactly, as when keys of a table went to the disk since the cut: then
        the harness is closed, and the snapshot can be opened by another.
        """
        self._watermark = _going_on(snapshot.watermark)
        members, self._members = self._members, []
        for member in members:
            member.operator.close()
        parts = zip(members, snapshot.parts, strict=True)
        if not all(member.state.rewind(snapshot.epoch, files, member.names) for member, files in parts):
            for member in members:
                member.state.close()
            return False
        for partition, member in enumerate(members):
            self._open(member.state, member.names, partition, len(members), snapshot.broadcast)
        return True

    def state(self, key: object) -> KeyedState:
        """Return the state of the partition that owns this key, with the key as its current one.

        A test may look at it, or write to it.
        """
        key_type = self._members[0].state.key_type
        keys = self._members[0].state.keys(pa.array([key], key_type.arrow))
        state = self._members[int(self._owners(keys.groups(self.max_parallelism))[0])].state
        state.set_key(key)
        return state

    def close(self) -> None:
        """Close the operator and its state."""
        members, self._members = self._members, []
        for member in members:
            member.operator.close()
            member.state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- opening it ---------------------------------------------------------------------------------------------------

    def _opened_state(self, folder: Path, files: FileSet, options: Options, names: Callable[[], str]) -> KeyedState:
        store = LocalStore(folder / "store")
        local = Path(tempfile.mkdtemp(prefix="local-", dir=folder))
        declared = StateOperator(_UID, self.operator.inputs[0].key_type, self.operator.states, self.max_parallelism)
        return KeyedState(declared, local, store, names, files, options)

    def _open(
        self, state: KeyedState, names: Callable[[], str], partition: int, parallelism: int, broadcast: bytes | None
    ) -> None:
        context = OperatorContext(
            uid=_UID,
            partition=Partition(partition),
            parallelism=parallelism,
            key_type=state.key_type,
            state=state,
            emit=partial(self._emit, partition),
            watermark=self._watermark,
            clock=lambda: self.now,
            broadcast=broadcast,
            overdue=self._overdue,
        )
        try:
            self._members.append(_Member(state, copy.deepcopy(self.operator).open(context), names))
        except BaseException:
            state.close()
            raise

    def _emit(self, partition: int, rows: Rows, side: str | None = None) -> None:
        if not len(rows):
            return
        schema = self.operator.output if side is None else self.operator.sides[side]
        if not rows.batch.schema.equals(schema):
            raise AssertionError(f"{self.operator.label} emits {rows.batch.schema}, and declares {schema}")
        if (rows.times is not None) != self.operator.timed:
            raise AssertionError(f"{self.operator.label} declares timed={self.operator.timed}, and emits otherwise")
        self._emitted.setdefault(side, []).append((partition, rows))

    def _divided(self, rows: Rows, declared: Input) -> list[Rows]:
        if not declared.keys:
            return [rows] * len(self._members)
        keys = self._members[0].state.keys(keys_in(rows.batch, declared.keys))
        owners = self._owners(keys.groups(self.max_parallelism))
        return [rows.where(owners == partition) for partition in range(len(self._members))]

    def _owners(self, groups: NDArray[np.uint16]) -> NDArray[np.int64]:
        return groups.astype(np.int64) * len(self._members) // self.max_parallelism


def tested_operator(
    tested: Tested,
    columns: SchemaLike | None,
    key: str | Sequence[str],
    timed: bool,
    schema: SchemaLike | None,
    sides: Mapping[str, SchemaLike],
    uid: str | None,
) -> KeyedOperator:
    """Return the operator that the arguments of an `OperatorHarness` describe; `InvalidProgram` says what is wrong."""
    if isinstance(tested, Program):
        return _step(tested, uid)
    made = tested if isinstance(tested, type) else type(tested)
    if not issubclass(made, KeyedFunction):
        if not hasattr(tested, "inputs"):
            raise TypeError(f"{tested!r} is no KeyedProcess, BatchProcess or Program, and no operator")
        return cast("KeyedOperator", tested)
    if not issubclass(made, KeyedProcess | BatchProcess):
        raise TypeError(
            f"{made.__name__} is no KeyedProcess or BatchProcess: give the program that it is part of, and the uid of "
            "its step, OperatorHarness(program, folder, uid=...)"
        )
    keys = (key,) if isinstance(key, str) else tuple(key)
    if columns is None or not keys:
        raise TypeError(
            f"a harness for {made.__name__} has to know its rows: give columns={{...}} with their types, and key=..."
        )
    way = Way.EVENTS if issubclass(made, KeyedProcess) else Way.BATCHES
    try:
        operator = operator_of(Processing(way, tested, schema, sides), (Input(schema_of(columns), keys, timed),))
        problems = [Problem(made.__name__, problem) for problem in operator.check()]
    except CannotBuild as error:
        problems = [Problem(made.__name__, reason) for reason in error.reasons]
    if problems:
        raise InvalidProgram(problems)
    return operator


def _step(program: Program, uid: str | None) -> KeyedOperator:
    steps = program.plan().keyed
    for known, operator in steps.items():
        if known == uid:
            return operator
    raise KeyError(f"the program has no step with state and the uid {uid!r}; {near_names(uid or '', list(steps))}")


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """One partition."""

    state: KeyedState
    operator: Operator
    names: Callable[[], str]
    """Gives its files their names."""


def _names() -> Callable[[], str]:
    own, numbers = uuid4().hex, count()
    return lambda: f"shared/{own}-{next(numbers)}.sst"


def _going_on(watermark: int) -> int:
    """Return the event time from which a restored operator goes on: it begins anew if it was at its end."""
    return EARLIEST if watermark == LATEST else watermark


def transformed(
    transform: Transform, rows: BatchLike, schema: pa.Schema, times: Sequence[int] | None = None
) -> list[Rows]:
    """Return the rows that a transform makes of rows of this schema; check that it keeps to what it declares."""
    results = copy.deepcopy(transform).open()(_rows(rows, schema, times))
    for result in results:
        if not result.batch.schema.equals(transform.output):
            raise AssertionError(f"{transform.label} gives {result.batch.schema}, and declares {transform.output}")
        if (result.times is None) != (times is None):
            raise AssertionError(f"{transform.label} loses the event times, or makes them up")
        if result.times is not None and len(result.times) != len(result):
            raise AssertionError(f"{transform.label} gives {len(result)} rows with {len(result.times)} times")
    return list(results)


def _rows(rows: BatchLike, schema: pa.Schema, times: Sequence[int] | NDArray[np.int64] | None) -> Rows:
    batch = rows if isinstance(rows, pa.RecordBatch) else batch_of(rows, schema, "the test's rows")
    given = None if times is None else np.asarray(times, dtype=np.int64)
    if given is not None and len(given) != batch.num_rows:
        raise ValueError(f"{batch.num_rows} rows with {len(given)} times")
    return Rows(batch, given)


def _next_generation(epoch: Epoch) -> Epoch:
    return Epoch(Generation(epoch.generation + 1), epoch.number)
