"""The operator at the beginning of a stage: one with keyed state, or a mere passage.

What always holds: an operator gives its rows to the stage's chain in the call in which it is given their cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, Literal, Protocol

from snapshot.cut.frames import EARLIEST
from snapshot.cut.watermarks import going_on
from snapshot.host.partition.folders import job_folder, open_in_folder
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Deploy, Role
from snapshot.host.protocol.options import HostOptions
from snapshot.operators.operator import Closing, Cutting, Emit, KeyedOperator, Note, Operator, OperatorContext
from snapshot.operators.rows import Rows
from snapshot.program.plan import Plan
from statebackend.ids import Epoch, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange, range_of
from statebackend.operator import Operator as StateOperator
from statebackend.options import Options
from statebackend.snapshots.restore import RestoreReport
from statebackend.snapshots.uploads import Durable, NotDurable
from statebackend.stores.store import BlobStore

NOTHING: Final = Role()
"""What an operator starts from that the epoch knows nothing of."""

_FOLDERS: Final = 16


class StageOperator(Protocol):
    """What a stage does with its inputs."""

    def rows(self, input: int, rows: Rows) -> int | None:
        """Take rows of an input; return how many of the first ones were taken, or None for all."""

    def watermark(self, timestamp: int) -> bool | None:
        """Move event time on to here; return False if this must be said again, as there is more to do."""

    def wakes_at(self) -> int | None:
        """Return the processing time at which the operator wants to be woken; None for never."""

    def wake(self, now: int) -> object:
        """Do what is due, as processing time has come to here."""

    def broadcast(self) -> bytes | None:
        """Return the broadcast state for the cut; None if there is none."""


class Passage:
    """An operator that hands on what comes in."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def rows(self, _input: int, rows: Rows) -> None:
        """Hand the rows on."""
        self._emit(rows)

    def watermark(self, _timestamp: int) -> None:
        """Do nothing, as nothing waits for time."""

    def wakes_at(self) -> int | None:
        """Return None, as nothing waits for time."""
        return None

    def wake(self, _now: int) -> None:
        """Do nothing, as nothing waits for time."""

    def broadcast(self) -> bytes | None:
        """Return None, as there is no broadcast state."""
        return None


class Awaited:
    """Stands for an operator whose state is not there yet: nothing may come to it but the question when to wake it."""

    def rows(self, _input: int, _rows: Rows) -> None:
        """Raise an error, as there is no state yet."""
        raise AssertionError("rows came to an operator that has no state yet")

    def watermark(self, _timestamp: int) -> None:
        """Raise an error, as there is no state yet."""
        raise AssertionError("event time came to an operator that has no state yet")

    def wakes_at(self) -> int | None:
        """Return None, as nothing waits for time."""
        return None

    def wake(self, _now: int) -> None:
        """Do nothing, as nothing waits for time."""

    def broadcast(self) -> bytes | None:
        """Raise an error, as there is no state yet."""
        raise AssertionError("an operator that has no state yet was cut")


@dataclass(frozen=True, slots=True)
class StatePlacement:
    """Where an operator's state is kept: which partition it is, and which folder and store it has."""

    uid: Uid
    partition: Partition
    parallelism: int
    max_parallelism: int
    role: Role
    options: HostOptions
    store: BlobStore
    files: TreeFiles
    local: Path
    time_goes_on: bool = False
    window: int = 0
    """How many rows each sender had under way in the last attempt; 0 if that is not known."""


