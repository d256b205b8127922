"""A process that stands by: it makes each complete epoch ready that the driver tells it of.

Invariant: it is done in one thread, with low priority unless a role waits for it, always for the newest epoch that was
told; what cannot be done is told, and tried again with the next epoch; and when it is over, states are at hand for the
next role, no file is kept longer than until that has opened them, and the thread has ended as soon as the store has
answered, or been given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from traceback import print_exception
from typing import Final, cast

from snapshot.host.partition.failures import text_of
from snapshot.host.partition.folders import folder_of, job_folder, open_in_folder
from snapshot.host.partition.opening import StatePlacement, from_files
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.host.protocol.messages import Follow, Followed, Role, StandBy
from snapshot.host.protocol.options import Following
from snapshot.operators.operator import KeyedOperator
from snapshot.program.pickling import loads
from snapshot.program.plan import Plan
from statebackend import means
from statebackend.files import FileSet
from statebackend.followed_files import FollowedFiles
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange
from statebackend.snapshots.transfer import MissingFile
from statebackend.stores.limited_store import find_limited
from statebackend.stores.store import BlobStore

_NOBODY: Final = Incarnation(Generation(0), Attempt(0))
"""The incarnation of a standby: it writes no files, so it needs no names of its own."""
_NICENESS: Final = 5
"""The niceness of the thread, so that it stands back behind partitions on the same host."""


@dataclass(frozen=True, slots=True)
class _Place:
    uid: Uid
    partition: Partition
    groups: KeyGroupRange


class Follower:
    """Follows until it is closed. `tell` is called in the thread that follows, `wake` is for the states."""

    def __init__(
        self,
        stand_by: StandBy,
        cache: StateCache,
        wake: Callable[[], None],
        tell: Callable[[Followed], object],
    ) -> None:
        self._stand_by = stand_by
        self._cache = cache
        self._wake = wake
        self._tell = tell
        self._files: dict[_Place, FollowedFiles] = {}
        self._states: dict[_Place, KeyedState] = {}
        self._at: _Place | None = None
        """The place whose state is being brought up to date, and is not among the others meanwhile."""
        self._plan: Plan | None = None
        self._store: BlobStore | None = None
        self._has: Epoch | None = None
        self._linked = self._downloaded = 0
        self._cpu_before = means.process_time()
        self._next: Follow | None = None
        self._over = False
        self._changed = means.Condition()
        self._thread = means.Thread(target=self._run, name="following", daemon=True)
        self._thread.start()

    def follow(self, follow: Follow) -> None:
        """Follow this complete epoch next, in place of an older one that was told and not begun."""
        with self._changed:
            self._next = follow
            self._changed.notify()

    def close(self) -> None:
        """Keep all states at hand, now or in a moment, as the process gets a role or the job is over.

        What is being done is brought to an end, and not waited for. The files are kept until `release`.
        """
        with self._changed:
            if self._over:
                return
            self._over = True
            self._changed.notify()
            states, self._states = self._states, {}
            if self._at is not None:
                self._cache.expect(self._at.uid, self._at.groups)
                self._hurry()
        for state in states.values():
            self._cache.put(state)

    def release(self) -> None:
        """Let go of the files, after `close`: the role's state is open, so nothing kept here is needed any more."""
        means.Thread(target=self.wait, name="letting go of files", daemon=True).start()

    def wait(self) -> None:
        """Wait, after `close`, until nothing is being done any more, and nothing is kept."""
        self._thread.join()
        while self._files:
            with suppress(KeyError):  # two may do it
                _, files = self._files.popitem()
                try:
                    files.close()
                except Exception as error:
                    print_exception(error)

    def _hurry(self) -> None:
        """Give the following thread the caller's priority, where that is allowed, as its work is waited for."""
        thread = self._thread.native_id
        if thread is not None:
            with suppress(OSError):
                means.setpriority(os.PRIO_PROCESS, thread, means.getpriority(os.PRIO_PROCESS, 0))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._stand_by.awaited:
            with suppress(OSError):  # whoever started the process may forbid it
                usual = means.getpriority(os.PRIO_PROCESS, 0)
                means.setpriority(os.PRIO_PROCESS, means.get_native_id(), usual + _NICENESS)
        while (follow := self._await()) is not None:
            answer = self._answer(follow)
            if not self._over:
                self._tell(answer)

    def _await(self) -> Follow | None:
        with self._changed:
            while self._next is None and not self._over:
                self._changed.wait()
            follow, self._next = self._next, None
            return None if self._over else follow

    def _answer(self, follow: Follow) -> Followed:
        began, problem = means.monotonic(), ""
        try:
            self._get_ready(follow)
        except MissingFile:
            pass  # a later epoch is complete, and what only this one needed is being removed
        except BaseException as error:  # whatever the store, the disk or the program's modules raise
            problem = text_of(error)
        brought = [files.brought for files in self._files.values()]
        return Followed(
            follow.epoch,
            self._has,
            problem,
            took_ms=(means.monotonic() - began) * 1000,
            linked_bytes=self._linked + sum(part.linked_bytes for part in brought),
            downloaded_bytes=self._downloaded + sum(part.downloaded_bytes for part in brought),
            cpu_ms=(means.process_time() - self._cpu_before) * 1000,
            memory_bytes=means.memory_of_process(),
        )

    def _get_ready(self, follow: Follow) -> None:
        if self._store is None or self._plan is None:
            self._plan = cast("Plan", loads(self._stand_by.plan))  # which imports what the program needs
            self._store = find_limited(self._stand_by.store, self._stand_by.options.store_timeout / 1000)
        opened = self._stand_by.how is Following.OPEN
        for uid, states in follow.states.items():
            for index, files in enumerate(states):
                if self._stand_by.only not in (None, index):
                    continue
                place = _Place(uid, Partition(index), files.range)
                if opened:
                    self._open(place, self._plan.keyed[uid], self._placement(place, files, self._store, self._plan))
                elif not self._over:
                    self._keep(place, files, self._store)
        if not self._over:
            self._has = follow.epoch

    def _keep(self, place: _Place, files: FileSet, store: BlobStore) -> None:
        followed = self._files.get(place)
        if followed is None:
            local = job_folder(self._stand_by.local, self._stand_by.job)
            followed = self._files[place] = open_in_folder(local, place.uid, place.partition, FollowedFiles)
        followed.follow(files, store)

    # --- states that are open -----------------------------------------------------------------------------------------

    def _placement(self, place: _Place, files: FileSet, store: BlobStore, plan: Plan) -> StatePlacement:
        stand_by = self._stand_by
        return StatePlacement(
            place.uid,
            place.partition,
            stand_by.parallelism,
            plan.max_parallelism,
            Role(files),
            stand_by.options,
            store,
            TreeFiles(store, _NOBODY, place.partition),
            job_folder(stand_by.local, stand_by.job),
        )

    def _open(self, place: _Place, operator: KeyedOperator, placement: StatePlacement) -> None:
        """Open the state of this place as the files are, unless it is over; then it is at hand in any case."""
        with self._changed:
            if self._over:
                return
            state, self._at = self._states.pop(place, None), place
        try:
            if state is not None and not self._catches_up(state, placement):
                outdated, state, self._has = state, None, None
                outdated.close()
            if state is None:
                state = from_files(operator, placement, self._wake, lambda opened: opened.load(self._goes_on)).state
            self._count(state)
        except MissingFile:
            raise  # a state that is still open is as it was
        except BaseException:
            if state is not None:
                state.close()
            state = self._has = None
            raise
        finally:
            with self._changed:
                self._at = None
                goes_on = self._goes_on()
                if goes_on and state is not None:
                    self._states[place] = state
            if not goes_on:
                self._cache.arrived(place.uid, place.groups, state)

    def _catches_up(self, state: KeyedState, placement: StatePlacement) -> bool:
        """Bring an open state to the seat's files; return False if it cannot be, and has to be opened anew."""
        files = placement.role.state
        assert files is not None
        if not state.catch_up(files, placement.files.state_name, beside=folder_of(placement.local, placement.uid)):
            return False
        state.load(self._goes_on)
        return True

    def _goes_on(self) -> bool:
        return not self._over

    def _count(self, state: KeyedState) -> None:
        report = state.restored
        self._linked += report.linked_bytes
        self._downloaded += report.downloaded_bytes
