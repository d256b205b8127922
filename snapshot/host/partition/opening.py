"""The keyed states of one partition on their way into an attempt, each in a thread beside the event loop.

Invariant: unless the opener is closed before, it calls exactly one of `on_opened` and `on_failed` for each state,
once, in the loop's thread. A state that is open only after the opener was closed goes into the cache, if the next
opener still waits for it; otherwise it is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.partition.failures import kind_of, text_of, traceback_of
from snapshot.host.partition.folders import job_folder, open_in_folder
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Deploy, Failed, Role
from snapshot.host.protocol.options import HostOptions
from snapshot.operators.operator import KeyedOperator
from snapshot.program.plan import Plan
from statebackend import means
from statebackend.ids import Epoch, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange, range_of
from statebackend.operator import Operator as StateOperator
from statebackend.options import Options
from statebackend.snapshots.restore import RestoreReport
from statebackend.stores.store import BlobStore

NOTHING: Final = Role()
"""The role of an operator that the epoch does not know."""

_AT_ONCE: Final = 4
_PATIENCE: Final = 2.0
"""Seconds for which an opening waits for the one before: a state that is open at last is at hand at once, but a store
that does not answer would hold up all."""


@dataclass(frozen=True, slots=True)
class StatePlacement:
    """The placement of an operator's state: its partition, folder and store."""

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
    """The number of rows that each sender had under way in the last attempt; 0 if that is not known."""


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
    began = means.monotonic()
    groups = range_of(placement.partition, placement.parallelism, placement.max_parallelism)
    state = cache.take(placement.uid, groups, epoch, placement.role.state, placement.files.state_name)
    if state is not None:
        return OpenedState(state, 0.0, (means.monotonic() - began) * 1000, in_place=True)
    return from_files(operator, placement, wake, KeyedState.read_ahead)


def from_files(
    operator: KeyedOperator, placement: StatePlacement, wake: Callable[[], None], load: Callable[[KeyedState], object]
) -> OpenedState:
    """Open the state from its files, and `load` what is to be in memory before it is used."""
    groups = range_of(placement.partition, placement.parallelism, placement.max_parallelism)
    declared = StateOperator(placement.uid, operator.inputs[0].key_type, operator.states, placement.max_parallelism)
    began = fetched = means.monotonic()

    def progress(_: RestoreReport) -> None:
        nonlocal fetched
        fetched = means.monotonic()

    state = _opened(declared, placement, groups, wake, progress)
    try:
        load(state)
    except BaseException:
        state.close()
        raise
    return OpenedState(state, (fetched - began) * 1000, (means.monotonic() - fetched) * 1000, in_place=False)


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


class StateOpener:
    """Begins when the one `before` it, which must be closed, has come to its end. `wake` is for the states: called in
    any thread when one has news.
    """

    def __init__(
        self,
        deploy: Deploy,
        plan: Plan,
        placements: Mapping[Uid, StatePlacement],
        cache: StateCache,
        loop: EventLoop,
        wake: Callable[[], None],
        on_opened: Callable[[Uid, OpenedState], object],
        on_failed: Callable[[Failed], object],
        before: StateOpener | None,
    ) -> None:
        self._deploy = deploy
        self._cache = cache
        self._on_opened = on_opened
        self._on_failed = on_failed
        self._over = False
        self._began = False
        self._left = False
        self._overtaken = False  # the next one has begun, and waits for nothing of this one
        self._next: Callable[[], None] | None = None
        self._work = {
            uid: partial(open_state, operator, placements[uid], deploy.epoch, cache, wake)
            for uid, operator in plan.keyed.items()
        }
        self._outstanding = len(self._work)
        self._loop = loop
        self._before = _at_work(before)
        if self._before is None or self._before._overtaken:
            self._begin()
        else:
            self._before._next = self._begin
            loop.call_at(loop.now() + _PATIENCE, self._begin)

    def _begin(self) -> None:
        if self._began or self._over:
            return
        self._began = True
        if self._before is not None:
            self._before._overtaken = True
        # Threads of its own: what an earlier attempt still does in the background may take long.
        self._background = Background(self._loop, min(len(self._work), _AT_ONCE), "opening state")
        for uid, work in self._work.items():
            self._background.submit(partial(self._open, work), partial(self._came, uid))

    @property
    def done(self) -> bool:
        """True if every state has come, or has failed to."""
        return not self._outstanding

    def close(self) -> None:
        """Tell nothing more; a state that still comes is kept for the next opening, or closed if that did not wait."""
        self._over = True

    def forget(self) -> None:
        """Keep no state for the next attempt either, neither from this opening nor from any before it."""
        self._over = self._overtaken = True
        if self._before is not None:
            self._before.forget()

    def leave(self) -> None:
        """Tell nothing more, as the process ends its part; a state that is still being opened is closed as it comes."""
        self._over = self._left = True
        if self._began:
            self._background.close()
        if self._before is not None:
            self._before.leave()

    def _open(self, work: Callable[[], OpenedState]) -> OpenedState:
        """Open a state, in a thread."""
        opened = work()
        if self._left:
            opened.state.close(leave_uploads=True)
        return opened

    def _came(self, uid: Uid, outcome: OpenedState | BaseException) -> None:
        self._outstanding -= 1
        if isinstance(outcome, BaseException):
            self._fail(uid, outcome)
        elif not self._over:
            self._on_opened(uid, outcome)
        elif self._overtaken:
            self._cache.discard([outcome.state])
        else:
            self._cache.put(outcome.state)
        if not self._outstanding:
            self._background.close()
            if self._next is not None:
                self._next()

    def _fail(self, uid: Uid, error: BaseException) -> None:
        if not self._over:
            self._over = True
            deploy, kind = self._deploy, kind_of(error)
            self._on_failed(
                Failed(deploy.incarnation, deploy.partition, kind, text_of(error), uid, traceback_of(error))
            )


def _at_work(opening: StateOpener | None) -> StateOpener | None:
    """Return the newest opening that still has something under way: this one, or one before it."""
    while opening is not None and (opening.done or not opening._began):
        opening = opening._before
    return opening
