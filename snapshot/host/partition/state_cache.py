"""Keyed state that is open in this process and belongs to no attempt now: what the next role finds instead of files.

Invariant: a state is here, or an attempt has it, or it is closed; an attempt that takes one has it exactly as the epoch
has it. Any thread may call; a state that is in no attempt's way is closed in a thread of its own, as closing may take
long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from traceback import print_exception

from snapshot import fail_points
from snapshot.fail_points import reached
from statebackend import means
from statebackend.files import FileSet
from statebackend.ids import Epoch, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange


class StateCache:
    """The states of one process, by operator and key groups. All are of the same program."""

    def __init__(self) -> None:
        self._states: dict[tuple[Uid, KeyGroupRange], KeyedState] = {}
        self._coming: set[tuple[Uid, KeyGroupRange]] = set()
        self._lock = means.Condition()
        self._closing: list[means.Thread] = []

    def put(self, state: KeyedState) -> None:
        """Keep a state that may be rewound and that nothing else uses from now on; replace an older one of its kind."""
        with self._lock:
            older = self._states.pop(_key(state), None)
            self._states[_key(state)] = state
        if older is not None:
            self.discard([older])

    def expect(self, uid: Uid, groups: KeyGroupRange) -> None:
        """Expect such a state, so that `take` waits until `arrived` brings it or says that there is none.

        So what brings it must come to an end, whatever the store does.
        """
        with self._lock:
            self._coming.add((uid, groups))

    def arrived(self, uid: Uid, groups: KeyGroupRange, state: KeyedState | None) -> None:
        """Keep the expected state, if there is one; close it if it is not expected any more."""
        with self._lock:
            expected = (uid, groups) in self._coming
            self._coming.discard((uid, groups))
            if expected and state is not None:
                self._states[uid, groups] = state
            self._lock.notify_all()
        if state is not None and not expected:
            self.discard([state])

    def take(
        self, uid: Uid, groups: KeyGroupRange, epoch: Epoch | None, files: FileSet | None, names: Callable[[], str]
    ) -> KeyedState | None:
        """Take the operator's state of these groups as the epoch has it, with `files`; new ones are named by `names`.

        Return None if none fits; then none is here any more either, and the folder in which it was is free.
        """
        with self._lock:
            self._lock.wait_for(lambda: (uid, groups) not in self._coming)
            state = self._states.pop((uid, groups), None)
        if state is None:
            return None
        try:
            reached(fail_points.BEFORE_REWIND)
            if epoch is not None and files is not None and _is_now(state, epoch, files, names):
                reached(fail_points.REWOUND)
                return state
        except BaseException as error:  # it is opened from its files then, which tells whether those are at fault
            print_exception(error)
        _close(state)
        return None

    def discard(self, states: Iterable[KeyedState]) -> None:
        """Close these states, which are not kept here, without waiting for it."""
        doomed = list(states)
        if not doomed:
            return
        thread = means.Thread(target=_close_all, args=(doomed,), name="closing state", daemon=True)
        with self._lock:
            self._closing = [*(other for other in self._closing if other.is_alive()), thread]
            thread.start()

    def discard_all(self) -> None:
        """Close all states that are kept here, without waiting for it."""
        with self._lock:
            states, self._states = self._states, {}
            self._coming.clear()
            self._lock.notify_all()
        self.discard(states.values())

    def close(self) -> None:
        """Close all states that are kept here, and wait until all that are being closed are."""
        self.discard_all()
        with self._lock:
            closing, self._closing = self._closing, []
        for thread in closing:
            thread.join()


def _is_now(state: KeyedState, epoch: Epoch, files: FileSet, names: Callable[[], str]) -> bool:
    """Bring the state to the epoch, whether it was followed or used in the last attempt; return False if it cannot."""
    if not state.is_untouched:
        return state.rewind(epoch, files, names)
    if not state.catch_up(files, names):
        return False
    state.read_ahead()
    return True


def _key(state: KeyedState) -> tuple[Uid, KeyGroupRange]:
    return state.schema.uid, state.groups


def _close_all(states: Iterable[KeyedState]) -> None:
    for state in states:
        _close(state)


def _close(state: KeyedState) -> None:
    try:
        state.close(leave_uploads=True)
    except Exception as error:
        print_exception(error)
