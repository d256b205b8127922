"""The order in which the local backend takes cuts, and the cuts that it need not take yet.

Invariant: no cut gets in before an older one. A cut that is all there is waits until something has to go on top
of it, as the next cut may replace it; what waits is linked, so that its file stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statebackend.backends.backend import Backend
from statebackend.files import FileKind, FileRef
from statebackend.ids import Epoch
from statebackend.keygroups import KeyGroupRange, without
from statebackend.snapshots.state_files import StateFiles


@dataclass(frozen=True, slots=True)
class Due:
    """A cut that the backend is to take."""

    epoch: Epoch
    files: tuple[FileRef, ...]
    renews: bool


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Files that the backend takes only when others have to go on top of them."""

    groups: tuple[KeyGroupRange, ...] | None
    """In place of all there is of these groups; None for what goes on top, and takes the place of others like it."""
    link: Path | None


class Ingestion:
    """The files on their way into one backend. For the thread that writes files, and no other."""

    def __init__(self, backend: Backend, files: StateFiles, groups: KeyGroupRange, restored: Epoch) -> None:
        """Begin with a backend of these groups that has what was restored, up to this epoch."""
        self._backend = backend
        self._files = files
        self._groups = groups
        self.due: deque[Due] = deque()
        """The cuts that are still to be taken, each after the one before it."""
        self._waiting: deque[_Waiting] = deque()
        self.taken_up_to = restored
        """The newest epoch that the backend has, or could have at once."""

    def take_next(self) -> Epoch:
        """Bring the oldest cut that is due into the backend, and return its epoch. After an error it is still due."""
        first = self.due[0]
        self._take_files(first.files, first.renews)
        self.due.popleft()
        self.taken_up_to = first.epoch
        return first.epoch

    def _take_files(self, files: tuple[FileRef, ...], renews: bool) -> None:
        """Bring a cut into the backend, but one that is all there is only when the next one has to go on top of it.

        State that is in memory as a whole is not looked for in the backend; where all of it changes in each epoch, the
        next cut will be all there is again, or all but its keys.
        """
        if files and renews:
            links = [_Waiting(None, self._files.link(file)) for file in files]
            self._wait_for([waiting for waiting in self._waiting if waiting.groups is not None], links)
        elif files and files[0].kind is FileKind.BASE:
            links = [_Waiting(file.ranges, self._files.link(file)) for file in files]
            empty = unmentioned(files, self._groups)
            self._wait_for([], [_Waiting(empty, None), *links] if empty else links)
        elif files:
            self.take_waiting()
            with self._files.links(files) as paths:
                self._backend.ingest(paths)

    def _wait_for(self, still: Sequence[_Waiting], more: Sequence[_Waiting]) -> None:
        """Let only `still` and `more` wait from now on; links that waited and do so no more are removed."""
        for waiting in self._waiting:
            if waiting.link is not None and waiting not in still:
                waiting.link.unlink(missing_ok=True)
        self._waiting = deque([*still, *more])

    def take_waiting(self) -> None:
        """Bring into the backend what it has not taken yet because nothing had to go on top of it."""
        while self._waiting:
            first = self._waiting[0]
            if first.groups is not None:
                self._backend.rebase(first.groups, first.link)
            elif first.link is not None:
                self._backend.ingest([first.link])
            self._waiting.popleft()


def unmentioned(files: Iterable[FileRef], groups: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
    """Return the groups that no file speaks of."""
    return without((groups,), (part for file in files for part in file.ranges))