def placement_of(uid: Uid, deploy: Deploy, plan: Plan, files: TreeFiles, store: BlobStore) -> StatePlacement:
    """Return the placement of a stage's operator in a deployment."""
    return StatePlacement(
        uid,
        deploy.partition,
        deploy.parallelism,
        plan.max_parallelism,
        deploy.roles.get(uid, NOTHING),
        deploy.options,
        store,
        files,
        job_folder(deploy.local, deploy.job),
        deploy.time_goes_on,
        deploy.windows.get(uid, 0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class OpenedState:
    """An operator's state as the epoch has it, and how long its files and its opening took, in milliseconds.

    `in_place` if it was open in the process already.
    """

    state: KeyedState
    downloaded_ms: float
    opened_ms: float
    in_place: bool


def open_state(
    operator: KeyedOperator, placement: StatePlacement, epoch: Epoch | None, cache: StateCache, wake: Callable[[], None]
) -> OpenedState:
    """Bring the state back as the epoch has it: the one at hand, or else from files, which takes as long as reading
    them does. Any thread may do it, and then hand it over.

    It is kept in the partition's own folder; if a process that does not react any more still holds that, in another
    one. `wake` is called in any thread when the `poll` of a state that was not at hand has something.
    """
    began = monotonic()
    groups = range_of(placement.partition, placement.parallelism, placement.max_parallelism)
    state = cache.take(placement.uid, groups, epoch, placement.role.state, placement.files.state_name)
    if state is not None:
        return OpenedState(state, 0.0, (monotonic() - began) * 1000, in_place=True)
    return from_files(operator, placement, wake, KeyedState.read_ahead)


def from_files(
    operator: KeyedOperator, placement: StatePlacement, wake: Callable[[], None], load: Callable[[KeyedState], object]
) -> OpenedState:
    """Open the state from its files, and `load` what is to be in memory before it is used."""
    groups = range_of(placement.partition, placement.parallelism, placement.max_parallelism)
    declared = StateOperator(placement.uid, operator.inputs[0].key_type, operator.states, placement.max_parallelism)
    began = fetched = monotonic()

    def progress(_: RestoreReport) -> None:
        nonlocal fetched
        fetched = monotonic()

    state = _opened(declared, placement, groups, wake, progress)
    try:
        load(state)
    except BaseException:
        state.close()
        raise
    return OpenedState(state, (fetched - began) * 1000, (monotonic() - fetched) * 1000, in_place=False)


def _opened(
    declared: StateOperator,
    placement: StatePlacement,
    groups: KeyGroupRange,
    wake: Callable[[], None],
    progress: Callable[[RestoreReport], None],
) -> KeyedState:
    backend: Literal["heap", "rocksdb"] = "heap" if placement.options.state_backend == "heap" else "rocksdb"
    options = Options(backend=backend, memory=placement.options.state_memory)

    def opened(folder: Path, beside: Path) -> KeyedState:
        return KeyedState(
            declared,
            folder,
            placement.store,
            placement.files.state_name,
            placement.role.state,
            options,
            groups=groups,
            wake=wake,
            on_progress=progress,
            beside=beside,
        )

    return open_in_folder(placement.local, placement.uid, placement.partition, opened)


class KeyedRun:
    """A keyed operator at work on its state, in one attempt; the state stays whoever's it is."""

    def __init__(
        self,
        operator: KeyedOperator,
        placement: StatePlacement,
        state: KeyedState,
        emit: Emit,
        overdue: Callable[[], bool],
        note: Callable[[], Note | None] = lambda: None,
    ) -> None:
        self.state = state
        restored = going_on(placement.role.watermark)
        context = OperatorContext(
            placement.uid,
            placement.partition,
            placement.parallelism,
            operator.inputs[0].key_type,
            state,
            emit,
            EARLIEST if restored is None else restored.timestamp,
            placement.role.broadcast,
            overdue=overdue,
            note=note,
        )
        self.operator: Operator = operator.open(context)

    def cut(self, epoch: Epoch) -> None:
        """Cut the state: as it is now, it is the epoch's."""
        if isinstance(self.operator, Cutting):
            self.operator.before_cut()
        self.state.cut(epoch)

    def poll(self) -> list[Durable | NotDurable]:
        """Return what became of earlier cuts."""
        return self.state.poll()

    def load_more(self) -> bool:
        """Do some of what is left of opening the state; return whether there is more."""
        return self.state.load_more()

    def completed(self, epoch: Epoch) -> None:
        """Tell the state that the epoch is complete."""
        self.state.completed(epoch)

    def close(self) -> None:
        """Close the operator; the state stays as the operator left it."""
        if isinstance(self.operator, Closing):
            self.operator.close()
