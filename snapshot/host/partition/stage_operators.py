"""The operator at the beginning of a stage: one with keyed state, or a mere passage.

Invariant: an operator gives its rows to the stage's chain in the call in which it is given their cause.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.ipc as ipc

from snapshot.host.partition.opening import StatePlacement
from snapshot.operators.operator import Emit, KeyedOperator, Note, Operator, OperatorContext
from snapshot.operators.rows import Rows
from statebackend.canonical.exporting import StateExport
from statebackend.canonical.source import OneKey, source_of
from statebackend.errors import JobError
from statebackend.ids import Epoch
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import key_group_of
from statebackend.snapshots.uploads import Durable, NotDurable


class Passage(Operator):
    """An operator that hands on what comes in."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def rows(self, input: int, rows: Rows) -> None:
        """Hand the rows on."""
        del input
        self._emit(rows)

    def watermark(self, timestamp: int) -> None:
        """Do nothing, as nothing waits for time."""


class Awaited(Operator):
    """Stands for an operator whose state is not there yet: nothing may come to it but the question when to wake it."""

    def rows(self, input: int, rows: Rows) -> None:
        """Raise an error, as there is no state yet."""
        del input, rows
        raise AssertionError("rows came to an operator that has no state yet")

    def watermark(self, timestamp: int) -> None:
        """Raise an error, as there is no state yet."""
        del timestamp
        raise AssertionError("event time came to an operator that has no state yet")

    def broadcast(self) -> bytes | None:
        """Raise an error, as there is no state yet."""
        raise AssertionError("an operator that has no state yet was cut")


class KeyedRun:
    """A keyed operator at work on its state, in one attempt, from this event time on; the state stays the owner's."""

    def __init__(
        self,
        operator: KeyedOperator,
        placement: StatePlacement,
        state: KeyedState,
        emit: Emit,
        time: int,
        clock: Callable[[], int],
        overdue: Callable[[], bool],
        note: Callable[[], Note | None],
    ) -> None:
        self.state = state
        context = OperatorContext(
            placement.uid,
            placement.partition,
            placement.parallelism,
            operator.inputs[0].key_type,
            state,
            emit,
            time,
            clock,
            placement.role.broadcast,
            note,
            overdue,
        )
        self.operator: Operator = operator.open(context)

    def cut(self, epoch: Epoch) -> None:
        """Cut the state: as it is now, it is the epoch's."""
        self.operator.before_cut()
        self.state.cut(epoch)

    def poll(self) -> list[Durable | NotDurable]:
        """Return what became of earlier cuts."""
        return self.state.poll()

    def load_more(self) -> bool:
        """Do some of what is left of opening the state; return whether there is more."""
        return self.state.load_more()

    def close(self) -> None:
        """Close the operator; the state stays as the operator left it."""
        self.operator.close()


class StillOpening(JobError):
    """The state is not there yet; the message says whose."""


def rows_of_key(state: KeyedState, key: bytes | None, name: str | None) -> tuple[tuple[str, bytes], ...]:
    """Return the key's canonical rows, of one state or of all: each state's name with its rows as an Arrow stream.

    They are read as they are now, and not as an epoch has them: a roll-back may still undo them.

    Raise `StateMismatch` if there is no such state. In the event loop's thread, between two calls of the operator.
    """
    schema = state.schema
    specs = schema.states if name is None else (schema.state(name),)
    group = key_group_of(schema.key_type.hash_of(key), schema.max_parallelism)
    source, found = source_of(state), []
    for spec in specs:
        export = StateExport(source, spec, OneKey(key, group))
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, export.schema) as stream:
            for batch in export.batches():
                stream.write_batch(batch)
        found.append((spec.name, sink.getvalue().to_pybytes()))
    return tuple(found)
